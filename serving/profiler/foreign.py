"""Measures models on engines of others: through the group that would serve them, by when tokens come.

A step of such an engine cannot be seen, but its tokens can: those of a batch that decodes come together, a step apart,
and the step that takes in a prompt keeps those waiting who decode beside it. What a request costs beside its steps
(HTTP, links) is thus in no time that is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from placement.errors import InputError
from placement.profile import Generation, Shape, ShapeProfile, StepCost
from placement.units import Bytes
from serving.models import ModelConfig, stage_boundaries
from serving.profiler.effort import Effort
from serving.profiler.fit import fit_step_cost, relative_errors, summarise
from serving.profiler.measure import ModelJob
from serving.profiler.points import StepPoint
from serving.profiler.results import MeasuredModel, MeasuredShape
from serving.sampling import SamplingParams
from serving.worker.foreign import EngineConfig
from serving.worker.group import Group, GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.launcher import Launcher
from serving.worker.messages import ModelSpec

GAPS = 12
"""Between tokens of a batch, for one measurement of its step."""
LEAD = 8
"""Tokens of one that decodes before a prompt is set beside it, and after."""
BESIDE = 3
"""Prompts, one after the other, for one measurement of such a step."""
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = (16, 48, 128, 384, 1024)
PROMPTS = (8, 24, 64, 160, 384, 512)
INPUTS = (1, 2, 4, 8)
"""Batches of a one-pass model."""
CACHE_SHARE = 0.5
"""Of a device's memory, what the engine's cache may take while it is measured."""
CACHED_TIMES = 4
"""Cached tokens of a batch, in longest sequences."""
SETTLED = 0.05
"""Rounds go on until the two shortest times of the points differ by no more than this: where others come and go on the
machine, each point must have met it undisturbed..."""
MOST_ROUNDS = 15
LONGEST_S = 240.0
"""... but not for ever."""
MOST_TOKENS = 256
"""Of one that decodes, where others do not begin before it has ended."""
LEAST_S = 1e-6
KIND = "engine"


@dataclass(frozen=True)
class ForeignJob:
    """A model to measure on its engine."""

    path: str
    precision: str
    config: ModelConfig
    engine: EngineConfig
    shapes: tuple[Shape, ...]
    memory_bytes: int
    input_tokens: int


@dataclass(frozen=True)
class Judged:
    """A step that was kept back to judge the fit by."""

    point: StepPoint
    measured_s: float
    predicted_s: float


OnJudged = Callable[[Judged], None]


def can_have(job: ModelJob | ForeignJob, entry: ShapeProfile) -> bool:
    """Whether a model may have a shape that was not measured: an engine of others is started on one node, and what runs
    elsewhere stands for one device."""
    return isinstance(job, ModelJob) or (job.engine.is_ours_to_start and entry.span != "cluster")


async def measure_foreign(
    job: ForeignJob,
    devices: list[str],
    effort: Effort,
    launcher: Launcher,
    tick: Callable[[], None],
    on_judged: OnJudged = lambda judged: None,
) -> MeasuredModel:
    """Every shape on which the engine starts; an InputError if it does on none."""
    began, shapes, reason = time.monotonic(), list[MeasuredShape](), ""
    for shape in job.shapes:
        try:
            shapes.append(await _measure_shape(job, shape, devices[: shape.devices], effort, launcher, on_judged))
        except (GroupLost, RequestFailed, InputError) as error:
            reason = reason or str(error)
        tick()
    if not shapes:
        raise InputError(f"its engine cannot be measured: {reason}")
    return MeasuredModel(shapes, time.monotonic() - began)


async def _measure_shape(
    job: ForeignJob, shape: Shape, devices: list[str], effort: Effort, launcher: Launcher, on_judged: OnJudged
) -> MeasuredShape:
    name = f"measuring-{shape.tp}-{shape.pp}"
    spec = GroupSpec(name=name, devices=tuple(devices), tp=shape.tp, pp=shape.pp, foreign=True)
    group = await start_group(spec, launcher)
    try:
        cache = int(job.memory_bytes * CACHE_SHARE)
        model = ModelSpec(name=KIND, path=job.path, precision=job.precision, kv_bytes=cache, engine=job.engine)
        await group.load(model)
        meter = _Meter(group, job.config, cache // int(_token_bytes(job, shape)) if _generates(job) else 0)
        await meter.warm_up(job.input_tokens)
        wake_s = await _wake_s(group, job.engine)
        if not _generates(job):
            return MeasuredShape(await _one_pass(meter, job, shape, effort, wake_s))
        return await _generating(meter, job, shape, effort, wake_s, on_judged)
    finally:
        await group.stop()


async def _wake_s(group: Group, engine: EngineConfig) -> float | None:
    """How long it takes to be back from sleep; None where it never sleeps."""
    if not engine.is_ours_to_start:
        return None
    await group.suspend(KIND)
    began = time.monotonic()
    await group.resume(KIND)
    return time.monotonic() - began


async def _generating(
    meter: _Meter, job: ForeignJob, shape: Shape, effort: Effort, wake_s: float | None, on_judged: OnJudged
) -> MeasuredShape:
    points = meter.points(effort)
    times: dict[StepPoint, list[float]] = {point: [] for point in points}
    deadline = time.monotonic() + LONGEST_S
    for number in range(MOST_ROUNDS):
        if number >= effort.least_rounds and (_are_settled(times) or time.monotonic() > deadline):
            break
        for point in points:
            times[point].append(await meter.step_s(point))
    seconds = {point: _undisturbed(taken) for point, taken in times.items()}
    # Every third is kept back to judge the fit by.
    fitted = [point for place, point in enumerate(points) if place % 3 != 1]
    judged = [point for place, point in enumerate(points) if place % 3 == 1]
    cost = fit_step_cost([point.load for point in fitted], [seconds[point] for point in fitted])
    errors = relative_errors(cost, [point.load for point in judged], [seconds[point] for point in judged])
    for point in judged:
        on_judged(Judged(point, seconds[point], cost.seconds(*point.load)))
    generation = Generation(_stages(cost, shape.pp), (_token_bytes(job, shape),) * shape.pp)
    entry = ShapeProfile(
        shape.tp, shape.pp, (_weight_bytes(job, shape),) * shape.pp, generation=generation, wake=wake_s
    )
    return MeasuredShape(entry, summarise(errors.tolist()))


async def _one_pass(meter: _Meter, job: ForeignJob, shape: Shape, effort: Effort, wake_s: float | None) -> ShapeProfile:
    latency = {}
    for inputs in INPUTS:
        taken = [await meter.pass_s(inputs, job.input_tokens) for _ in range(effort.least_rounds)]
        latency[inputs] = (_undisturbed(taken) / shape.pp,) * shape.pp
    return ShapeProfile(shape.tp, shape.pp, (_weight_bytes(job, shape),) * shape.pp, latency, wake=wake_s)


class _Meter:
    """Asks a group that nobody else asks."""

    def __init__(self, group: Group, config: ModelConfig, capacity: int) -> None:
        self._group, self._config, self._capacity = group, config, capacity
        self._most_tokens = min(MOST_TOKENS, config.max_positions // 4)
        self._random = np.random.default_rng(0)
        self._numbers = count()

    async def warm_up(self, input_tokens: int) -> None:
        if input_tokens:
            await self.pass_s(1, input_tokens)
            return
        await self.step_s(StepPoint(cached=(16,) * 4))
        await self.step_s(StepPoint(cached=(64,), chunks=((0, 8),)))

    def points(self, effort: Effort) -> list[StepPoint]:
        """What is cached must first be computed: not more of it than the effort allows."""
        room = min(self._config.max_positions - GAPS - 2 * BATCHES[-1], effort.most_context)
        lengths = [length for length in LENGTHS if length <= room] or [max(1, room // 2)]
        capacity = min(self._capacity, CACHED_TIMES * effort.most_context)
        decoding = [
            StepPoint(cached=(length,) * batch)
            for length in lengths
            for batch in BATCHES
            if batch * (length + GAPS) <= capacity
        ]
        prompts = [StepPoint((lengths[len(lengths) // 2],), ((0, length),)) for length in PROMPTS if length <= room]
        return decoding + prompts

    async def step_s(self, point: StepPoint) -> float:
        return max(await (self._prompt_s(point) if point.chunks else self._decoding_s(point)), LEAST_S)

    async def _decoding_s(self, point: StepPoint) -> float:
        """They do not begin together: the first decode some steps before the last does."""
        tokens = GAPS + len(point.cached)
        while True:
            found = await asyncio.gather(*(self._times(cached - tokens // 2, tokens) for cached in point.cached))
            # Where all decode: from the last one's first token to the first one's last.
            begin, end = max(times[0] for times in found), min(times[-1] for times in found)
            within = [moment for moment in found[0] if begin <= moment <= end]
            if len(within) > GAPS // 2 or tokens >= self._most_tokens:
                return float(np.median(np.diff(within if len(within) > 1 else found[0])))
            tokens *= 2

    async def _prompt_s(self, point: StepPoint) -> float:
        """What the prompt's step keeps one waiting who decodes."""
        tokens = 2 * LEAD * (BESIDE + 1)
        while True:
            began = asyncio.Event()

            async def beside(began: asyncio.Event = began) -> list[float]:
                await began.wait()
                return [(await self._times(point.chunks[0][1], 1))[0] for _ in range(BESIDE)]

            times, firsts = await asyncio.gather(self._times(point.cached[0] - tokens // 2, tokens, began), beside())
            if firsts[-1] < times[-1] or tokens >= self._most_tokens:
                ends = [min(range(1, len(times)), key=lambda end: abs(times[end] - first)) for first in firsts]
                return float(np.median([times[end] - times[end - 1] for end in ends]))
            tokens *= 2

    async def pass_s(self, inputs: int, tokens: int) -> float:
        began = time.perf_counter()
        await self._group.infer(self._name(), KIND, [self._tokens(tokens) for _ in range(inputs)])
        return time.perf_counter() - began

    async def _times(self, prompt: int, tokens: int, began: asyncio.Event | None = None) -> list[float]:
        """When each token came; `began` is set after some."""
        prompt = min(prompt, self._config.max_positions - tokens - 1)
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        stream = self._group.generate(self._name(), KIND, self._tokens(prompt), params)
        times = []
        try:
            async with aclosing(stream):
                async for _ in stream:
                    times.append(time.perf_counter())
                    if began is not None and len(times) == LEAD:
                        began.set()
        finally:
            if began is not None:
                began.set()
        return times

    def _tokens(self, number: int) -> list[int]:
        """Others each time: nothing of them may be in a cache."""
        tokens: list[int] = self._random.integers(0, self._config.sizes.vocabulary, max(number, 1)).tolist()
        return tokens

    def _name(self) -> str:
        return f"measure-{next(self._numbers)}"


def _undisturbed(taken: list[float]) -> float:
    """Others on the machine only ever make a step longer."""
    return float(np.mean(sorted(taken)[:2]))


def _are_settled(times: dict[StepPoint, list[float]]) -> bool:
    shortest = np.array([sorted(taken)[:2] for taken in times.values()])
    return bool(np.mean(shortest[:, 1] / shortest[:, 0] - 1) <= SETTLED)


def _stages(cost: StepCost, pp: int) -> tuple[StepCost, ...]:
    """The engine's pipeline is a box to us: its stages are taken to be equal."""
    return (cost.times(1 / pp),) * pp


def _generates(job: ForeignJob) -> bool:
    return job.config.task == "generate"


def _value_bytes(job: ForeignJob) -> int:
    return 4 if job.precision == "fp32" else 2


def _token_bytes(job: ForeignJob, shape: Shape) -> float:
    sizes = job.config.sizes
    cuts = stage_boundaries(sizes, shape.tp, shape.pp)
    layers = max(after - before for before, after in pairwise(cuts))
    return float(2 * layers * sizes.kv_heads_per_device(shape.tp) * sizes.head_size * _value_bytes(job))


def _weight_bytes(job: ForeignJob, shape: Shape) -> Bytes:
    files = sum(path.stat().st_size for path in Path(job.path).glob("*.safetensors"))
    return Bytes(int(files / shape.devices))
