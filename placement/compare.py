"""Compares policies: every one planned anew at every point, one axis varied at a time around the problem
itself.

How it is scored. A policy plans on the point's workload and is scored on others of the same traffic, since
a plan that fits one recording by heart is worth nothing. Those others are, best first: recordings that the
caller hands in (`held_out`); for a CV, other draws of the same Gamma processes; else draws made from the
recording itself (search/draws.py), with seeds that no search uses. The last kind is how `penstock` imagines
other traffic while it searches, which the baselines do not do: it leans towards `penstock`, so hand in
recordings where a verdict matters. Attainment on the planning workload is kept beside it as `planned`.

The baselines are searched under `shortest-queue`, as published, `penstock` under `deadline`; every plan is
scored under both rules, to tell what the plan brings from what the rule brings. `clockwork` plans on the
very workload it is scored on, window by window: a bound that nobody could reach by swapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placement.clocks import Bools
from placement.comparison import AXES, BOUND, Axis, Comparison, Point
from placement.errors import InfeasibleError, InputError
from placement.plan import Plan
from placement.planner import POLICIES, make_plan
from placement.problem import Problem
from placement.rules import RULES, Rule
from placement.search.clockwork import WINDOW_S, clockwork
from placement.search.effort import Effort
from placement.simulate import DEFAULT_MAX_BATCH, simulate
from placement.vary import Setting, unvaried, varied
from placement.workload import Workload

EVERYBODY: tuple[str, ...] = (*POLICIES, BOUND)
DEFAULT_STEPS = 150
DEFAULT_CVS = (1.0, 2.0, 4.0, 8.0)
FARTHEST = 1000.0
DEVICE_SHARES = (0.25, 0.5, 0.75, 1.0)

OnProgress = Callable[[float, str], None]
"""Told the share done and what is tried next."""

_Met = Callable[[Workload], Bools]
"""Which requests of a workload are answered within their SLO, [n]."""


def compare_policies(
    problem: Problem,
    *,
    policies: Sequence[str] = EVERYBODY,
    rates: Sequence[float] = (0.5, 0.75, 1.0, 1.25, 1.5),
    cvs: Sequence[float] | None = None,
    slo_scales: Sequence[float] = (0.5, 1.0, 2.0),
    devices: Sequence[int] | None = None,
    at: float = 0.99,
    steps: int = DEFAULT_STEPS,
    max_batch: int = DEFAULT_MAX_BATCH,
    window_s: float = WINDOW_S,
    held_out: Sequence[Workload] = (),
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Attainment of every policy over rate, CV, SLO scale and number of devices; () leaves an axis out.
    Where None: CVs of 1, 2, 4 and 8; a quarter, half, three quarters and all of the devices. The problem
    itself is always tried."""
    everything = len(problem.cluster.devices)
    if devices is None:
        devices = [max(round(everything * share), 1) for share in DEVICE_SHARES]
    if cvs is None:
        cvs = DEFAULT_CVS
    _check(policies, at, steps, (*rates, *cvs, *slo_scales))
    given: dict[Axis, Sequence[float]] = {
        "rate": rates,
        "cv": cvs,
        "slo_scale": slo_scales,
        "devices": devices,
    }
    own: dict[Axis, float] = {"rate": 1.0, "slo_scale": 1.0, "devices": everything}
    contest = _Contest(policies, steps, max_batch, window_s, seed)
    contest.leave_out_bound(problem)
    base = unvaried(problem, tuple(held_out), seed)
    others = [
        varied(base, axis, value, seed)
        for axis, values in given.items()
        for value in sorted(set(values) - {own.get(axis)})
    ]
    base_points: tuple[Point, ...] = ()
    points: list[Point] = []
    plans: dict[str, Plan] = {}
    for number, setting in enumerate([base, *others]):
        if on_progress is not None:
            on_progress(number / (1 + len(others)), f"{setting.axis} {setting.value:g}")
        found, chosen = contest.hold(setting)
        points += found
        if setting is base:
            base_points, plans = tuple(found), chosen
            points = [replace(p, axis=axis, value=own[axis]) for axis in own if given[axis] for p in found]
    points.sort(key=lambda p: (AXES.index(p.axis), p.value))
    inputs = {
        "devices": everything,
        "models": len(problem.models),
        "requests": len(problem.workload),
        "duration_s": problem.workload.duration,
        "objective": problem.objective,
        "held_out": len(base.held_out),
        "held_out_kind": "recordings handed in" if held_out else "draws made from the recording",
        "steps": steps,
        "max_batch": max_batch,
        "window_s": window_s,
        "seed": seed,
    }
    return Comparison(at, base_points, tuple(points), plans, inputs, tuple(contest.notes))


@dataclass(frozen=True)
class Limit:
    """Where attainment falls below what was asked: the hardest value found to hold (None: not even the
    easiest), the easiest found to fail beyond it (None: not even the hardest), and the attainment of every
    value tried."""

    holds: float | None
    fails: float | None
    tried: dict[float, float]


def find_limit(
    attainment: Callable[[float], float],
    easiest: float,
    hardest: float,
    at: float = 0.99,
    precision: float = 0.02,
    beyond: Sequence[float] = (),
) -> Limit:
    """Bisect between two positive values, either of them the larger, to a ratio of at most 1 + `precision`.

    This is right where attainment falls once on the way. Nothing promises that: each value has a plan of
    its own, and a search may do better on the harder problem. Then this is a place where it falls, not the
    last one, nor the first. `beyond` guards against giving up early: so many times harder values (1.4, say)
    are tried too, the hardest first, and bisection goes on from one that holds.
    """
    assert min(easiest, hardest, precision) > 0
    tried: dict[float, float] = {}

    def holds(value: float) -> bool:
        if value not in tried:
            tried[value] = attainment(value)
        return tried[value] >= at

    def harder(value: float, than: float) -> bool:
        return value > than if hardest > easiest else value < than

    def bisect(good: float) -> tuple[float, float]:
        failed = [value for value in tried if harder(value, good) and not holds(value)]
        bad = min(failed) if hardest > easiest else max(failed)
        while max(good / bad, bad / good) > 1 + precision:
            middle = math.sqrt(good * bad)
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return good, bad

    if not holds(easiest):
        return Limit(None, easiest, tried)
    if holds(hardest):
        return Limit(hardest, None, tried)
    good, bad = bisect(easiest)
    for factor in sorted(beyond, reverse=True):
        value = good * factor if hardest > easiest else good / factor
        if harder(value, bad) and harder(hardest, value) and holds(value):
            good, bad = bisect(value)
            break
    return Limit(good, bad, tried)


@dataclass
class _Contest:
    """Plans and scores the policies at one setting after the other."""

    policies: Sequence[str]
    steps: int
    max_batch: int
    window_s: float
    seed: int
    notes: list[str] = field(default_factory=list)

    def leave_out_bound(self, problem: Problem) -> None:
        """Where clockwork cannot serve the problem."""
        chat = next((model.name for model in problem.models if model.generates), None)
        if BOUND in self.policies and chat is not None:
            self.policies = [policy for policy in self.policies if policy != BOUND]
            self.notes.append(f"{BOUND} is left out: it plans one-pass models only, and {chat!r} generates")

    def hold(self, setting: Setting) -> tuple[list[Point], dict[str, Plan]]:
        """Every policy's points and plan."""
        points: list[Point] = []
        plans: dict[str, Plan] = {}
        for policy in POLICIES:
            if policy not in self.policies:
                continue
            effort = Effort(steps=self.steps)
            try:
                plan = make_plan(setting.problem, policy, max_batch=self.max_batch, effort=effort, seed=self.seed)
            except InfeasibleError as error:
                self._note(f"{setting.axis} {setting.value:g}: no plan: {error}")
                points += [_point(setting, policy, rule, _serve_nobody) for rule in RULES]
                continue
            plans[policy] = plan
            points += [_point(setting, policy, rule, self._serve(setting.problem, plan, rule)) for rule in RULES]
        if BOUND in self.policies:
            points.append(_point(setting, BOUND, "shortest-queue", self._swap(setting.problem)))
        return points, plans

    def _serve(self, problem: Problem, plan: Plan, rule: Rule) -> _Met:
        return lambda workload: simulate(problem, plan, workload, rule, self.max_batch).met

    def _swap(self, problem: Problem) -> _Met:
        return lambda workload: clockwork(problem, workload, self.window_s).met

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _serve_nobody(workload: Workload) -> Bools:
    return np.zeros(len(workload), np.bool_)


def _point(setting: Setting, policy: str, rule: Rule, met: _Met) -> Point:
    models = setting.problem.models
    masks = [met(workload) for workload in setting.held_out]
    model = np.concatenate([workload.model for workload in setting.held_out])
    asked = np.bincount(model, minlength=len(models))
    served = np.bincount(model[np.concatenate(masks)], minlength=len(models))
    each = np.divide(served, asked, out=np.full(len(models), np.inf), where=asked > 0)
    worst = int(np.argmin(each))
    return Point(
        setting.axis,
        setting.value,
        policy,
        rule,
        attainment=float(np.mean([mask.mean() for mask in masks])),
        worst_model=(models[worst].name, float(each[worst])),
        planned=float(met(setting.problem.workload).mean()),
    )


def _check(policies: Sequence[str], at: float, steps: int, values: Sequence[float]) -> None:
    unknown = next((policy for policy in policies if policy not in EVERYBODY), None)
    if unknown is not None or not policies:
        raise InputError(f"policy {unknown or ''!r} is unknown; give one of {', '.join(EVERYBODY)}")
    if not 0 < at <= 1:
        raise InputError(f"attainment {at:g}; it must be above 0 and at most 1")
    if steps < 1:
        raise InputError(f"{steps} steps; at least 1 is needed")
    wrong = next((value for value in values if not 1 / FARTHEST <= value <= FARTHEST), None)
    if wrong is not None:
        raise InputError(f"rates, CVs and SLO scales lie between {1 / FARTHEST:g} and {FARTHEST:g}, not {wrong:g}")
