"""A line on a terminal while a test runs: how far it is, and how the last half second went. Nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from loadgen.client.open_loop import OnProgress, Tally
from loadgen.demand import Demand
from loadgen.results.record import Record

_SHOWN_BEHIND_S = 0.1


@contextmanager
def progress() -> Iterator[Callable[[Demand], OnProgress] | None]:
    """Gives what makes the watcher of a run; None when nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    parts = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[note]}"))
    # Refreshed by hand: a thread of its own would hold up the sending.
    with Progress(*parts, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("sending", total=1.0, note="")

        def watcher(demand: Demand) -> OnProgress:
            def on_progress(tally: Tally, recent: list[Record]) -> None:
                description = "sending" if tally.elapsed_s < demand.duration_s else "waiting"
                done = min(tally.elapsed_s / demand.duration_s, 1.0)
                bar.update(task, completed=done, description=description, note=_note(tally, recent, demand))
                bar.refresh()

            return on_progress

        yield watcher


def _note(tally: Tally, recent: list[Record], demand: Demand) -> str:
    took = [record.done_s - record.due_s for record in recent if not record.reason]
    shown = f"{tally.elapsed_s:.0f}/{demand.duration_s:.0f} s  sent {tally.sent}  open {tally.open}"
    shown += f"  answered {tally.answered}  not {tally.other}"
    if tally.behind_s >= _SHOWN_BEHIND_S:
        shown += f"  {tally.behind_s:.1f} s behind"
    if took:
        p50, p99 = np.percentile(took, (50, 99)) * 1e3
        shown += f"  p50 {p50:.0f} ms  p99 {p99:.0f} ms"
    return shown
