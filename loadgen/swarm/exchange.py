"""One request and its answer over gevent's sockets."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent  # type: ignore[import-untyped]
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError

from loadgen.client.limits import Limits
from loadgen.results.record import Record
from loadgen.target.answers import Reading
from loadgen.target.asks import Ask
from loadgen.target.url import TargetUrl

INTERRUPTED = "interrupted"


class Exchange:
    """Keeps the connections to one server."""

    def __init__(self, url: TargetUrl, limits: Limits, now: Callable[[], float]) -> None:
        """`now`: seconds since the test began."""
        self._limits, self._now = limits, now
        self._client = HTTPClient(
            url.host,
            url.port,
            ssl=url.is_secure,
            concurrency=limits.open,
            connection_timeout=limits.timeout_s,
            network_timeout=limits.timeout_s,
        )

    def __call__(self, record: Record, ask: Ask) -> None:
        """Fills the record; never raises for what the server or the network does."""
        reading = Reading(record)
        record.sent_s = self._now()
        try:
            with gevent.Timeout(self._limits.timeout_s):
                self._read(reading, ask)
        except (TimeoutError, gevent.Timeout):
            reading.fail("timeout", self._now())
        except ConnectionRefusedError:
            reading.fail("no-connection", self._now())
        except (OSError, HTTPParseError):
            reading.fail("disconnected", self._now())
        except gevent.GreenletExit:
            reading.fail(INTERRUPTED, self._now())

    def close(self) -> None:
        self._client.close()

    def _read(self, reading: Reading, ask: Ask) -> None:
        with self._client.request("POST", ask.path, body=ask.body, headers=dict(ask.headers)) as response:
            content_type = str(response.get("content-type", ""))
            reading.begin(response.status_code, content_type)
            if content_type.startswith("text/event-stream"):
                while line := response.readline(b"\n"):
                    reading.feed(line, self._now())
            else:
                reading.feed(response.read(), self._now())
        reading.end(self._now())


class Stopwatch:
    """Seconds since a moment on the wall clock that several machines agreed on, by this one's monotonic clock."""

    def __init__(self, start_epoch_s: float) -> None:
        self.start_s = time.monotonic() + start_epoch_s - time.time()

    def __call__(self) -> float:
        return time.monotonic() - self.start_s
