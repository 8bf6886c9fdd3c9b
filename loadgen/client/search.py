"""The search for the largest rate held, run by run against one server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen import option_text
from loadgen.client.run import Outcome
from loadgen.max_rate import LEAST_REQUESTS, Judged, MaxRate, find_max_rate
from loadgen.traffic_options import DURATION, RATE, TrafficOptions

OnProbe = Callable[[float, float], None]
"""Gets each rate tried, and the share of requests within the goals."""


@dataclass(frozen=True, eq=False)
class Searched:
    outcome: Outcome
    """At the largest rate held; of the last probe, if none was."""
    found: MaxRate | None
    """None when not even the first probe came to its end."""


def search(
    run: Callable[[TrafficOptions], Outcome], traffic: TrafficOptions, at: float, on_probe: OnProbe | None = None
) -> Searched:
    """From --rate on. An interrupt ends it with what was found so far."""
    probes = _Probes(run, traffic, at, on_probe)
    start = option_text.number(traffic.rate or RATE, "--rate")
    duration_s = option_text.seconds(traffic.duration or DURATION, "--duration")
    found = find_max_rate(probes, start, at, LEAST_REQUESTS / duration_s)
    if found.probes:
        return Searched(probes.outcomes[found.rate or found.probes[-1].rate], found)
    if probes.interrupted is None:
        raise KeyboardInterrupt
    return Searched(probes.interrupted, None)


def judge(outcome: Outcome, at: float, *, by_slo: bool) -> Judged:
    """Where too few are within the goals, requests that were not sent since too many were open are the server's doing;
    elsewhere --max-open may be what limits."""
    summary = outcome.summary
    share = summary.attainment if by_slo else summary.goodput / summary.drawn_rate
    is_only_unsent = outcome.columns.unsent > 0 and len(summary.invalid_because) == 1
    return Judged(share, summary.valid or (is_only_unsent and share < at))


class _Probes:
    """Runs at rates; None of one that was interrupted."""

    def __init__(
        self, run: Callable[[TrafficOptions], Outcome], traffic: TrafficOptions, at: float, on_probe: OnProbe | None
    ) -> None:
        self._run, self._traffic, self._at, self._on_probe = run, traffic, at, on_probe
        self.outcomes: dict[float, Outcome] = {}
        self.interrupted: Outcome | None = None

    def __call__(self, rate_per_s: float) -> Judged | None:
        try:
            outcome = self._run(replace(self._traffic, rate=repr(rate_per_s)))
        except KeyboardInterrupt:  # while the requests were drawn
            return None
        if outcome.interrupted:
            self.interrupted = outcome
            return None
        self.outcomes[rate_per_s] = outcome
        judged = judge(outcome, self._at, by_slo=bool(self._traffic.slo))
        if self._on_probe is not None:
            self._on_probe(rate_per_s, judged.share)
        return judged
