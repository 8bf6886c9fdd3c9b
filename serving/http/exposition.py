"""/metrics: the counters as Prometheus reads them, under names that port dashboards made for vLLM (`penstock:` instead
of `vllm:`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from router.statistics import ClassStatistics as Counts
from router.statistics import Statistics
from serving.http.families import Family, Histogram
from serving.http.meters import Meters, ModelMeters

PREFIX = "penstock:"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_MODEL = ("model_name",)


class Exposition(Collector):
    """Reads the meters, and what router and others have to add, when it is asked."""

    def __init__(
        self,
        meters: Meters,
        statistics: Statistics,
        figures: Callable[[], Iterable[Family]],
        add_counts: Callable[[Meters], None] = lambda meters: None,
    ) -> None:
        """`add_counts` adds what others have counted to a copy."""
        self._own, self._statistics, self._figures, self._add_counts = meters, statistics, figures, add_counts
        self._meters = meters
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        self._meters = copy.deepcopy(self._own)
        self._add_counts(self._meters)
        for family in self._families():
            yield _metric(family)
        for family in self._figures():
            yield _metric(family)

    def _families(self) -> Iterator[Family]:
        models = self._meters.models

        def each(name: str, help: str, kind: str, value: Callable[[ModelMeters], float | Histogram]) -> Family:
            assert kind in ("gauge", "counter", "histogram")
            return Family(name, help, kind, _MODEL, {(model,): value(one) for model, one in models.items()})  # type: ignore[arg-type]

        yield each("time_to_first_token_seconds", "From arrival to the first token.", "histogram", lambda m: m.ttft)
        yield each("inter_token_latency_seconds", "Between two tokens.", "histogram", lambda m: m.token_latency)
        yield each("e2e_request_latency_seconds", "From arrival to the end.", "histogram", lambda m: m.latency)
        yield each("request_queue_time_seconds", "From arrival to a group.", "histogram", lambda m: m.queue_time)
        yield each("num_requests_running", "Requests on groups.", "gauge", lambda m: m.running)
        yield each("num_requests_waiting", "Requests that wait for a group.", "gauge", lambda m: m.waiting)
        yield each("prompt_tokens", "Tokens of prompts and inputs.", "counter", lambda m: m.prompt_tokens)
        yield each("prompt_tokens_cached", "Of these, found in a cache.", "counter", lambda m: m.cached_tokens)
        yield each("generation_tokens", "Tokens produced.", "counter", lambda m: m.output_tokens)
        yield self._counted("request_success", "Answers.", "finished_reason", lambda m: m.finished)
        yield self._counted("request_refusals", "Requests not served.", "reason", lambda m: m.unserved)
        yield from self._goals()
        yield Family(
            "http_requests",
            "HTTP exchanges.",
            "counter",
            ("route", "status"),
            {(route, str(status)): count for (route, status), count in self._meters.answers.items()},
        )
        yield Family("http_requests_open", "HTTP exchanges in work.", "gauge", (), {(): self._meters.open})

    def _counted(self, name: str, help: str, label: str, value: Callable[[ModelMeters], dict[str, int]]) -> Family:
        values: dict[tuple[str, ...], float | Histogram] = {
            (model, reason): float(count)
            for model, one in self._meters.models.items()
            for reason, count in value(one).items()
        }
        return Family(name, help, "counter", (*_MODEL, label), values)

    def _goals(self) -> Iterator[Family]:
        """As the router counts them; a class nobody has used is left out."""
        now, labels = time.monotonic(), (*_MODEL, "class")
        judged = {key: one for key, one in self._statistics.classes.items() if one.judged}

        def each(name: str, help: str, kind: Literal["gauge", "counter"], value: Callable[[Counts], float]) -> Family:
            return Family(name, help, kind, labels, {key: value(one) for key, one in judged.items()})

        yield each("slo_requests", "Requests with a goal.", "counter", lambda one: one.judged)
        yield each("slo_met", "Requests within their goal.", "counter", lambda one: one.met)
        yield each(
            "attainment", "Share within the goal, last minute; NaN if none came.", "gauge", lambda one: _share(one, now)
        )
        yield each(
            "goodput", "Requests per second within the goal, last minute.", "gauge", lambda one: one.goodput_per_s(now)
        )


def _share(one: Counts, now: float) -> float:
    share = one.attainment(now)
    return math.nan if share is None else share


def _metric(family: Family) -> Metric:
    name, labels = PREFIX + family.name, family.labels
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=labels)
        for key, value in family.values.items():
            assert isinstance(value, Histogram)
            histogram.add_metric(key, _buckets(value), value.total)
        return histogram
    numbers = [(key, value) for key, value in family.values.items() if not isinstance(value, Histogram)]
    if family.kind == "counter":
        counter = CounterMetricFamily(name, family.help, labels=labels)
        for key, number in numbers:
            counter.add_metric(key, number)
        return counter
    gauge = GaugeMetricFamily(name, family.help, labels=labels)
    for key, number in numbers:
        gauge.add_metric(key, number)
    return gauge


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    buckets, below = [], 0
    for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets
