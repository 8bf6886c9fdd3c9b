"""What several front ends have counted, as one. Who waits and who runs is counted where the router is."""

from __future__ import annotations

from collections.abc import Iterable

from serving.fronts.messages import Counts, ModelCounts
from serving.http.families import Histogram
from serving.http.meters import Meters, ModelMeters


def take_counts(meters: Meters) -> Counts:
    return Counts(
        {name: _model(one) for name, one in meters.models.items()},
        [(route, status, count) for (route, status), count in meters.answers.items()],
        meters.open,
    )


def add_counts(total: Meters, counts: Iterable[Counts]) -> None:
    """To what was counted here."""
    for each in counts:
        for name, one in each.models.items():
            if name in total.models:
                _add(total.models[name], one)
        for route, status, count in each.answers:
            total.answers[route, status] += count
        total.open += each.open


def _model(meters: ModelMeters) -> ModelCounts:
    return ModelCounts(
        (meters.ttft.counts, meters.ttft.total),
        (meters.token_latency.counts, meters.token_latency.total),
        (meters.latency.counts, meters.latency.total),
        meters.prompt_tokens,
        meters.cached_tokens,
        meters.output_tokens,
        dict(meters.finished),
        dict(meters.unserved),
    )


def _add(total: ModelMeters, one: ModelCounts) -> None:
    histograms: tuple[tuple[Histogram, tuple[list[int], float]], ...] = (
        (total.ttft, one.ttft),
        (total.token_latency, one.token_latency),
        (total.latency, one.latency),
    )
    for histogram, (counts, seconds) in histograms:
        histogram.counts = [mine + theirs for mine, theirs in zip(histogram.counts, counts, strict=True)]
        histogram.total += seconds
    total.prompt_tokens += one.prompt_tokens
    total.cached_tokens += one.cached_tokens
    total.output_tokens += one.output_tokens
    total.finished.update(one.finished)
    total.unserved.update(one.unserved)
