"""What a check has found: values, written to the file and shown as a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

Status = Literal["pass", "fail", "skip"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried."""

    part: str
    what: str
    status: Status
    figures: dict[str, float | int | str | None] = {}
    """Named with their units."""
    note: str = ""
    """Why it failed or was not tried, or what the figures leave out."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, Any]
    findings: list[Finding]
    seconds: float

    @property
    def failed(self) -> list[Finding]:
        return [one for one in self.findings if one.status == "fail"]


def judged(part: str, what: str, holds: bool, note: str = "", **figures: float | int | str | None) -> Finding:
    return Finding(part=part, what=what, status="pass" if holds else "fail", figures=figures, note=note)


def skipped(part: str, what: str, why: str) -> Finding:
    return Finding(part=part, what=what, status="skip", note=why)


@contextmanager
def telling(part: str, what: str, found: list[Finding]) -> Iterator[None]:
    """Whatever breaks within is one finding more: those made before stay, and others follow."""
    try:
        yield
    except Exception as error:  # whatever is wrong with this machine belongs into the report
        found.append(judged(part, what, False, " ".join(f"{type(error).__name__}: {error}".split())[:500]))
