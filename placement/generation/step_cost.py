"""What an engine's step costs, compiled: profile.StepCost on the arrays of a plan's engines."""

from __future__ import annotations

from placement.clocks import later
from placement.compiled import compiled
from placement.generation.engine_tables import COSTS, Engines

FIXED, WEIGHTS, PREFILL_TOKEN, PREFILL_CONTEXT, SEQUENCE, CACHED_TOKEN, EXPERTS, EXPERT_SHARE = range(COSTS)
SECONDS = slice(EXPERT_SHARE)
"""The columns that are times."""


@compiled
def step_s(
    engines: Engines, engine: int, stage: int, prefill: float, sequences: float, context: float, cached: float
) -> float:
    """Seconds of a step on one stage: profile.StepCost.seconds."""
    cost = engines.cost
    compute = cost[engine, stage, PREFILL_TOKEN] * prefill + cost[engine, stage, SEQUENCE] * sequences
    seconds: float = cost[engine, stage, FIXED] + later(cost[engine, stage, WEIGHTS], compute)
    experts: float = cost[engine, stage, EXPERTS]
    if experts > 0.0:
        missed = (1.0 - cost[engine, stage, EXPERT_SHARE]) ** float(prefill + sequences)
        seconds += experts * (1.0 - missed)
    seconds += cost[engine, stage, PREFILL_CONTEXT] * context
    seconds += cost[engine, stage, CACHED_TOKEN] * cached
    return seconds


@compiled
def prefill_s(engines: Engines, engine: int, tokens: int, chunk: int, sequences: int, cached: int) -> float:
    """Seconds to prefill `tokens` in chunks, beside decoding sequences that stay as they are, on free
    stages."""
    chunks = (tokens + chunk - 1) // chunk
    last = tokens - (chunks - 1) * chunk
    before_last = chunk * chunk * ((chunks - 1) * (chunks - 2) // 2)
    total = 0.0
    for s in range(engines.stages[engine]):
        total += (chunks - 1) * step_s(engines, engine, s, chunk, sequences, 0.0, cached)
        total += step_s(engines, engine, s, last, sequences, last * chunk * (chunks - 1), cached)
        total += engines.cost[engine, s, PREFILL_CONTEXT] * before_last
    return total
