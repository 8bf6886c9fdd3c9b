"""The last half hour: figures of each model in bins of five seconds, who had which device, and what happened, in
bounded memory; and what is so now, for whoever looks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from router.statistics import WINDOW_S, Statistics
from serving.dashboard.source import Mark, Plain, Source
from serving.dashboard.timeline import Timeline
from serving.dashboard.totals import Counter, Totals
from serving.http.meters import Meters, ModelMeters

BIN_S = 5.0
BINS = 360
MOST_MARKS = 500
SERIES = ("rate", "in_time", "latency_p50", "latency_p99", "ttft_p99", "tpot_p99", "waiting", "running", "refused")
"""What is kept of each model and bin, in this order; times are seconds, `refused` is per second."""


class Recorder:
    """`now` and `unix` are the clocks: of what is counted, and of what people read."""

    def __init__(
        self,
        source: Source,
        statistics: Statistics,
        meters: Meters,
        now: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._statistics, self._meters = source, statistics, meters.models
        self._now, self._unix = now, unix
        self._counter = Counter(statistics, self._meters)
        self._began = unix()
        self.timeline = Timeline(source.holders())
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self._marked = 0.0
        self._bins: deque[Plain] = deque(maxlen=BINS)
        self._kept: deque[dict[str, Totals]] = deque(maxlen=round(WINDOW_S / BIN_S) + 1)
        """At the end of each bin of the last minute."""
        self._kept.append(self._counter.take(now()))
        self._bin_ends = now() + BIN_S

    def note_holders(self) -> None:
        """Called when a device changes hands, and now and then."""
        at = self._unix()
        for device, holder in self._source.holders().items():
            self.timeline.note(at, device, *holder)

    def tick(self) -> Plain:
        """Called every second or so: what is new since the last time."""
        self.note_holders()
        news: Plain = {"changes": self.timeline.take_news(), "marks": self._take_marks()}
        now = self._now()
        if now >= self._bin_ends:
            news["bin"] = self._end_bin(now)
        return news

    def view(self) -> Plain:
        """What is so now."""
        now = self._now()
        totals, before = self._counter.take(now), self._kept[0]
        recent = {name: one.since(before[name]) for name, one in totals.items()}
        told = self._source.now(recent)
        for model in told["models"]:
            name = model["name"]
            model |= self._figures(name, totals[name], recent[name], now)
        for device in told["devices"]:
            change = self.timeline.last(device["name"])
            device["since"] = None if change is None else round(change.at, 3)
        return told | {"at": round(self._unix(), 3)}

    def history(self) -> Plain:
        """Everything kept."""
        oldest = self._unix() - BINS * BIN_S
        return {
            "began": round(self._began, 3),
            "span_s": BINS * BIN_S,
            "bin_s": BIN_S,
            "series": SERIES,
            "bins": list(self._bins),
            "changes": list(self.timeline.since(oldest)),
            "marks": [mark for mark in self._marks if mark.at > oldest],
        }

    def _take_marks(self) -> list[Mark]:
        fresh = list(self._source.marks(self._marked))
        if fresh:
            self._marked = fresh[-1].at
            self._marks.extend(fresh)
        return fresh

    def _end_bin(self, now: float) -> Plain:
        totals, before = self._counter.take(now), self._kept[-1]
        models = {name: self._row(one.since(before[name]), self._meters[name]) for name, one in totals.items()}
        self._kept.append(totals)
        while self._bin_ends <= now:
            self._bin_ends += BIN_S
        ended: Plain = {"at": round(self._unix(), 3), "models": models}
        self._bins.append(ended)
        return ended

    def _row(self, bin: Totals, meters: ModelMeters) -> list[float | None]:
        values = (
            bin.rate_per_s,
            bin.in_time,
            bin.latency_s(0.5),
            bin.latency_s(0.99),
            bin.ttft_s(0.99),
            bin.token_s(0.99),
            meters.waiting,
            meters.running,
            bin.refused / max(bin.at, 1e-9),
        )
        return [_short(value) for value in values]

    def _figures(self, name: str, totals: Totals, recent: Totals, now: float) -> dict[str, Any]:
        meters = self._meters[name]
        windows = [one.window.sums(now) for (model, _), one in self._statistics.classes.items() if model == name]
        ended, met = sum(window[0] for window in windows), sum(window[1] for window in windows)
        return {
            "rate": _short(recent.rate_per_s),
            "cv": _short(recent.cv),
            "in_time": met / ended if ended else None,
            "ended": ended,
            "latency": [_short(recent.latency_s(share)) for share in (0.5, 0.9, 0.99)],
            "ttft": [_short(recent.ttft_s(share)) for share in (0.5, 0.9, 0.99)],
            "tpot": [_short(recent.token_s(share)) for share in (0.5, 0.9, 0.99)],
            "waiting": meters.waiting,
            "running": meters.running,
            "requests": totals.arrivals,
            "met": totals.met,
            "judged": totals.judged,
            "refusals": recent.refusals,
            "refused": totals.refused,
        }


def _short(value: float | None) -> float | None:
    """To four digits: nobody sees more, and it is half as long."""
    return None if value is None else float(f"{value:.4g}")
