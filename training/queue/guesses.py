"""How long live jobs will take, for policies that want to know: what their users say, else what such jobs took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from training.queue.record import Record

UNKNOWN_S = 3600.0
"""Of the first job of all."""


def guess_work(live: Iterable[Record], ended: Sequence[Record]) -> list[float]:
    """Seconds of work of each live job. A guess that the job has outlived is doubled; a user's word is kept."""
    kin: dict[tuple[str, ...], list[float]] = {}
    for record in ended:
        for key in _kin(record):
            kin.setdefault(key, []).append(record.observed.done)
    usual = {key: median(seconds) for key, seconds in kin.items()}
    return [_guess(record, usual) for record in live]


def _guess(record: Record, usual: dict[tuple[str, ...], float]) -> float:
    if record.job.duration is not None:
        return float(record.job.duration)
    guess = next((usual[key] for key in _kin(record) if key in usual), UNKNOWN_S)
    guess = max(guess, 1.0)
    while guess <= record.observed.done:
        guess *= 2
    return guess


def _kin(record: Record) -> list[tuple[str, ...]]:
    """Closest first."""
    job = record.job
    keys: list[tuple[str, ...]] = [("tag", record.user, job.tag)] if job.tag else []
    keys += [("model", record.user, job.model)] if job.model else []
    return [*keys, ("user", record.user), ("all",)]
