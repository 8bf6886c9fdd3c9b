"""Profiles of a configuration's models: measured on the devices here, or found in the cache; scaled for shapes that
need more devices than are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from placement.errors import InfeasibleError, InputError
from serving.config import ModelEntry, ServeConfig
from serving.models import ModelConfig, read_config, why_no_graphs
from serving.models.foreign_config import read_foreign_config
from serving.profiler.cache import Cache, model_digest
from serving.profiler.crew import start_crew
from serving.profiler.effort import FULL, Effort
from serving.profiler.foreign import ForeignJob, can_have, measure_foreign
from serving.profiler.measure import ModelJob, measure_models
from serving.profiler.present import Present, find_present, machine_facts, measured_shapes
from serving.profiler.results import MeasuredModel, ModelResult, ProfileResult, ShapeResult
from serving.profiler.scaling import analytic_dtype, kind_name, scaled_entries
from serving.worker.launcher import Launcher
from serving.worker.local_launcher import LocalLauncher

USUAL_INPUT_TOKENS = 128
"""Of one input of a one-pass model whose traffic does not say."""

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class Wanted:
    """A model on one kind of device."""

    entry: ModelEntry
    present: Present
    job: ModelJob | ForeignJob
    digests: tuple[str, ...]
    """Under which the cache may have it, the best first; measured now, it is kept under the last."""

    @property
    def digest(self) -> str:
        return self.digests[-1]


async def profile_models(
    config: ServeConfig,
    *,
    effort: Effort = FULL,
    cache: Cache | None = None,
    launcher: Launcher | None = None,
    on_progress: OnProgress = lambda share, note: None,
) -> ProfileResult:
    """Measure what the cache does not know. An InputError says which model or device cannot be measured, and why."""
    began = time.monotonic()
    cache = cache or Cache(None)
    kinds = find_present(config.cluster)
    here = [present for present in kinds if present.count]
    if not here:
        names = ", ".join(present.kind for present in kinds)
        raise InputError(f"cluster: this machine has no device of kind {names}; measure where they are")
    entries = _entries(config)
    wanted = [want(entry, present, effort) for entry in entries.values() for present in here]
    known = {one.digest: found for one in wanted if (found := _find(cache, one)) is not None}
    cached = set(known)
    for present in here:
        missing = {one.digest: one for one in wanted if one.present is present and one.digest not in known}
        if missing:
            known |= await _measure(missing, present, effort, launcher or LocalLauncher(), on_progress)
            for digest in missing:
                cache.keep(digest, known[digest])
    models = [
        _result(name, [one for one in wanted if one.entry is entry], known, cached) for name, entry in entries.items()
    ]
    absent = [present.kind for present in kinds if not present.count]
    return ProfileResult(models, absent, time.monotonic() - began)


def _entries(config: ServeConfig) -> dict[str, ModelEntry]:
    """By the name of the profile; models of one name must be of the same files."""
    found: dict[str, ModelEntry] = {}
    for entry in config.models:
        name = entry.profile or entry.name
        first = found.setdefault(name, entry)
        if _what_runs(first) != _what_runs(entry):
            raise InputError(f"models ({entry.name}): profile {name!r} is that of {first.name!r} too, of other files")
    return found


def _what_runs(entry: ModelEntry) -> tuple[object, ...]:
    return entry.path, entry.precision, entry.graphs, entry.foreign


def want(entry: ModelEntry, present: Present, effort: Effort) -> Wanted:
    where, path = f"models ({entry.name})", Path(entry.path)
    try:
        config = read_config(path) if entry.foreign is None else read_foreign_config(path)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if config.task != "generate" and isinstance(entry.slo, dict):
        raise InputError(f"{where}: slo has {sorted(entry.slo)}, but it answers in one pass; give one time")
    reason = why_no_graphs(config, present.device) if entry.graphs else None
    if reason is not None:
        raise InputError(f"{where}: {reason}")
    job = _job(entry, config, present)
    how: dict[str, Any] = {
        "precision": job.precision,
        "shapes": job.shapes,
        "memory": job.memory_bytes,
        "tokens": job.input_tokens,
        "machine": machine_facts(present.device),
    }
    if isinstance(job, ForeignJob):
        how["engine"] = job.engine
    elif job.graphs:
        how["graphs"] = True
    digests = (model_digest(path, effort=tried, **how) for tried in dict.fromkeys((FULL, effort)))
    return Wanted(entry, present, job, tuple(digests))


def _job(entry: ModelEntry, config: ModelConfig, present: Present) -> ModelJob | ForeignJob:
    shapes, tokens = tuple(measured_shapes(config.sizes, present.count)), _input_tokens(entry, config)
    what: dict[str, Any] = {"path": entry.path, "precision": entry.precision, "config": config}
    where: dict[str, Any] = {"memory_bytes": present.memory_bytes, "input_tokens": tokens}
    if entry.foreign is None:
        return ModelJob(**what, **where, shapes=shapes, graphs=entry.graphs)
    # What runs elsewhere has the shape it has; here it stands for one device.
    return ForeignJob(
        **what, **where, engine=entry.foreign, shapes=shapes if entry.foreign.is_ours_to_start else shapes[:1]
    )


def _input_tokens(entry: ModelEntry, config: ModelConfig) -> int:
    if config.task == "generate":
        return 0
    asked = entry.traffic.prompt_tokens if entry.traffic is not None else None
    return min(asked or USUAL_INPUT_TOKENS, config.max_positions)


def _find(cache: Cache, one: Wanted) -> MeasuredModel | None:
    return next((found for digest in one.digests if (found := cache.find(digest)) is not None), None)


async def _measure(
    missing: dict[str, Wanted], present: Present, effort: Effort, launcher: Launcher, on_progress: OnProgress
) -> dict[str, MeasuredModel]:
    own = {digest: one.job for digest, one in missing.items() if isinstance(one.job, ModelJob)}
    foreign = {digest: one.job for digest, one in missing.items() if isinstance(one.job, ForeignJob)}
    total = sum(shape.pp for job in own.values() for shape in job.shapes)
    total, done = total + sum(len(job.shapes) for job in foreign.values()), 0

    def tick() -> None:
        nonlocal done
        done += 1
        on_progress(done / total, f"{done} of {total} stages")

    on_progress(0.0, "starting")
    found: dict[str, MeasuredModel] = {}
    if own:
        async with start_crew(present.names, launcher) as crew:
            measured = await measure_models(crew, list(own.values()), effort, tick)
        found |= {digest: MeasuredModel(*one) for digest, one in zip(own, measured, strict=True)}
    for digest, job in foreign.items():
        try:
            found[digest] = await measure_foreign(job, present.names, effort, launcher, tick)
        except InputError as error:
            raise InputError(f"models ({missing[digest].entry.name}): {error}") from error
    return found


def _result(name: str, wanted: list[Wanted], known: dict[str, MeasuredModel], cached: set[str]) -> ModelResult:
    """A model over all kinds of device that are here."""
    shapes: list[ShapeResult] = []
    for one in wanted:
        measured, present = known[one.digest], one.present
        if not measured.shapes:
            need = f"no shape of up to {present.count} devices leaves room for it in {present.memory_bytes} bytes each"
            raise InfeasibleError(f"models ({one.entry.name}): {need}")
        is_wide = present.nodes > 1
        for shape in measured.shapes:
            span: Literal["node"] | None = "node" if is_wide and shape.entry.shape.devices > 1 else None
            entry = msgspec.structs.replace(shape.entry, kind=kind_name(present), span=span, source="measured")
            shapes.append(ShapeResult(entry, "measured", shape.error))
        sizes = msgspec.structs.replace(
            one.job.config.sizes,
            dtype=analytic_dtype(present, one.job.precision),
            sequence_length=max(one.job.input_tokens, 1),
        )
        entries = [shape.entry for shape in measured.shapes]
        scaled = [entry for entry in scaled_entries(sizes, entries, present) if can_have(one.job, entry)]
        shapes += [ShapeResult(msgspec.structs.replace(entry, source="scaled"), "scaled") for entry in scaled]
    first = wanted[0].job
    return ModelResult(
        name=name,
        task=first.config.task,
        input_tokens=first.input_tokens,
        shapes=sorted(shapes, key=lambda shape: (shape.entry.kind or "", shape.entry.shape.devices, shape.entry.tp)),
        is_cached=all(one.digest in cached for one in wanted),
        seconds=sum(known[one.digest].seconds for one in wanted),
    )
