"""The figures of a load test, of all its requests and of parts of them: what --json prints and the reports show.

Seconds, requests a second, shares. Percentiles are of answered requests; a refused one counts in attainment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from loadgen.demand import Demand
from loadgen.results.columns import Columns, Floats, Mask
from loadgen.results.goals import Goal


class Spread(msgspec.Struct, frozen=True):
    """Of a quantity over requests (ITL: over pieces)."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Asked(msgspec.Struct, frozen=True):
    rate: float
    cv: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the requests: all, one model's, one stage's."""

    requests: int
    answered: int
    refused: int
    failed: int
    attainment: float
    """Share answered within the SLO; without one, share answered."""
    goodput: float
    """Requests a second within --goodput's goals, or the SLO where none are given."""
    output_tokens_per_s: float
    asked: Asked
    rate: float
    """Requests sent a second."""
    drawn_rate: float
    """Requests due a second: what the seed gave."""
    cv: float | None
    """Of the gaps between sends; of several models, of all their requests as one stream."""
    drawn_cv: float | None
    """Of the gaps between due times: what the seed gave."""
    lag: Spread | None
    """From due to sent."""
    latency: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    refusals: dict[str, int]
    failures: dict[str, int]


@dataclass(frozen=True)
class Parts:
    whole: Part
    models: dict[str, Part]
    stages: list[Part]


def part_of(columns: Columns, mask: Mask, met: Mask, good: Mask, asked: Asked, span_s: float) -> Part:
    """`span_s` is the time the part was to take; a generator that falls behind takes longer."""
    sent = columns.sent_s[mask & ~np.isnan(columns.sent_s)]
    due = columns.due_s[mask]
    start = float(due.min()) if due.size else 0.0
    taken_s = max(span_s, float(sent.max()) - start) if sent.size else span_s
    answered, refused = mask & columns.answered, mask & columns.refused
    failed = mask & columns.failed
    requests = int(mask.sum())
    return Part(
        requests=requests,
        answered=int(answered.sum()),
        refused=int(refused.sum()),
        failed=int(failed.sum()),
        attainment=float((mask & met).sum() / requests) if requests else 1.0,
        goodput=float((mask & good).sum() / span_s),
        output_tokens_per_s=float(columns.output_tokens[answered].sum() / span_s),
        asked=asked,
        rate=sent.size / taken_s,
        drawn_rate=requests / span_s,
        cv=gap_cv(np.sort(sent)),
        drawn_cv=gap_cv(due),
        lag=spread(columns.lag_s[mask]),
        latency=spread(columns.latency_s[mask]),
        ttft=spread(columns.ttft_s[mask]),
        tpot=spread(columns.tpot_s[mask]),
        itl=spread(columns.gaps(answered)),
        refusals=_counted(columns, refused),
        failures=_counted(columns, failed),
    )


def parts_of(columns: Columns, demand: Demand, slo: Sequence[Goal], goodput: Goal | None) -> Parts:
    met = columns.met(slo)
    good = met if goodput is None else columns.met([goodput] * len(slo))
    duration, stages = demand.duration_s, demand.stages
    cv = stages[0].cv if len(stages) == 1 else "by stage"

    def part(mask: Mask, asked: Asked, span_s: float) -> Part:
        return part_of(columns, mask, met, good, asked, span_s)

    return Parts(
        whole=part(np.ones(len(columns), dtype=np.bool_), Asked(sum(demand.asked_per_s), cv), duration),
        models={
            model.name: part(columns.model == index, Asked(demand.asked_per_s[index], cv), duration)
            for index, model in enumerate(demand.models)
        },
        stages=[
            part(columns.stage == at, Asked(stage.rate_per_s, stage.cv), stage.duration_s)
            for at, stage in enumerate(stages)
        ],
    )


def spread(values: Floats) -> Spread | None:
    known = values[~np.isnan(values)]
    if not known.size:
        return None
    p50, p90, p95, p99 = np.percentile(known, (50, 90, 95, 99)).tolist()
    return Spread(int(known.size), float(known.mean()), p50, p90, p95, p99, float(known.max()))


def gap_cv(times_s: Floats) -> float | None:
    gaps = np.diff(times_s)
    mean = float(gaps.mean()) if gaps.size > 1 else 0.0
    return float(gaps.std() / mean) if mean > 0 else None


def _counted(columns: Columns, mask: Mask) -> dict[str, int]:
    counts = Counter(columns.records[at].reason for at in np.flatnonzero(mask).tolist())
    return dict(counts.most_common())
