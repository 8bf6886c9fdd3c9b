"""What the planner's commands are given, checked: one line says what is wrong and what would be right."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from placement.errors import InfeasibleError, InputError
from placement.units import parse_seconds, parse_share

if TYPE_CHECKING:
    from placement.planner import Policy
    from placement.problem import Problem
    from placement.rules import Rule


def policy_named(name: str) -> Policy:
    from placement.planner import POLICIES

    for policy in POLICIES:
        if policy == name:
            return policy
    raise InputError(f"--policy {name!r}: no such policy; give one of {', '.join(POLICIES)}")


def rule_named(name: str) -> Rule:
    from placement.rules import RULES

    for rule in RULES:
        if rule == name:
            return rule
    raise InputError(f"--dispatch {name!r}: no such rule; give one of {', '.join(RULES)}")


def budget_seconds(steps: int | None, budget: str | None) -> float | None:
    if budget is None:
        return None
    if steps is not None:
        raise InputError("--steps and --budget: give one of the two")
    try:
        seconds = float(parse_seconds(budget))
    except ValueError as error:
        raise InputError(f"--budget: {error}") from error
    if seconds <= 0:
        raise InputError(f"--budget {budget}: no time to search in; give a time such as 10s")
    return seconds


def share(option: str, text: str) -> float:
    try:
        value = float(parse_share(text))
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
    if not 0 < value <= 1:
        raise InputError(f"{option} {text}: expected a share above 0 and at most 100%")
    return value


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(option: str, text: str) -> list[float]:
    if text.strip() == "none":
        return []
    try:
        numbers = [float(part) for part in names(text)]
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected numbers such as 0.5,1,2, or none") from error
    if not numbers or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise InputError(f"{option} {text!r}: expected finite numbers above 0, or none")
    return numbers


def whole(option: str, number: float) -> int:
    if number != int(number):
        raise InputError(f"{option} {number:g}: expected a whole number")
    return int(number)


def check_outputs(outputs: dict[str, Path | None]) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    for option, path in outputs.items():
        if path is None:
            continue
        try:
            if path.is_dir():
                raise InputError(f"{option} {path}: is a folder; give a file")
            if path.exists() and not path.is_file():
                raise InputError(f"{option} {path}: is a device or a pipe, which would be replaced; give a file")
            if not path.parent.is_dir():
                raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
        except OSError as error:
            raise InputError(f"{option} {path}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def make_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {folder}: cannot be made: {(error.strerror or str(error)).lower()}") from error


def check_problem(problem: Problem, path: Path) -> None:
    from placement.planner import check_feasible
    from placement.search.candidate import Space
    from placement.tables import Catalogue

    try:
        check_feasible(Space(Catalogue(problem)))
    except InfeasibleError as error:
        raise InfeasibleError(f"{path}: {error}") from error
