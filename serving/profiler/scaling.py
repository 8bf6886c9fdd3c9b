"""Shapes beyond the devices present: the analytic model says how a measured model's costs divide over more devices.

Only its proportions are used: a cost of a stage is what was measured on the nearest shape, times the analytic cost
there over the analytic cost on that shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from placement.costs.analytic import analytic_profile
from placement.costs.hardware import KINDS, DeviceKind, Dtype
from placement.costs.transformer import TransformerConfig
from placement.errors import InfeasibleError
from placement.profile import MAX_STAGES, Generation, ShapeProfile, StepCost
from placement.units import Bytes
from serving.profiler.present import Present, further_shapes

USUAL_GPU = "a100"


def scaled_entries(sizes: TransformerConfig, measured: Sequence[ShapeProfile], present: Present) -> list[ShapeProfile]:
    """Entries for the shapes (and the spans) of the cluster that were not measured and fit its devices' memory."""
    shapes = further_shapes(sizes, present.count, present.total)
    if present.nodes > 1:
        shapes += [entry.shape for entry in measured if entry.shape.devices > 1]
    shapes = [shape for shape in shapes if shape.pp <= MAX_STAGES]
    if not shapes or not measured:
        return []
    known = [entry.shape for entry in measured]
    batches = sorted(measured[0].stage_latency)
    across = present.node_devices if present.nodes > 1 else None
    try:
        computed = analytic_profile(sizes, kind_of(present), [*shapes, *known], batches, node_devices=across).shapes
    except InfeasibleError:
        return []
    inside = {entry.shape: entry for entry in computed if entry.span != "cluster"}
    found = []
    for entry in computed:
        is_measured = entry.shape in known and entry.span != "cluster"
        reference = max(measured, key=lambda one: (one.tp == entry.tp, one.shape.devices))
        if not is_measured and reference.shape in inside:
            scaled = _scale(entry, reference, inside[reference.shape])
            if scaled.memory <= present.memory_bytes:
                found.append(msgspec.structs.replace(scaled, kind=kind_name(present), span=entry.span))
    return found


def kind_of(present: Present) -> DeviceKind:
    """The row of the analytic model that is nearest to these devices."""
    usual = "cpu" if present.device == "cpu" else USUAL_GPU
    return KINDS.get(present.kind.lower(), KINDS[usual])


def kind_name(present: Present) -> str | None:
    """In a profile; none for a cluster that does not tell its kinds apart."""
    return None if present.kind == "any" else present.kind


def analytic_dtype(present: Present, precision: str) -> Dtype:
    if present.device == "cpu" or precision == "fp32":
        return "fp32"
    return "bf16" if precision == "bf16" else "fp16"


def _scale(entry: ShapeProfile, reference: ShapeProfile, computed: ShapeProfile) -> ShapeProfile:
    """`entry` and `computed` are the analytic model's; `reference` was measured on computed's shape."""
    memory = sum(reference.stage_memory) / sum(computed.stage_memory)
    latency = {
        batch: _scaled(stage_s, reference.stage_latency[batch], computed.stage_latency[batch])
        for batch, stage_s in entry.stage_latency.items()
    }
    return ShapeProfile(
        tp=entry.tp,
        pp=entry.pp,
        stage_memory=tuple(Bytes(amount * memory) for amount in entry.stage_memory),
        stage_latency=latency,
        generation=_generation(entry, reference, computed),
    )


def _generation(entry: ShapeProfile, reference: ShapeProfile, computed: ShapeProfile) -> Generation | None:
    if entry.generation is None or reference.generation is None or computed.generation is None:
        return None
    new, measured, old = entry.generation, reference.generation, computed.generation

    def column(field: str) -> tuple[float, ...]:
        def pick(part: Generation) -> list[float]:
            return [getattr(stage, field) for stage in part.stages]

        if field == "expert_share":
            return tuple(pick(new))
        return _scaled(pick(new), pick(measured), pick(old))

    fields = StepCost.__struct_fields__
    rows = zip(*(column(field) for field in fields), strict=True)
    return Generation(
        stages=tuple(StepCost(**dict(zip(fields, row, strict=True))) for row in rows),
        kv_bytes_per_token=_scaled(new.kv_bytes_per_token, measured.kv_bytes_per_token, old.kv_bytes_per_token),
    )


def _scaled(new: Sequence[float], measured: Sequence[float], old: Sequence[float]) -> tuple[float, ...]:
    share = sum(measured) / sum(old) if any(old) else 0.0
    return tuple(value * share for value in new)
