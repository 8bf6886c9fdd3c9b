"""Progress of the long way to a server: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, TextIO

LINE_EVERY_S = 10.0


class Progress:
    """Called with (what is being done, share done, note); what has share 1 is over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._told: dict[str, float] = {}
        self._began = time.monotonic()

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            parts = (
                TextColumn("{task.description:20}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bars = Bars(*parts, console=Console(file=self._stream), transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, what: str, share: float, note: str) -> None:
        if self._bars is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=1.0, note="")
            self._bars.update(self._tasks[what], completed=share, note=note)
        elif not self._stream.isatty():
            self._line(what, share, note)

    def _line(self, what: str, share: float, note: str) -> None:
        now = time.monotonic()
        if what in self._told and share < 1 and now - self._told[what] < LINE_EVERY_S:
            return
        self._told[what] = now
        self._stream.write(f"{now - self._began:6.1f} s  {what}: {share:.0%}{'  ' + note if note else ''}\n")
        self._stream.flush()
