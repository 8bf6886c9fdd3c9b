"""What happened to a job, a line of JSON each in its folder: every step with its loss, every change of its workers.

Each worker tells of each step; the first counts, and the others must agree with it. A step that a later generation
makes again has a line of its own, which says so.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from training.elastic.messages import Squared
from training.elastic.task import HISTORY

SAY_S = 1.0
"""How often the job's log is told of the progress."""
_log = logging.getLogger(__name__)


class History:
    def __init__(self, folder: Path) -> None:
        self._file = open(folder / HISTORY, "ab", buffering=0)  # noqa: SIM115  (closed by `close`)
        self.step = -1
        """The newest that was ever made."""
        self._generation, self._made = 0, -1
        """The latest, and its newest step."""
        self._losses: dict[int, float] = {}
        """Of the latest steps."""
        self._said_at = 0.0

    def note_step(self, step: int, loss: float, squared: Squared, generation: int, workers: int) -> None:
        if self._losses.get(step, loss) != loss:
            self.note("disagree", step=step, losses=[self._losses[step], loss])
            _log.error("workers disagree on step %d", step)
        if generation < self._generation or (generation == self._generation and step <= self._made):
            return
        if step <= self.step and generation > self._generation:
            _log.warning("goes back from step %d to %d", self.step, step - 1)
        self._generation, self._made = generation, step
        again = {"again": True} if step <= self.step else {}
        self.step = max(self.step, step)
        self._losses.setdefault(step, loss)
        self._losses.pop(step - 16, None)
        self.note("step", step=step, loss=loss, squared=squared, generation=generation, workers=workers, **again)
        if time.monotonic() - self._said_at > SAY_S:
            self._said_at = time.monotonic()
            _log.info("step %d: loss %.4f, %d workers", step, loss, workers)

    def note(self, what: str, **facts: Any) -> None:
        self._file.write(msgspec.json.encode({"what": what, "at": time.time(), **facts}) + b"\n")

    def close(self) -> None:
        self._file.close()
