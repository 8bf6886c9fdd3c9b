"""The durable queue as its users see it: submit, list, show, cancel, with quotas. Every change is one transaction that
also writes down who changed what, when and why. What controllers do to jobs is claims.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from placement.cluster import Cluster
from placement.errors import InputError
from placement.files import convert
from training.curves import speedup_table
from training.fleet import Fleet
from training.jobs import Amdahl
from training.queue.database import Database, Transaction, open_database
from training.queue.errors import Ended, JobExists, OverQuota
from training.queue.record import Event, Quota, Record
from training.queue.rows import SELECT, find, insert, to_record, update
from training.queue.schema import prepare
from training.queue.states import ENDED, STATES, WAITING, State
from training.queue.submission import Submission

MAX_LIVE = 100_000
"""Jobs that have not ended; more are refused."""
MAX_EVENTS = 1000
"""Of one job; the oldest are forgotten."""
LONGEST_WHY = 300
ANYBODY = "*"
"""Whose quota is that of users who have none of their own."""


@dataclass(frozen=True)
class News:
    """Jobs as they are after so many changes of any of them."""

    changes: int
    jobs: tuple[Record, ...]


@dataclass(frozen=True)
class Store:
    database: Database

    def submit(self, jobs: Sequence[Submission], who: str) -> list[Record]:
        """All of them, or an InputError and none; a job's `user` answers for it."""
        now = time.time()
        with self.database.write() as transaction:
            fleets = _fleets(transaction)
            room = MAX_LIVE - _count(transaction, "ended IS NULL")
            if len(jobs) > room:
                raise OverQuota(f"the queue is full: it takes {max(room, 0)} more jobs, these are {len(jobs)}")
            _check_quotas(transaction, jobs)
            number = transaction.all("SELECT coalesce(max(number), 0) FROM jobs")[0][0]
            return [_submit(transaction, job, number + n, who, now, fleets) for n, job in enumerate(jobs, 1)]

    def get(self, job: str) -> Record:
        with self.database.read() as transaction:
            return find(transaction, job)

    def jobs(self, states: Iterable[State] = STATES, user: str | None = None, limit: int = 1000) -> list[Record]:
        """The latest, in order of submission."""
        wanted = list(states)
        where = f"state IN ({', '.join('?' * len(wanted))})" + ("" if user is None else " AND username = ?")
        values = [*wanted, *([] if user is None else [user]), limit]
        with self.database.read() as transaction:
            rows = transaction.all(f"{SELECT} WHERE {where} ORDER BY number DESC LIMIT ?", *values)
        return [to_record(row) for row in reversed(rows)]

    def live(self) -> list[Record]:
        """All that have not ended, in order of arrival."""
        with self.database.read() as transaction:
            rows = transaction.all(f"{SELECT} WHERE ended IS NULL ORDER BY arrival, number")
        return [to_record(row) for row in rows]

    def ended(self, limit: int) -> list[Record]:
        """Those that finished last, in order of arrival."""
        query = f"{SELECT} WHERE ended IS NOT NULL AND state = 'finished' ORDER BY ended DESC LIMIT ?"
        with self.database.read() as transaction:
            rows = transaction.all(query, limit)
        return sorted((to_record(row) for row in rows), key=lambda record: (record.arrival, record.number))

    def events(self, job: str) -> list[Event]:
        with self.database.read() as transaction:
            find(transaction, job)
            rows = transaction.all("SELECT at, who, before, state, why FROM events WHERE job = ? ORDER BY number", job)
        return [Event(*row) for row in rows]

    def cancel(self, job: str, who: str, why: str = "asked for") -> Record:
        """At once where it waits; where it runs, its controller ends it and says so. Twice is once."""
        with self.database.write() as transaction:
            record = find(transaction, job)
            if record.state in ("finished", "failed"):
                raise Ended(f"job {job} has {record.state}; there is nothing to cancel")
            if record.state == "cancelled" or record.cancelling:
                return record
            if record.state in WAITING:
                return change_state(transaction, record, "cancelled", who, why)
            note(transaction, record, record.state, who, f"to be cancelled: {why}")
            return update(transaction, record, cancelling=True)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Of users by name, and of ANYBODY else; they replace those of before."""
        with self.database.write() as transaction:
            transaction.run("DELETE FROM quotas")
            for user, quota in quotas.items():
                transaction.run("INSERT INTO quotas VALUES (?, ?, ?)", user, quota.jobs, quota.devices)

    def quotas(self) -> dict[str, Quota]:
        with self.database.read() as transaction:
            return _quotas(transaction)

    def news(self, since: int | None = None) -> News:
        """The jobs that were changed after so many changes; with None, all that have not ended."""
        where, values = ("ended IS NULL", ()) if since is None else ("changed > ?", (since,))
        with self.database.read() as transaction:
            changes = int(transaction.all("SELECT value FROM facts WHERE name = 'changes'")[0][0])
            rows = [] if changes == since else transaction.all(f"{SELECT} WHERE {where}", *values)
        return News(changes, tuple(to_record(row) for row in rows))

    def close(self) -> None:
        self.database.close()


def open_store(url: str, create: bool = True) -> Store:
    database = open_database(url, create)
    try:
        prepare(database)
    except BaseException:
        database.close()
        raise
    return Store(database)


def change_state(transaction: Transaction, record: Record, state: State, who: str, why: str) -> Record:
    """To a state that holds no devices, within somebody's transaction."""
    note(transaction, record, state, who, why)
    ended = time.time() if state in ENDED else None
    why = line(why)
    return update(transaction, record, state=state, why=why, ended=ended, controller=None, devices=(), process=None)


def note(transaction: Transaction, record: Record, state: State, who: str, why: str) -> None:
    """Write an event, and let everybody see that something has changed."""
    last = transaction.all("SELECT coalesce(max(number), 0) FROM events WHERE job = ?", record.id)[0][0]
    before = record.state if last else ""
    row = (record.id, last + 1, time.time(), who, before, state, line(why))
    transaction.run("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
    transaction.run("DELETE FROM events WHERE job = ? AND number <= ?", record.id, last + 1 - MAX_EVENTS)
    transaction.run("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
    changes = "(SELECT value FROM facts WHERE name = 'changes')"
    transaction.run(f"UPDATE jobs SET changed = {changes} WHERE id = ?", record.id)


def line(why: str) -> str:
    """One line that any store takes."""
    text = " ".join(why.split()).encode(errors="replace").decode()
    return "".join(sign for sign in text if sign.isprintable())[:LONGEST_WHY]


def quota_of(quotas: Mapping[str, Quota], user: str) -> Quota:
    return quotas.get(user) or quotas.get(ANYBODY) or Quota()


def check_fits(job: Submission, fleets: Sequence[Fleet]) -> None:
    """An InputError says why no controller's devices could ever run it; where none has ever been, all is well."""
    wrong: InputError | None = None
    for fleet in fleets:
        try:
            speeds = fleet.speed_of(job)
            rooms = [int(room) for room, speed in zip(fleet.capacity, speeds, strict=True) if speed > 0]
            room = sum(rooms) if job.mixed else max(rooms, default=0)
            if room < job.fewest:
                raise InputError(f"job {job.id}: needs {job.fewest} workers; there are {room} devices it can use")
            return
        except InputError as error:
            wrong = wrong or error
    if wrong is not None:
        raise wrong


def _submit(
    transaction: Transaction, job: Submission, number: int, who: str, now: float, fleets: Sequence[Fleet]
) -> Record:
    check_fits(job, fleets)
    if not isinstance(job.curve, Amdahl):
        speedup_table(job, 1)  # an InputError says where it has no speed
    if transaction.all("SELECT 1 FROM jobs WHERE id = ?", job.id):
        raise JobExists(f"there is a job {job.id!r} already; ids must differ")
    record = Record.of(job, number, now)
    insert(transaction, record)
    note(transaction, record, "queued", who, "submitted")
    return record


def _check_quotas(transaction: Transaction, jobs: Sequence[Submission]) -> None:
    quotas = _quotas(transaction)
    for user in dict.fromkeys(job.user for job in jobs):
        quota, mine = quota_of(quotas, user), [job for job in jobs if job.user == user]
        have = _count(transaction, "ended IS NULL AND username = ?", user)
        if quota.jobs is not None and have + len(mine) > quota.jobs:
            raise OverQuota(f"user {user!r} has {have} jobs and may have {quota.jobs}; {len(mine)} more are too many")
        for job in mine:
            if quota.devices is not None and job.fewest > quota.devices:
                raise OverQuota(f"job {job.id}: needs {job.fewest} devices; user {user!r} may have {quota.devices}")


def _quotas(transaction: Transaction) -> dict[str, Quota]:
    return {row[0]: Quota(row[1], row[2]) for row in transaction.all("SELECT username, jobs, devices FROM quotas")}


def _count(transaction: Transaction, where: str, *values: object) -> int:
    return int(transaction.all(f"SELECT count(*) FROM jobs WHERE {where}", *values)[0][0])


def _fleets(transaction: Transaction) -> list[Fleet]:
    """The devices of every controller that has ever used this store."""
    rows = transaction.all("SELECT cluster FROM controllers ORDER BY name")
    return [Fleet(_cluster(row[0])) for row in rows]


def _cluster(text: str) -> Cluster:
    data = msgspec.json.decode(text)
    data.pop("version")
    return convert(data, Cluster, "the store")
