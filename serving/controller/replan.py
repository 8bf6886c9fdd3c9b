"""Looks whether the plan still fits the traffic, and searches a better one when it does not.

The search runs in a process of its own, with the lowest priority: `penstock plan` on a problem written for it. A plan
is replaced only when the gain it promises on the traffic seen exceeds a threshold, and each replica moved costs
something, so that nothing flaps.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from placement.errors import InputError
from placement.files import read_document, write_json
from placement.plan import Plan, write_plan
from placement.problem import Problem, Slo
from placement.workload import Workload
from router import Arrival
from serving.config import ReplanConfig
from serving.controller.controller import Controller
from serving.controller.expert_files import with_experts_of
from serving.controller.steady import steadily
from serving.worker.scratch import Scratch

WELL_SERVED = 0.999
"""Attainment at which no search is worth its while, if every model has its target."""
MOVE_COST = 0.002
"""Attainment that a replica moved must bring."""
LEAST_REQUESTS = 3
"""For each model, in the traffic that is planned for."""
URGENT_S = 3.0
"""What a search may take while devices are missing."""
_SLACK_S = 120.0
"""A search takes its budget, and some time to start and compile."""


@dataclass(frozen=True)
class Judged:
    """A plan on the traffic seen: how far models are below target (weighted), and the attainment of all."""

    shortfall: float
    attainment: float

    @property
    def worth(self) -> float:
        return self.attainment - self.shortfall


@dataclass(frozen=True)
class Suggestion:
    plan: Plan
    instead_of: Plan
    at: float
    """Unix seconds."""
    requests: int
    now: Judged
    then: Judged


@dataclass(frozen=True)
class Looked:
    """What the last look came to."""

    at: float
    """Unix seconds."""
    why: str


class Replanner:
    def __init__(self, controller: Controller, settings: ReplanConfig) -> None:
        self._controller, self._settings = controller, settings
        self._suggestion: Suggestion | None = None
        self._looking = asyncio.Lock()
        self.looked: Looked | None = None

    @property
    def mode(self) -> str:
        return self._settings.mode

    @property
    def is_looking(self) -> bool:
        return self._looking.locked()

    @property
    def suggestion(self) -> Suggestion | None:
        """None as well when another plan is in force by now."""
        one = self._suggestion
        return one if one is not None and one.instead_of is self._controller.in_force.plan else None

    async def run(self) -> None:
        """For ever; a search that fails is noted, and tried again at the next look."""
        if self._settings.mode != "off":
            await steadily(float(self._settings.every), self.look, self._controller.journal, "replan")

    async def look(self) -> None:
        """At the traffic of the window: is another plan worth a change?"""
        async with self._looking:
            self.looked = Looked(time.time(), await self._look())

    async def _look(self) -> str:
        """What came of it, for people."""
        controller, settings = self._controller, self._settings
        plan = controller.in_force.plan
        problem = self._problem_seen()
        if problem is None:
            return f"fewer than {settings.requests} requests came within {settings.window:g} s: too little to plan for"
        with Scratch() as folder:
            _write(folder, problem, plan)
            now = await _judge(folder, problem, settings.budget, "--plan", "plan.json", *self._rule)
            if now.shortfall == 0 and now.attainment >= WELL_SERVED:
                self._suggestion = None
                return f"the plan in force serves {now.attainment:.2%} of the traffic in time: nothing to improve"
            await _penstock(
                folder,
                settings.budget,
                *("plan", "problem.json", "--previous", "plan.json", "--move-cost", str(MOVE_COST)),
                *("--budget", f"{settings.budget:g}s", "--out", "better.json", *self._rule),
            )
            then = await _judge(folder, problem, settings.budget, "--plan", "better.json", *self._rule)
            better = with_experts_of(plan, read_document(folder / "better.json", Plan))
        if then.worth - now.worth < settings.gain or better.groups == plan.groups:
            self._suggestion = None
            return "no plan was found that is enough better to be worth a change"
        self._suggestion = Suggestion(better, plan, time.time(), len(problem.workload), now, then)
        controller.journal.note("replan", "replan", "found better", now=now.worth, then=then.worth)
        if settings.mode == "apply" and controller.in_force.plan is plan:
            await controller.apply(better, f"traffic drifted: {now.worth:.4f} becomes {then.worth:.4f}")
            self._suggestion = None
            return "a better plan was found and applied"
        return "a better plan was found"

    async def rehearse(self) -> None:
        """Let all be compiled that `plan_anew` needs, in no hurry."""
        controller = self._controller
        with Scratch() as folder:
            _write(folder, controller.problem, controller.in_force.plan)
            arguments = ("plan", "problem.json", "--steps", "1", "--out", "better.json", *self._rule)
            await _penstock(folder, _SLACK_S, *arguments)

    async def plan_anew(self, why: str) -> None:
        """For the devices that are there now, with what is known of the traffic, and at once."""
        controller, settings = self._controller, self._settings
        plan = controller.in_force.plan
        previous = ("--previous", "plan.json", "--move-cost", str(MOVE_COST)) if plan.groups else ()
        budget_s = min(settings.budget, URGENT_S)
        with Scratch() as folder:
            _write(folder, self._problem_seen() or controller.problem, plan)
            arguments = ("plan", "problem.json", *previous, "--budget", f"{budget_s:g}s", "--out", "better.json")
            await _penstock(folder, budget_s, *arguments, *self._rule, nice=0)
            found = with_experts_of(plan, read_document(folder / "better.json", Plan))
        await controller.apply(found, why)

    def told(self) -> dict[str, Any] | None:
        one = self.suggestion
        if one is None:
            return None
        return {
            "plan": msgspec.to_builtins(one.plan),
            "at": one.at,
            "requests": one.requests,
            "now": vars(one.now),
            "then": vars(one.then),
        }

    @property
    def _rule(self) -> tuple[str, str]:
        """By which the router dispatches."""
        return "--dispatch", self._controller.router.settings.dispatch

    def _problem_seen(self) -> Problem | None:
        """The problem with the traffic of the window; None while too little has come."""
        controller, settings = self._controller, self._settings
        since = time.monotonic() - settings.window
        arrivals = controller.router.statistics.arrivals(since)
        if len(arrivals) < settings.requests:
            return None
        index = {model.name: number for number, model in enumerate(controller.problem.models)}
        arrivals = sorted([*arrivals, *_pinch(arrivals, index)])
        mean = {name: controller.router.usual_output(name) for name in index}
        produced = [min(one.max_tokens, mean[one.model]) or 1 for one in arrivals]
        workload = Workload(
            np.array([one.at for one in arrivals]) - arrivals[0].at,
            np.array([index[one.model] for one in arrivals], np.int32),
            np.array([one.tokens for one in arrivals], np.int32),
            np.array(produced, np.float64).round().astype(np.int32),
        )
        return replace(controller.problem, workload=workload)


def _pinch(arrivals: list[Arrival], models: Iterable[str]) -> list[Arrival]:
    """A few requests for each model that nobody asked for: a plan must still hold it."""
    seen = {one.model for one in arrivals}
    first, last = arrivals[0].at, arrivals[-1].at
    times = np.linspace(first, last, LEAST_REQUESTS).tolist()
    return [Arrival(at, model, 1, 1) for model in models if model not in seen for at in times]


def _write(folder: Path, problem: Problem, plan: Plan) -> None:
    """The problem and the plan as files, for the commands that read them."""
    workload = problem.workload
    tokens = {"prompt_tokens": workload.prompt_tokens, "output_tokens": workload.output_tokens}
    arrays: dict[str, Any] = {name: column for name, column in tokens.items() if column is not None}
    np.savez(folder / "seen.npz", arrival=workload.arrival, model=workload.model, **arrays)
    write_json(folder / "profiles.json", {model.name: model.profile for model in problem.models})
    models = [
        {"name": one.name, "slo": _slo(one.slo), "target": one.target, "weight": one.weight, "alone": one.alone}
        for one in problem.models
    ]
    document = {
        "cluster": problem.cluster,
        "models": models,
        "profiles": "profiles.json",
        "workload": "seen.npz",
        "overhead": problem.overhead,
        "objective": problem.objective,
    }
    write_json(folder / "problem.json", document)
    write_plan(folder / "plan.json", plan)


def _slo(slo: Slo) -> float | dict[str, float]:
    if math.isfinite(slo.end_to_end):
        return float(slo.end_to_end)
    return {name: value for name, value in (("ttft", slo.ttft), ("tpot", slo.tpot)) if math.isfinite(value)}


async def _judge(folder: Path, problem: Problem, budget_s: float, *arguments: str) -> Judged:
    found = await _penstock(folder, budget_s, "simulate", "problem.json", *arguments)
    total = sum(model.weight for model in problem.models)
    reached = {name: one["attainment"] for name, one in found["models"].items()}
    short = sum(
        model.weight * max(model.target - reached[model.name], 0.0)
        for model in problem.models
        if problem.objective == "target" and reached.get(model.name) is not None
    )
    return Judged(short / total, found["attainment"])


async def _penstock(folder: Path, budget_s: float, *arguments: str, nice: int = 19) -> dict[str, Any]:
    """One of our own commands with --json, in the folder; an InputError with its last line when it fails."""
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", str(nice), sys.executable, "-P", "-m", "serving.cli", *arguments, "--json"),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(budget_s + _SLACK_S):  # wait_for would lose a cancellation that comes with the end
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = err.decode(errors="replace").strip().splitlines()
        raise InputError(f"penstock {arguments[0]} ended with {process.returncode}: {lines[-1] if lines else ''}")
    found: dict[str, Any] = msgspec.json.decode(out)
    return found
