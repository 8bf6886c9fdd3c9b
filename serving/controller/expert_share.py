"""Of a step's time, what its experts take: so much of it waits for the device that has most to do."""

from __future__ import annotations

from placement.costs.transformer import TransformerConfig
from placement.profile import ShapeProfile, StepCost, touched_share

STEP_TOKENS = 512
"""Of the step that is judged, all of prompts, as engines make them under load."""
LEAST = 0.01
"""So that what is gained may be divided by it."""


def expert_share(sizes: TransformerConfig, entry: ShapeProfile | None) -> float:
    """By the profile's costs, where it has some; of what a token computes, by sizes."""
    computed = _of_computing(sizes)
    if entry is None or entry.generation is None:
        return computed
    stages = entry.generation.stages
    seconds = sum(cost.seconds(STEP_TOKENS, 0.0, 0.0, 0.0) for cost in stages)
    return min(1.0, max(LEAST, sum(_expert_seconds(cost, computed) for cost in stages) / seconds))


def _expert_seconds(cost: StepCost, computed: float) -> float:
    """Reading the experts that the step touches, and their share of computing, where that takes longer than reading
    the rest. A profile that does not tell reading experts apart has it among all weights."""
    computing = cost.prefill_token * STEP_TOKENS
    if cost.experts == 0:
        return computed * max(cost.weights, computing)
    reading = cost.experts * touched_share(cost.expert_share, STEP_TOKENS)
    return reading + (computed * computing if computing > cost.weights else 0.0)


def _of_computing(sizes: TransformerConfig) -> float:
    """Of the weights that a token of a prompt is multiplied by, those of experts."""
    sparse = int(sizes.has_experts.sum())
    experts = sparse * sizes.top_k * sizes.ffn_parameters(sizes.expert_ffn)
    rest = (sizes.layers - sparse) * sizes.ffn_parameters(sizes.ffn) + sizes.layers * sizes.attention_parameters()
    return experts / (experts + rest)
