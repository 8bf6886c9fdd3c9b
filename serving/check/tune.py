"""Fills the table of tiles for this machine's GPU: candidates are timed, the fastest kept (moe.kernels.tiles)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from moe.kernels.tiles import Cut, architecture, keep_cut, table_path
from serving.check.errand import Errand, ErrandFailed, send
from serving.check.results import Finding, judged, skipped

WORTH = 0.97
"""Of the shipped tile's time: what is not faster by this is not worth a table entry."""
TUNE_S = 6 * 3600.0
"""Some 1,200 candidates, each compiled for some seconds before it is timed."""


@dataclass(frozen=True)
class Trial:
    """A kernel's candidates; `seconds` tells how long one takes, and raises where it cannot be compiled."""

    key: str
    shipped: Cut
    candidates: Sequence[Cut]
    seconds: Callable[[Cut], float]


def time_cuts(trial: Trial) -> dict[Cut, float]:
    """Seconds of what is shipped and of each candidate, but for those that this GPU has no room for."""
    times = {}
    for cut in (trial.shipped, *trial.candidates):
        with suppress(Exception):  # the compiler's, the driver's or torch's
            times[cut] = trial.seconds(cut)
    return times


def best_cut(shipped: Cut, times: Mapping[Cut, float]) -> Cut:
    """What is shipped, unless another is faster by enough."""
    return min(times, key=lambda cut: times[cut] * (WORTH if cut == shipped else 1.0))


async def check_tune(devices: list[str]) -> list[Finding]:
    """What is found is kept as it is found: a GPU that fails later on costs the rest."""
    if devices[0].startswith("cpu"):
        return [skipped("tune", "tile table", "no GPU here; the interpreter tells no times")]
    tried: list[bool] = []

    def keep(answer: Mapping[str, Any]) -> None:
        keep_cut(answer["architecture"], answer["key"], Cut(*answer["cut"]) if answer["is_better"] else None)
        tried.append(answer["is_better"])

    failed = ""
    try:
        await send([Errand(task="tune", device=devices[0], wait_s=TUNE_S)], keep)
    except ErrandFailed as error:
        failed = f"{error}; what was found until then is kept"
    note = f"{failed} in {table_path()}" if failed else str(table_path())
    return [judged("tune", "tile table", not failed, note, tried=len(tried), changed=sum(tried))]


def tune(device: str) -> Iterator[dict[str, Any]]:
    """In the errand's process, on a GPU: each kernel's best, as soon as it is known."""
    from serving.check.trials import trials

    return answers(trials(), architecture())


def answers(trials: Iterable[Trial], target: str) -> Iterator[dict[str, Any]]:
    """Of the kernels of which anything runs."""
    for trial in trials:
        if times := time_cuts(trial):
            best = best_cut(trial.shipped, times)
            yield {"architecture": target, "key": trial.key, "cut": list(best), "is_better": best != trial.shipped}
