"""What comparing policies gives: attainment at every tested point, and how far each policy goes. Values
only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from placement.plan import Plan
from placement.rules import Rule
from placement.text import columns

Axis = Literal["rate", "cv", "slo_scale", "devices"]
AXES: tuple[Axis, ...] = get_args(Axis)
MORE_IS_HARDER: dict[Axis, bool] = {"rate": True, "cv": True, "slo_scale": False, "devices": False}
MEANING: dict[Axis, str] = {
    "rate": "requests, times the recorded rate",
    "cv": "coefficient of variation of each model's gaps (Gamma, drawn anew)",
    "slo_scale": "every SLO, times the problem's",
    "devices": "the first so many devices",
}
BOUND = "clockwork"
"""Knows each window before it comes, so it is a bound and no rival."""


@dataclass(frozen=True)
class Point:
    """One policy under one rule at one value of one axis. `attainment` and `worst_model` (with its
    attainment) are on workloads it was not planned on, `planned` is attainment on the one it was."""

    axis: Axis
    value: float
    policy: str
    rule: Rule
    attainment: float
    worst_model: tuple[str, float]
    planned: float


@dataclass(frozen=True)
class Limits:
    """How far one policy goes: `base` is its attainment on the problem itself; for every axis the hardest
    tested value that it holds, or None where it holds none or none was tested."""

    policy: str
    rule: Rule
    base: float
    worst_model: tuple[str, float]
    rate: float | None
    cv: float | None
    slo_scale: float | None
    devices: float | None


@dataclass(frozen=True)
class Comparison:
    """All points; `plans` are those of the problem itself, by policy. `inputs` tells what was compared and
    how."""

    at: float
    """The attainment that counts as holding."""
    base: tuple[Point, ...]
    """The problem itself (on the axis of rate, at 1)."""
    points: tuple[Point, ...]
    plans: dict[str, Plan]
    inputs: dict[str, Any]
    notes: tuple[str, ...] = ()
    """What was left out or could not be, and why."""

    def curve(self, axis: Axis, policy: str, rule: Rule) -> list[Point]:
        chosen = (p for p in self.points if (p.axis, p.policy, p.rule) == (axis, policy, rule))
        return sorted(chosen, key=lambda point: point.value)

    def values(self, axis: Axis) -> list[float]:
        return sorted({point.value for point in self.points if point.axis == axis})

    @cached_property
    def axes(self) -> list[Axis]:
        """Those that were varied."""
        return [axis for axis in AXES if self.values(axis)]

    @cached_property
    def limits(self) -> list[Limits]:
        """One entry a policy and rule. The hardest value that holds, even if an easier one did not:
        attainment need not fall all the way, since every point has a plan of its own."""
        return [
            Limits(p.policy, p.rule, p.attainment, p.worst_model, *(self._limit(axis, p) for axis in AXES))
            for p in self.base
        ]

    @property
    def best(self) -> Point:
        """Who serves the problem itself best; of equals the first. The idealised bound does not take part."""
        rivals = [point for point in self.base if point.policy != BOUND] or list(self.base)
        return max(rivals, key=lambda point: point.attainment)

    def summary(self) -> dict[str, Any]:
        """The figures that `penstock compare --json` prints."""
        return {
            "at": self.at,
            "best": asdict(self.best),
            "limits": [asdict(limits) for limits in self.limits],
            "points": [asdict(point) for point in self.points],
            "plans": {policy: msgspec.to_builtins(plan) for policy, plan in self.plans.items()},
            "inputs": self.inputs,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Plain tables for a terminal."""
        parts = [f"Hardest value that holds {self.at:.4g} attainment\n" + "\n".join(columns(self.limit_rows()))]
        parts += [
            f"Attainment by {axis} ({MEANING[axis]})\n" + "\n".join(columns(self.curve_rows(axis)))
            for axis in self.axes
        ]
        parts += [f"Note: {note}" for note in self.notes]
        return "\n\n".join(parts) + "\n"

    def limit_rows(self) -> list[list[str]]:
        """A header, then one row a policy and rule."""
        header = ["policy", "rule", "attainment", "worst model", "its attainment", *self.axes]
        rows = [
            [one.policy, one.rule, _share(one.base), one.worst_model[0], _share(one.worst_model[1])]
            + ["none" if (value := getattr(one, axis)) is None else f"{value:g}" for axis in self.axes]
            for one in self.limits
        ]
        return [header, *rows]

    def curve_rows(self, axis: Axis) -> list[list[str]]:
        """A header of the tested values, then the attainments, one row a policy and rule."""
        header = ["policy", "rule", *(f"{value:g}" for value in self.values(axis))]
        rows = []
        for one in self.base:
            found = {point.value: point.attainment for point in self.curve(axis, one.policy, one.rule)}
            cells = [_share(found[value]) if value in found else "-" for value in self.values(axis)]
            rows.append([one.policy, one.rule, *cells])
        return [header, *rows]

    def _limit(self, axis: Axis, of: Point) -> float | None:
        held = [p.value for p in self.curve(axis, of.policy, of.rule) if p.attainment >= self.at]
        return (max if MORE_IS_HARDER[axis] else min)(held, default=None)


def _share(value: float) -> str:
    """To four digits, never rounded up."""
    return f"{int(value * 10_000 + 1e-6) / 10_000:.4f}"
