"""What a worker writes, line by line: passed on, and the last lines kept for the day it dies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

KEPT_LINES = 50
MAX_LINE_BYTES = 8 * 2**10
"""A longer line is passed on in pieces."""


class LineReader(asyncio.Protocol):
    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._rest = b""

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._kept)

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) >= MAX_LINE_BYTES:
            lines.append(rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._rest = rest
        for line in lines:
            for start in range(0, max(len(line), 1), MAX_LINE_BYTES):
                self._pass_on(line[start : start + MAX_LINE_BYTES])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""
        if not self.ended.done():
            self.ended.set_result(None)

    def _pass_on(self, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip("\r")
        self._kept.append(line)
        self._on_line(line)
