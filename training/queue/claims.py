"""What a controller does to jobs: it holds a lease on its name, claims jobs, and moves them from state to state.

A lease has an epoch that grows with every controller of that name; whoever has an older one can change nothing any
more. A job belongs to at most one controller, so that it never runs twice at once.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.cluster import Cluster
from placement.errors import InputError
from placement.files import encode_json
from training.queue.database import Transaction
from training.queue.errors import LeaseLost, Stale
from training.queue.processes import is_alive, this_process
from training.queue.record import Observed, Process, Record
from training.queue.rows import READ, SELECT, find, to_record, update
from training.queue.states import FOLLOWING, HOLDING, WAITING, State
from training.queue.store import Store, change_state, line, note

LEASE_S = 30.0
"""Without a heartbeat for so long, a controller counts as gone, and others may have its jobs."""
_REGISTER = """
INSERT INTO controllers (name, epoch, host, pid, started, heartbeat, lease_s, cluster) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, host = excluded.host, pid = excluded.pid,
started = excluded.started, heartbeat = excluded.heartbeat, lease_s = excluded.lease_s, cluster = excluded.cluster
"""


@dataclass(frozen=True)
class Lease:
    name: str
    epoch: int
    lease_s: float

    def __str__(self) -> str:
        return f"controller {self.name}"


@dataclass(frozen=True)
class Grant:
    """What a run of a job gets."""

    run: str
    """A new one, or its latest, which waits in memory."""
    devices: tuple[str, ...]
    share: float
    observed: Observed
    folder: str


class Claims:
    """A controller's hands on the store. All it does raises LeaseLost once another has its name."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store = store
        self.lease = lease

    def renew(self) -> float:
        """The time from which on the lease counts anew."""
        now = time.time()
        with self.store.database.write() as transaction:
            self._check(transaction)
            transaction.run("UPDATE controllers SET heartbeat = ? WHERE name = ?", now, self.lease.name)
        return now

    def release(self) -> None:
        """Nobody needs to wait for this controller any more."""
        with self.store.database.write() as transaction:
            self._check(transaction)
            transaction.run("UPDATE controllers SET heartbeat = 0 WHERE name = ?", self.lease.name)

    def claim(self, job: str, grant: Grant, why: str) -> Record:
        """It is about to run; Stale if it has ended or is somebody's meanwhile."""
        with self.store.database.write() as transaction:
            record = self._own(transaction, job, "starting")
            if record.cancelling:
                raise Stale(f"job {job} is to be cancelled")
            note(transaction, record, "starting", str(self.lease), why)
            return update(
                transaction,
                record,
                state="starting",
                why=line(why),
                controller=self.lease.name,
                run=grant.run,
                process=None,
                devices=grant.devices,
                share=grant.share,
                observed=grant.observed,
                folder=grant.folder,
                attempts=record.attempts + (grant.run != record.run),
            )

    def runs(self, job: str, process: Process, why: str) -> Record:
        """Its process is there."""
        with self.store.database.write() as transaction:
            record = self._own(transaction, job, "running")
            note(transaction, record, "running", str(self.lease), why)
            return update(transaction, record, state="running", why=line(why), process=process)

    def resized(self, job: str, devices: tuple[str, ...], observed: Observed) -> Record:
        """It goes on with other devices, in place."""
        with self.store.database.write() as transaction:
            record = self._own(transaction, job, None)
            why = f"resized from {len(record.devices)} to {len(devices)} workers"
            note(transaction, record, record.state, str(self.lease), why)
            return update(transaction, record, devices=devices, observed=observed, why=why)

    def found(self, job: str, process: Process) -> Record:
        """It was running all the time."""
        with self.store.database.write() as transaction:
            record = self._own(transaction, job, None)
            note(transaction, record, record.state, str(self.lease), "found running")
            return update(transaction, record, process=process)

    def leave(self, job: str, state: State, why: str, **changes: Any) -> Record:
        """It holds no devices any more; one that was to be cancelled does not wait, it is."""
        assert state not in HOLDING
        with self.store.database.write() as transaction:
            record = self._own(transaction, job, state)
            if record.cancelling and state in WAITING:
                state, why = "cancelled", "cancelled"
            record = change_state(transaction, record, state, str(self.lease), why)
            return update(transaction, record, **changes) if changes else record

    def fail_unreadable(self, job: str) -> Record:
        """What stands in for what cannot be read is written down; the job has failed, or is ended where it runs."""
        with self.store.database.write() as transaction:
            self._check(transaction)
            record = find(transaction, job)
            if not record.fault or record.controller not in (None, self.lease.name):
                return record
            record = update(transaction, record, **{name: getattr(record, name) for name in READ})
            if record.state in WAITING:
                return change_state(transaction, record, "failed", str(self.lease), record.fault)
            note(transaction, record, record.state, str(self.lease), f"to be cancelled: {record.fault}")
            return update(transaction, record, cancelling=True)

    def free_lost(self) -> list[Record]:
        """Let jobs of controllers that are gone wait for others."""
        with self.store.database.write() as transaction:
            self._check(transaction)
            rows = transaction.all(
                f"{SELECT} WHERE controller <> ? AND controller IN "
                "(SELECT name FROM controllers WHERE heartbeat + lease_s < ?)",
                *(self.lease.name, time.time()),
            )
            return [self._free(transaction, to_record(row)) for row in rows]

    def _free(self, transaction: Transaction, record: Record) -> Record:
        kind = next(iter(record.observed.time_on), "any")
        held = len(record.devices) * record.share
        observed = record.observed.released(time.time(), held, kind)
        why = f"controller {record.controller} is gone"
        state: State = "cancelled" if record.cancelling else "suspended"
        freed = change_state(transaction, record, state, str(self.lease), why)
        return update(transaction, freed, observed=observed)

    def _own(self, transaction: Transaction, job: str, state: State | None) -> Record:
        """A job that is this controller's or nobody's, and may get into that state."""
        self._check(transaction)
        record = find(transaction, job)
        if record.controller not in (None, self.lease.name):
            raise Stale(f"job {job} is {record.controller}'s")
        if state is None and record.controller is None:
            raise Stale(f"job {job} is {record.state}, not held")
        if state is not None and state not in FOLLOWING[record.state]:
            raise Stale(f"job {job} is {record.state}; it cannot be {state} next")
        return record

    def _check(self, transaction: Transaction) -> None:
        found = transaction.all("SELECT epoch FROM controllers WHERE name = ?", self.lease.name)
        if not found or found[0][0] != self.lease.epoch:
            raise LeaseLost(f"another controller is {self.lease.name!r} now")


def register(store: Store, name: str, cluster: Cluster, lease_s: float = LEASE_S) -> Claims:
    """Be the controller of that name; an InputError while another is."""
    me, host, now = this_process(), _host(), time.time()
    with store.database.write() as transaction:
        rows = transaction.all(
            "SELECT epoch, host, pid, started, heartbeat, lease_s FROM controllers WHERE name = ?", name
        )
        epoch = 1
        if rows:
            last, other, pid, started, heartbeat, patience_s = rows[0]
            # Of a process of this machine it can be seen whether it lives; others are believed to for their lease.
            lives = is_alive(Process(pid, started)) if other == host else now < heartbeat + patience_s
            if lives and heartbeat > 0:
                where = "here" if other == host else "elsewhere"
                raise InputError(f"the training queue has a controller {name!r} already: process {pid} {where}")
            epoch = last + 1
        cells = (name, epoch, host, me.pid, me.started, now, lease_s, encode_json(cluster).decode())
        transaction.run(_REGISTER, *cells)
    return Claims(store, Lease(name, epoch, lease_s))


def _host() -> str:
    """This machine since it last started, and the container on it: where numbers of processes mean the same."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
