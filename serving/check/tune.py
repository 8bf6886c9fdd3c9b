"""Fills the table of tiles for this machine's GPU: candidates are timed, the fastest kept (moe.kernels.tiles)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe.kernels.tiles import Cut
from serving.check.errand import Errand, ErrandFailed, send
from serving.check.results import Finding, judged, skipped

WORTH = 0.97
"""Of the shipped tile's time: what is not faster by this is not worth a table entry."""


@dataclass(frozen=True)
class Trial:
    """A kernel's candidates; `seconds` tells how long one takes, and raises where it cannot be compiled."""

    key: str
    shipped: Cut
    candidates: Sequence[Cut]
    seconds: Callable[[Cut], float]


def choose_cuts(trials: Iterator[Trial] | Sequence[Trial]) -> dict[str, Cut]:
    """By key, those that are faster than what is shipped."""
    chosen: dict[str, Cut] = {}
    for trial in trials:
        best, best_s = trial.shipped, trial.seconds(trial.shipped) * WORTH
        for cut in trial.candidates:
            try:
                taken = trial.seconds(cut)
            except Exception:  # a tile that this GPU has no room for
                continue
            if taken < best_s:
                best, best_s = cut, taken
        if best != trial.shipped:
            chosen[trial.key] = best
    return chosen


async def check_tune(devices: list[str]) -> list[Finding]:
    from moe.kernels.tiles import keep_cuts

    if devices[0].startswith("cpu"):
        return [skipped("tune", "tile table", "no GPU here; the interpreter tells no times")]
    try:
        answer: Mapping[str, Any] = (await send([Errand(task="tune", device=devices[0])]))[0]
    except ErrandFailed as error:
        return [judged("tune", "tile table", False, str(error))]
    path = keep_cuts(answer["architecture"], {key: Cut(*cut) for key, cut in answer["cuts"].items()})
    return [
        judged("tune", "tile table", True, str(path), changed=len(answer["cuts"]), architecture=answer["architecture"])
    ]


def tune(device: str) -> dict[str, Any]:
    """In the errand's process, on a GPU."""
    from moe.kernels.tiles import architecture
    from serving.check.trials import trials

    return {"architecture": architecture(), "cuts": {key: list(cut) for key, cut in choose_cuts(trials()).items()}}
