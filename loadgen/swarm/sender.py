"""Sends one worker's share of a demand, each request in a greenlet of its own when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent  # type: ignore[import-untyped]

from loadgen.client.limits import Limits
from loadgen.client.pacer import EARLY_S
from loadgen.demand import Demand
from loadgen.kernel_timer import make_kernel_timer
from loadgen.overrun import Overrun, is_too_far_behind
from loadgen.results.record import NOT_SENT, Record
from loadgen.swarm.exchange import Exchange, Stopwatch
from loadgen.target.asks import Ask, Asks
from loadgen.target.url import TargetUrl

OnRecord = Callable[[Record], None]
_READABLE = 1


class Sender:
    """Begins at once; `is_done` when all its requests have come to an end, or what it sent until too far behind."""

    def __init__(
        self,
        url: TargetUrl,
        demand: Demand,
        asks: Asks,
        limits: Limits,
        share: tuple[int, int],
        clock: Stopwatch,
        on_record: OnRecord,
    ) -> None:
        """`share`: which of how many senders this is. `on_record` gets each request when it has come to an end."""
        self._demand, self._asks, self._limits, self._clock = demand, asks, limits, clock
        self._rows = demand.rows_of(*share).tolist()
        self._on_record = on_record
        self._exchange = Exchange(url, limits, clock)
        self._open: set[gevent.Greenlet] = set()
        self.is_done = False
        self.overrun: Overrun | None = None
        self._greenlet = gevent.spawn(self._run)

    @property
    def is_stopped(self) -> bool:
        return bool(self._greenlet.ready())

    def stop(self) -> None:
        """Gives up what is open; each such request is recorded as interrupted."""
        self._greenlet.kill()
        gevent.killall(list(self._open))
        self._exchange.close()

    def _run(self) -> None:
        demand = self._demand
        pacer = _Pacer()
        try:
            for sent, row in enumerate(self._rows):
                due = float(demand.arrival_s[row])
                if is_too_far_behind(self._clock() - due, demand.duration_s):
                    self.overrun = Overrun(sent, self._clock(), self._clock() - due)
                    break
                record = Record(row, int(demand.model[row]), int(demand.stage[row]), due)
                ask = self._asks.make(row)
                pacer.until(self._clock.start_s + due)
                if len(self._open) >= self._limits.open:
                    record.reason = NOT_SENT
                    self._on_record(record)
                    continue
                one = gevent.spawn(self._one, record, ask)
                self._open.add(one)
                one.link(self._open.discard)
                gevent.sleep(0)  # it begins now, even when the next is due already
            gevent.joinall(list(self._open))
            self.is_done = True
        finally:
            pacer.close()

    def _one(self, record: Record, ask: Ask) -> None:
        self._exchange(record, ask)
        self._on_record(record)


class _Pacer:
    """Waits for a moment on the monotonic clock in gevent's loop."""

    def __init__(self) -> None:
        self._timer = make_kernel_timer()
        self._watcher = None if self._timer is None else gevent.get_hub().loop.io(self._timer.fd, _READABLE)

    def until(self, moment_s: float) -> None:
        wait_s = moment_s - time.monotonic()
        if wait_s <= 0:
            return
        if self._timer is not None:
            self._timer.set(moment_s)
            gevent.get_hub().wait(self._watcher)
            self._timer.clear()
            return
        gevent.sleep(max(wait_s - EARLY_S, 0))
        while time.monotonic() < moment_s:
            gevent.sleep(0)

    def close(self) -> None:
        if self._timer is not None and self._watcher is not None:
            self._watcher.close()
            self._timer.close()
