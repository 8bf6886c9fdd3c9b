"""Measures models on engines of others: through the group that would serve them, by when tokens come.

A step of such an engine cannot be seen, but its tokens can: those of a batch that decodes come together, a step apart;
the first token of a prompt comes after one step of its length. What a request costs beside its steps (HTTP, links) is
the same for all and taken off.
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
from serving.profiler.measure import UNDISTURBED
from serving.profiler.points import StepPoint
from serving.profiler.results import MeasuredModel, MeasuredShape
from serving.sampling import SamplingParams
from serving.worker.foreign import EngineConfig
from serving.worker.group import Group, GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.launcher import Launcher
from serving.worker.messages import ModelSpec

GAPS = 12
"""Between tokens of a batch, for one measurement of its step."""
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = (16, 48, 128, 384, 1024)
PROMPTS = (8, 24, 64, 160, 384, 512)
INPUTS = (1, 2, 4, 8)
"""Batches of a one-pass model."""
CACHE_SHARE = 0.5
"""Of a device's memory, what the engine's cache may take while it is measured."""
CACHED_TIMES = 4
"""Cached tokens of a batch, in longest sequences."""
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


async def measure_foreign(
    job: ForeignJob, devices: list[str], effort: Effort, launcher: Launcher, tick: Callable[[], None]
) -> MeasuredModel:
    """Every shape on which the engine starts; an InputError if it does on none."""
    began, shapes, reason = time.monotonic(), list[MeasuredShape](), ""
    for shape in job.shapes:
        try:
            shapes.append(await _measure_shape(job, shape, devices[: shape.devices], effort, launcher))
        except (GroupLost, RequestFailed, InputError) as error:
            reason = reason or str(error)
        tick()
    if not shapes:
        raise InputError(f"its engine cannot be measured: {reason}")
    return MeasuredModel(shapes, time.monotonic() - began)


async def _measure_shape(
    job: ForeignJob, shape: Shape, devices: list[str], effort: Effort, launcher: Launcher
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
        return await _generating(meter, job, shape, effort, wake_s)
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
    meter: _Meter, job: ForeignJob, shape: Shape, effort: Effort, wake_s: float | None
) -> MeasuredShape:
    points = meter.points(effort)
    times: dict[StepPoint, list[float]] = {point: [] for point in points}
    for _ in range(effort.least_rounds):
        for point in points:
            times[point].append(await meter.step_s(point))
    beside_s = _beside_s(times)
    seconds = {
        point: max(_undisturbed(taken) - (beside_s if point.chunks else 0.0), 1e-6) for point, taken in times.items()
    }
    # Every third is kept back to judge the fit by.
    fitted = [point for place, point in enumerate(points) if place % 3 != 1]
    judged = [point for place, point in enumerate(points) if place % 3 == 1]
    cost = fit_step_cost([point.load for point in fitted], [seconds[point] for point in fitted])
    errors = relative_errors(cost, [point.load for point in judged], [seconds[point] for point in judged])
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
        self._random = np.random.default_rng(0)
        self._numbers = count()

    async def warm_up(self, input_tokens: int) -> None:
        if input_tokens:
            await self.pass_s(1, input_tokens)
            return
        await self.step_s(StepPoint(chunks=((0, 8),)))
        await self.step_s(StepPoint(cached=(16,) * 4))

    def points(self, effort: Effort) -> list[StepPoint]:
        """What is cached must first be computed: not more of it than the effort allows."""
        room = min(self._config.max_positions - GAPS - 2, effort.most_context)
        lengths = [length for length in LENGTHS if length <= room] or [max(1, room // 2)]
        capacity = min(self._capacity, CACHED_TIMES * effort.most_context)
        decoding = [
            StepPoint(cached=(length,) * batch)
            for length in lengths
            for batch in BATCHES
            if batch * (length + GAPS) <= capacity
        ]
        prompts = [StepPoint(chunks=((0, length),)) for length in PROMPTS if length <= room]
        return decoding + prompts

    async def step_s(self, point: StepPoint) -> float:
        if point.chunks:
            began = time.perf_counter()
            return (await self._times(point.chunks[0][1], 1))[0] - began
        found = await asyncio.gather(*(self._times(tokens - GAPS // 2, GAPS) for tokens in point.cached))
        # Where all decode: from the last one's first token to the first one's last.
        begin, end = max(times[0] for times in found), min(times[-1] for times in found)
        within = [moment for moment in found[0] if begin <= moment <= end]
        if len(within) < 3:
            within = found[0]
        return float(np.median(np.diff(within)))

    async def pass_s(self, inputs: int, tokens: int) -> float:
        began = time.perf_counter()
        await self._group.infer(self._name(), KIND, [self._tokens(tokens) for _ in range(inputs)])
        return time.perf_counter() - began

    async def _times(self, prompt: int, tokens: int) -> list[float]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        stream = self._group.generate(self._name(), KIND, self._tokens(prompt), params)
        async with aclosing(stream):
            return [time.perf_counter() async for _ in stream]

    def _tokens(self, number: int) -> list[int]:
        """Others each time: nothing of them may be in a cache."""
        tokens: list[int] = self._random.integers(0, self._config.sizes.vocabulary, max(number, 1)).tolist()
        return tokens

    def _name(self) -> str:
        return f"measure-{next(self._numbers)}"


def _beside_s(times: dict[StepPoint, list[float]]) -> float:
    """What the shortest prompt takes beyond a step that decodes as little."""
    prompt = min((point for point in times if point.chunks), key=lambda point: point.chunks[0][1])
    token = min((point for point in times if point.cached), key=lambda point: (len(point.cached), point.cached))
    return max(0.0, _undisturbed(times[prompt]) - _undisturbed(times[token]))


def _undisturbed(taken: list[float]) -> float:
    return float(np.quantile(taken, UNDISTURBED))


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
