"""Which waiting jobs a policy may see: those whose time has come, that the open devices can carry, and that keep their
users within their quotas. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from placement.errors import InputError
from training.fleet import Fleet
from training.queue.record import Quota, Record
from training.queue.store import check_fits, quota_of
from training.queue.submission import Submission


def allowed(
    live: Sequence[Record], is_mine: Callable[[Record], bool], fleet: Fleet, quotas: Mapping[str, Quota], now: float
) -> list[Record]:
    """Of the jobs that are mine, those to decide on, in their order; with quotas, elastic ones are cut to what is left.

    A user's devices go to jobs of higher priority first, then to those that run already, then by arrival.
    """
    left = {record.user: quota_of(quotas, record.user).devices for record in live}
    for record in live:
        if not is_mine(record):
            _take(left, record.user, len(record.devices))
    chosen = [record for record in live if is_mine(record) and (record.devices or record.due <= now)]
    chosen = [record for record in chosen if _fits(record.job, fleet)]
    jobs: dict[str, Submission] = {}
    for record in sorted(chosen, key=lambda record: (-record.job.priority, not record.devices, record.arrival)):
        room = left[record.user]
        if room is None or room >= record.job.fewest:
            jobs[record.id] = _at_most(record.job, room)
            _take(left, record.user, jobs[record.id].gpus)
    for record in chosen:  # what a user's jobs leave is for those that grow
        if record.id in jobs and record.job.elastic:
            job, room = jobs[record.id], left[record.user]
            most = record.job.most if room is None else min(record.job.most, job.gpus + room)
            jobs[record.id] = msgspec.structs.replace(job, max_gpus=most)
            _take(left, record.user, most - job.gpus)
    return [msgspec.structs.replace(record, job=jobs[record.id]) for record in chosen if record.id in jobs]


def _at_most(job: Submission, room: int | None) -> Submission:
    if room is None or job.gpus <= room:
        return job
    return msgspec.structs.replace(job, min_gpus=job.fewest, gpus=room, max_gpus=room)


def _take(left: dict[str, int | None], user: str, devices: int) -> None:
    room = left[user]
    if room is not None:
        left[user] = room - devices


def _fits(job: Submission, fleet: Fleet) -> bool:
    try:
        check_fits(job, (fleet,))
    except InputError:
        return False
    return True


def fitting(records: Iterable[Record], fleet: Fleet) -> list[Record]:
    return [record for record in records if _fits(record.job, fleet)]
