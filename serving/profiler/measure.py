"""Measures stages on a crew: every stage of every shape of some models, as many at a time as there are devices, since
in service all devices are busy too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from placement.profile import Generation, Shape, ShapeProfile, StepCost
from placement.units import Bytes
from serving.models import ModelConfig
from serving.profiler.crew import Crew, Measuring, all_of, ask_all
from serving.profiler.effort import Effort
from serving.profiler.fit import fit_step_cost, relative_errors, summarise
from serving.profiler.messages import Follow, Loaded, LoadStage, MeasureOrder, Timed, TimeSteps
from serving.profiler.points import BATCHES, BatchPoint, Point, Room, choose_steps, corner_steps
from serving.profiler.results import MeasuredShape

UNDISTURBED = 0.25
"""Of the times of a step, the quantile that counts: others on the machine only ever make a step longer."""


@dataclass(frozen=True)
class ModelJob:
    """A model to measure."""

    path: str
    precision: str
    config: ModelConfig
    shapes: tuple[Shape, ...]
    memory_bytes: int
    input_tokens: int
    """Of each input of a batch."""
    graphs: bool = False


@dataclass(frozen=True)
class _Task:
    job: int
    shape: Shape
    stage: int


@dataclass(frozen=True)
class _StageResult:
    loaded: Loaded
    latency: dict[int, float]
    cost: StepCost | None
    errors: tuple[float, ...]
    seconds: float


OnStage = Callable[[], None]


async def measure_models(
    crew: Crew, jobs: list[ModelJob], effort: Effort, on_stage: OnStage = lambda: None
) -> list[tuple[list[MeasuredShape], float]]:
    """For each job its shapes that fit, and the seconds that measuring them took."""
    tasks = [
        _Task(number, shape, stage)
        for number, job in enumerate(jobs)
        for shape in job.shapes
        for stage in range(shape.pp)
    ]
    found: dict[_Task, _StageResult | None] = {}
    for tp in sorted({task.shape.tp for task in tasks}):
        waiting = deque(task for task in tasks if task.shape.tp == tp)

        async def work(team: list[Measuring], waiting: deque[_Task] = waiting) -> None:
            await crew.join(team)
            while waiting:
                task = waiting.popleft()
                found[task] = await _measure_stage(team, jobs[task.job], task, effort)
                on_stage()

        await all_of(work(team) for team in crew.teams(tp))
    return [_assemble(number, job, found) for number, job in enumerate(jobs)]


async def _measure_stage(team: list[Measuring], job: ModelJob, task: _Task, effort: Effort) -> _StageResult | None:
    """None where the stage does not fit its devices."""
    began = asyncio.get_running_loop().time()
    order = LoadStage(
        path=job.path,
        precision=job.precision,
        tp=task.shape.tp,
        pp=task.shape.pp,
        stage=task.stage,
        memory_bytes=job.memory_bytes,
        most_tokens=job.input_tokens * BATCHES[-1] or effort.most_sequences * effort.most_context,
        graphs=job.graphs,
    )
    loaded, *_ = await ask_all((one, order) for one in team)
    assert isinstance(loaded, Loaded)
    if not loaded.fits:
        return None
    latency: dict[int, float] = {}
    cost: StepCost | None = None
    errors: tuple[float, ...] = ()
    if job.config.task == "generate":
        cost, errors = await _fit(team, job, loaded, effort)
    else:
        batches = [BatchPoint(size, job.input_tokens) for size in BATCHES]
        times = await _time(team, batches, effort)
        latency = dict(zip(BATCHES, times, strict=True))
    seconds = asyncio.get_running_loop().time() - began
    return _StageResult(loaded, latency, cost, errors, seconds)


async def _fit(
    team: list[Measuring], job: ModelJob, loaded: Loaded, effort: Effort
) -> tuple[StepCost, tuple[float, ...]]:
    """The costs, and the relative errors on the steps held out."""
    room = Room(
        longest=min(job.config.max_positions, effort.most_context, loaded.cache_tokens),
        capacity=loaded.cache_tokens,
        most_sequences=effort.most_sequences,
    )
    fitted = corner_steps(room) + choose_steps(effort.steps, room, seed=1)
    held_out = choose_steps(effort.held_out, room, seed=2)
    times = await _time(team, [*fitted, *held_out], effort)
    cost = fit_step_cost([step.load for step in fitted], times[: len(fitted)], job.config.sizes.expert_share)
    errors = relative_errors(cost, [step.load for step in held_out], times[len(fitted) :])
    return cost, tuple(errors.tolist())


async def _time(team: list[Measuring], points: Iterable[Point], effort: Effort) -> list[float]:
    first = TimeSteps(list(points), effort.least_rounds, effort.most_rounds, effort.budget_s)
    orders: list[MeasureOrder] = [first, *(Follow() for _ in team[1:])]
    timed, *_ = await ask_all(zip(team, orders, strict=True))
    assert isinstance(timed, Timed)
    quantile: list[float] = np.quantile(np.array(timed.seconds), UNDISTURBED, axis=0).tolist()
    return quantile


def _assemble(number: int, job: ModelJob, found: dict[_Task, _StageResult | None]) -> tuple[list[MeasuredShape], float]:
    shapes, seconds = [], 0.0
    for shape in job.shapes:
        stages = [found[_Task(number, shape, stage)] for stage in range(shape.pp)]
        whole = [stage for stage in stages if stage is not None]
        seconds += sum(stage.seconds for stage in whole)
        if len(whole) == shape.pp:
            shapes.append(_shape(shape, whole))
    return shapes, seconds


def _shape(shape: Shape, stages: list[_StageResult]) -> MeasuredShape:
    costs = tuple(stage.cost for stage in stages if stage.cost is not None)
    generation = None
    if costs:
        kv_bytes = tuple(float(stage.loaded.kv_bytes_per_token) for stage in stages)
        generation = Generation(stages=costs, kv_bytes_per_token=kv_bytes)
    memory = (stage.loaded.weight_bytes + stage.loaded.workspace_bytes for stage in stages)
    entry = ShapeProfile(
        tp=shape.tp,
        pp=shape.pp,
        stage_memory=tuple(Bytes(amount) for amount in memory),
        stage_latency={size: tuple(stage.latency[size] for stage in stages) for size in stages[0].latency},
        generation=generation,
    )
    errors = [error for stage in stages for error in stage.errors]
    return MeasuredShape(entry, summarise(errors) if errors else None)
