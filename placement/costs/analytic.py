"""A transformer's profile computed from its numbers and a device kind's: for planning before measuring.

Knows nothing of plans or traffic; what it assumes is in hardware.Assumed and layer_cost. Measuring is better.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placement.costs.hardware import DeviceKind, Link, device_kind
from placement.costs.layer_cost import LayerCosts, layer_costs, workspace_bytes
from placement.costs.slicing import Floats, Slicing, slice_stages
from placement.costs.transformer import TransformerConfig
from placement.errors import InfeasibleError, InputError
from placement.profile import MAX_BATCH, MAX_STAGES, Generation, Profile, Shape, ShapeProfile, StepCost
from placement.units import Bytes

__all__ = ["DEFAULT_BATCHES", "TransformerConfig", "UsualStep", "analytic_profile"]

DEFAULT_BATCHES = (1, 2, 4, 8, 16)
Span = Literal["node", "cluster"]


@dataclass(frozen=True)
class UsualStep:
    """The engine step around which a decoder's costs, not quite linear, are put in StepCost's form."""

    prefill_chunk: int = 512
    """Tokens of a prefill chunk: a token attends to half of its own chunk, which counts in prefill_token."""
    sequences: int = 32
    """Decoding sequences: they decide where stages are cut, and whether experts are read or computed."""

    def __post_init__(self) -> None:
        if self.prefill_chunk < 1 or self.sequences < 1:
            raise InputError("a usual step has a prefill_chunk and sequences of 1 or more")


def analytic_profile(
    config: TransformerConfig,
    kind: DeviceKind | str,
    shapes: Iterable[tuple[int, int]],
    batches: Iterable[int] = DEFAULT_BATCHES,
    *,
    node_devices: int | None = None,
    memory_bytes: int | None = None,
    usual_step: UsualStep | None = None,
) -> Profile:
    """The profile on each shape (tp, pp) that the model can take; the others are left out.

    batches: requests of `config.sequence_length` tokens that pass at once; a decoder may have none (then only
    `generation` is computed).
    node_devices: devices of a node; with it, shapes get an entry within a node, across nodes, or both;
    without it, one entry that assumes a single node.
    memory_bytes: what the model may use on a device; with it, stages are cut to fit, and shapes that do not
    fit are left out.
    """
    if isinstance(kind, str):
        kind = device_kind(kind)
    if node_devices is not None and node_devices < 1:
        raise InputError(f"node_devices is {node_devices}; a node has at least one device")
    world = _World(
        config, kind, _checked_batches(config, batches), node_devices, memory_bytes, usual_step or UsualStep()
    )
    entries: list[ShapeProfile] = []
    reasons: list[str] = []
    for shape in _checked_shapes(shapes):
        reason = config.why_not(*shape)
        if reason is not None:
            reasons.append(f"{shape}: {reason}")
            continue
        try:
            entries.extend(_shape_profile(world, shape, span) for span in _spans(shape, node_devices))
        except InfeasibleError as error:
            reasons.append(f"{shape}: {error}")
    if not entries:
        raise InfeasibleError(f"the model takes none of the {len(reasons)} shapes asked for; the first, {reasons[0]}")
    return Profile(shapes=tuple(entries))


@dataclass(frozen=True)
class _World:
    """What all shapes of one profile share."""

    config: TransformerConfig
    kind: DeviceKind
    batches: tuple[int, ...]
    node_devices: int | None
    memory_bytes: int | None
    usual: UsualStep


def _shape_profile(world: _World, shape: Shape, span: Span | None) -> ShapeProfile:
    config, kind = world.config, world.kind
    tp_link, cut_link = _links(world, shape, span)
    costs = layer_costs(config, kind, shape.tp, tp_link, head_copy=shape.pp > 1)
    hidden_s = config.hidden * config.dtype_bytes / (cut_link.bytes_per_s * kind.assumed.link_efficiency)
    workspace = _workspace(world, shape)

    tokens, step_s = _cutting_step(world, costs)
    cut = slice_stages(
        step_s,
        costs.memory_bytes,
        shape.pp,
        transfer_s=np.full(config.layers - 1, cut_link.latency_s + hidden_s * tokens),
        device_memory_bytes=None if world.memory_bytes is None else world.memory_bytes - workspace,
    )
    receives = np.arange(shape.pp) > 0
    latency = {
        batch: _stage_sums(_one_pass_s(config, costs, batch), cut)
        + receives * (cut_link.latency_s + hidden_s * batch * config.sequence_length)
        for batch in world.batches
    }
    memory = np.ceil(cut.stage_memory_bytes + workspace)
    return ShapeProfile(
        tp=shape.tp,
        pp=shape.pp,
        kind=kind.name,
        span=span,
        stage_memory=tuple(Bytes(amount) for amount in memory),
        stage_latency={batch: tuple(stage_s.tolist()) for batch, stage_s in latency.items()},
        generation=_generation(world, costs, cut, cut_link, hidden_s) if config.causal else None,
    )


def _generation(world: _World, costs: LayerCosts, cut: Slicing, cut_link: Link, hidden_s: float) -> Generation:
    """Sums of the layers' costs. All-reduce and transfer bytes stand in the max with the weights: a decode
    step that waits for its weights pays only for their latency, since its few vectors are short. Tokens pay for
    computing their experts as far as that outlasts reading them in a usual step.
    """
    usual = world.usual
    receives = np.arange(len(cut.stage_latency_s)) > 0
    own_chunk = costs.pair_s * (usual.prefill_chunk / 2)
    chunk_s = costs.token_s + own_chunk + costs.beyond_reading_s(usual.prefill_chunk)
    sequence_s = costs.token_s + costs.output_s + costs.beyond_reading_s(usual.sequences)
    fields = {
        "fixed": _stage_sums(costs.fixed_s, cut) + receives * cut_link.latency_s,
        "weights": _stage_sums(costs.dense_read_s, cut),
        "prefill_token": _stage_sums(chunk_s, cut) + receives * hidden_s,
        "prefill_context": _stage_sums(costs.pair_s, cut),
        "sequence": _stage_sums(sequence_s, cut) + receives * hidden_s,
        "cached_token": _stage_sums(costs.cached_token_s, cut),
        "experts": _stage_sums(costs.experts_read_s, cut),
        "expert_share": np.full(len(receives), world.config.expert_share),
    }
    rows = zip(*(column.tolist() for column in fields.values()), strict=True)
    stages = tuple(StepCost(**dict(zip(fields, row, strict=True))) for row in rows)
    return Generation(stages=stages, kv_bytes_per_token=tuple(_stage_sums(costs.kv_bytes, cut).tolist()))


def _cutting_step(world: _World, costs: LayerCosts) -> tuple[int, Floats]:
    """Tokens and seconds [layers] of the step that the cut evens out: a usual decode step or one request."""
    config = world.config
    if not config.causal:
        return config.sequence_length, _one_pass_s(config, costs, 1)
    sequences = world.usual.sequences
    cached = costs.cached_token_s * sequences * config.sequence_length
    return sequences, costs.step_s(sequences, sequences, 0) + cached


def _one_pass_s(config: TransformerConfig, costs: LayerCosts, batch: int) -> Floats:
    """[layers] seconds for `batch` requests of sequence_length tokens."""
    tokens = batch * config.sequence_length
    pairs = tokens * config.sequence_length * (0.5 if config.causal else 1.0)
    return costs.step_s(tokens, _outputs(config, batch), pairs)


def _outputs(config: TransformerConfig, batch: int) -> int:
    """Tokens of a one-pass batch at which the vocabulary head runs."""
    return {"all": batch * config.sequence_length, "last": batch, "none": 0}[config.logits]


def _workspace(world: _World, shape: Shape) -> Floats:
    """[stages] bytes for activations of the largest step."""
    largest = max(world.batches, default=0)
    tokens, outputs = largest * world.config.sequence_length, _outputs(world.config, largest)
    if world.config.causal:
        tokens = max(tokens, world.usual.prefill_chunk + world.usual.sequences)
        outputs = max(outputs, world.usual.sequences)
    each, last = workspace_bytes(world.config, shape.tp, tokens, outputs)
    if world.memory_bytes is not None and each + last >= world.memory_bytes:
        need = f"activations of {tokens} tokens alone need {each + last:.0f} bytes"
        raise InfeasibleError(f"{need}, a device has {world.memory_bytes}; ask for smaller batches")
    workspace = np.full(shape.pp, each)
    workspace[-1] += last
    return workspace


def _stage_sums(per_layer: Floats, cut: Slicing) -> Floats:
    return np.add.reduceat(per_layer, cut.boundaries[:-1])


def _spans(shape: Shape, node_devices: int | None) -> tuple[Span | None, ...]:
    if node_devices is None or shape.devices == 1:
        return (None,)
    return ("node", "cluster") if shape.devices <= node_devices else ("cluster",)


def _links(world: _World, shape: Shape, span: Span | None) -> tuple[Link, Link]:
    """The links of the all-reduce and of the cuts. Which cut of a group across nodes leaves a node depends on
    its devices: each is taken to. A stage leaves its node only where it must: when it is the whole group, or
    no even part of a node.
    """
    inside, across = world.kind.node_link, world.kind.network
    if span != "cluster" or world.node_devices is None:
        return inside, inside
    stage_leaves = shape.pp == 1 or world.node_devices % shape.tp != 0
    return (across if stage_leaves else inside), across


def _checked_shapes(shapes: Iterable[tuple[int, int]]) -> list[Shape]:
    wanted = list(dict.fromkeys(Shape(*shape) for shape in shapes))
    if not wanted:
        raise InputError("no shapes are asked for; give at least one (tp, pp)")
    for shape in wanted:
        if not (1 <= shape.tp <= 1024 and 1 <= shape.pp <= MAX_STAGES):
            raise InputError(f"shape {shape}: tp is between 1 and 1024, pp between 1 and {MAX_STAGES}")
    return wanted


def _checked_batches(config: TransformerConfig, batches: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(sorted(set(batches)))
    if not sizes and not config.causal:
        raise InputError("no batch sizes are asked for; an encoder needs at least batch size 1")
    if sizes and (sizes[0] != 1 or sizes[-1] > MAX_BATCH):
        raise InputError(f"batch sizes {list(sizes)}: they start with 1 and go up to {MAX_BATCH}")
    return sizes
