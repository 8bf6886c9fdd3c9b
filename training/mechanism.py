"""How an allocation comes about: gang start, preemption, growing and shrinking in place, migration, loans.

The same for every policy, simulated or live. Knows what time it is from its caller; each call returns what changed,
and the caller makes it so (the simulator by changing rates, a live queue by starting and stopping processes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from training.arrays import Ints
from training.fleet import Fleet
from training.kernels import rows_that_change
from training.ledger import Ledger
from training.loans import ReclaimRule, choose_nodes, spread_over
from training.table import Table
from training.view import Allocation, Policy, View

Action = Literal["start", "preempt", "resize", "migrate"]


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one job."""

    row: int
    action: Action


class Mechanism:
    """Runs one policy over one table of jobs: `submit` and `finish` say what happens, `decide` acts on it."""

    def __init__(
        self, table: Table, fleet: Fleet, policy: Policy, reclaim: ReclaimRule = "cost", seed: int = 0
    ) -> None:
        self.table = table
        self.fleet = fleet
        self.policy = policy
        self.ledger = Ledger(fleet)
        self.live: Ints = np.zeros(0, np.int64)
        self.wake = np.inf
        self.scaled_in = 0
        """Jobs that a reclaim shrank and did not preempt."""
        self.reclaims = 0
        """Preemptions for a reclaim."""
        self._rule: ReclaimRule = reclaim
        self._rng = np.random.default_rng(seed)
        self._capacity = self.ledger.capacity
        self._ended: Ints = np.zeros(len(table), np.int64)
        self._ends = 0
        self._counted_from = 0.0

    def submit(self, rows: Ints) -> None:
        """Jobs arrive, in order."""
        self.live = np.concatenate((self.live, rows))

    def finish(self, row: int, now: float) -> None:
        """A job has ended by itself."""
        self.table.settle(row, now)
        self.ledger.give_back(row)
        self._hold(row)
        self.table.finish[row] = now
        self.table.rate[row] = 0.0
        self.live = self.live[self.live != row]
        self._ended[self._ends] = row
        self._ends += 1

    def decide(self, now: float) -> list[Change]:
        """Ask the policy, and act on its answer."""
        view = self.view(now)
        wanted = self.policy.allocate(view)
        self.wake = wanted.wake
        if wanted.count_anew:
            self._counted_from = now
            self.table.time_before[view.rows] = view.time_on
        return self.apply(wanted, view, now)

    def view(self, now: float) -> View:
        return View(
            now,
            self.live,
            self.fleet,
            self.ledger.node_open.copy(),
            self._capacity,
            self.ledger.held,
            self.ledger.free,
            self.ledger.free_memory,
            self.ledger.node_cpus,
            self.table,
            self.policy.information,
            self._ended[: self._ends],
            self._counted_from,
        )

    def apply(self, wanted: Allocation, view: View, now: float) -> list[Change]:
        """Bring the jobs to their new workers: first all that give devices back, then all that take some."""
        table, rows = self.table, view.rows
        moved, again = self._to_move(wanted, view)
        taking: list[tuple[int, int, bool]] = []
        changes: list[Change] = []
        for at in moved:
            row, target = int(rows[at]), wanted.workers[at]
            running = row in self.ledger.held
            if running and at in again and self._reshare(row, target, wanted, at, now):
                changes.append(Change(row, "resize"))
                continue
            if running and not target.any():
                changes.append(self._preempt(row, now))
                continue
            if running:
                self._let_go(row, target, at in again, now)
            if (target > table.workers[row]).any():
                taking.append((at, row, running))
            else:
                changes.append(self._resized(row, now))
        # Large jobs first: small ones fit into what they leave.
        taking.sort(key=lambda entry: -int(wanted.workers[entry[0]].sum()))
        for at, row, running in taking:
            share = table.share[row] if wanted.share is None else float(wanted.share[at])
            nodes = None if wanted.nodes is None else wanted.nodes[wanted.nodes[:, 0] == at, 1:]
            change = self._extend(row, wanted.workers[at], share, nodes, wanted.emptiest, running, now)
            changes += [] if change is None else [change]
        return changes

    def lend(self, nodes: Ints) -> None:
        """Nodes of inference are open to training from now on."""
        self.ledger.node_open[nodes] = True
        self._capacity = self.ledger.capacity

    def take_back(self, count: int, now: float) -> list[Change]:
        """Close so many lent nodes, those whose loss harms least; their jobs are scaled in or preempted."""
        fleet, table, ledger = self.fleet, self.table, self.ledger
        lent = np.flatnonzero(fleet.node_lendable & ledger.node_open).tolist()
        jobs_on = spread_over(ledger.held, fleet.device_node, lent)
        spare = {row: int(table.workers[row].sum() - table.fewest[row]) for row in jobs_on}
        nodes = choose_nodes(lent, jobs_on, spare, count, self._rule, self._rng)
        changes = []
        for node in nodes:
            for row in [row for row, there in jobs_on.items() if node in there and row in ledger.held]:
                here = ledger.held[row][ledger.nodes_of(row) == node]
                if len(here) <= table.workers[row].sum() - table.fewest[row]:
                    table.settle(row, now)
                    ledger.give_back(row, here)
                    self._hold(row)
                    self.scaled_in += 1
                    changes.append(self._resized(row, now))
                elif len(here):
                    self.reclaims += 1
                    changes.append(self._preempt(row, now))
        ledger.node_open[nodes] = False
        self._capacity = ledger.capacity
        return changes

    def _preempt(self, row: int, now: float) -> Change:
        table = self.table
        table.settle(row, now)
        self._write_checkpoint(row, now)
        if row in self.ledger.held:
            self.ledger.give_back(row)
            self._hold(row)
        table.rate[row] = 0.0
        table.queued_since[row] = now
        table.preemptions[row] += 1
        return Change(row, "preempt")

    def _write_checkpoint(self, row: int, now: float) -> None:
        """It costs work: at most what was done since the job was ready."""
        table = self.table
        written = min(table.checkpoint[row], max(now - max(table.last_start[row], table.ready[row]), 0.0))
        table.done[row] = max(table.done[row] - written * table.rate[row], 0.0)

    def _let_go(self, row: int, target: Ints, again: bool, now: float) -> None:
        """Give back what the job has too many of; all of it when it moves."""
        table, ledger = self.table, self.ledger
        table.settle(row, now)
        mine = table.workers[row]
        if again or not np.minimum(target, mine).any():
            self._write_checkpoint(row, now)
            ledger.give_back(row)
        else:
            for kind in np.flatnonzero(mine > target).tolist():
                ledger.give_back(row, ledger.to_spare(row, kind, int(mine[kind] - target[kind])))
        self._hold(row)

    def _reshare(self, row: int, target: Ints, wanted: Allocation, at: int, now: float) -> bool:
        """Change its share of the devices it has, where that is all that changes and there is room."""
        moves = wanted.move is not None and bool(wanted.move[at])
        if moves or wanted.share is None or (target != self.table.workers[row]).any():
            return False
        share = float(wanted.share[at])
        if not self.ledger.can_reshare(row, share):
            return False
        self.table.settle(row, now)
        self.ledger.reshare(row, share)
        self._hold(row)
        return True

    def _extend(
        self, row: int, target: Ints, share: float, nodes: Ints | None, emptiest: bool, running: bool, now: float
    ) -> Change | None:
        """Give a job the workers it lacks: all of them, or none where no room is left for them."""
        table, ledger = self.table, self.ledger
        memory, cpus = table.memory[row], table.cpus[row]
        before = int(table.workers[row].sum())
        lacks = np.maximum(target - table.workers[row], 0)
        if nodes is not None and len(nodes):
            found = [ledger.find_on(nodes.tolist(), share, memory, cpus)]
        else:
            found = [
                ledger.find(kind, int(lacks[kind]), share, memory, cpus, emptiest)
                for kind in np.flatnonzero(lacks).tolist()
            ]
        devices = [part for part in found if part is not None]
        if len(devices) < len(found):
            if not running:
                return None
            return self._resized(row, now) if before >= table.fewest[row] else self._preempt(row, now)
        for part in devices:
            ledger.take(row, part, share, memory, cpus)
        self._hold(row)
        if not running:
            return self._started(row, now)
        if before:
            return self._resized(row, now)
        table.migrations[row] += 1
        table.ready[row] = now + table.restart[row]
        return Change(row, "migrate")

    def _started(self, row: int, now: float) -> Change:
        table = self.table
        table.since[row] = now
        table.ready[row] = now + (table.restart[row] if table.starts[row] else 0.0)
        if not table.starts[row]:
            table.first_start[row] = now
        table.starts[row] += 1
        table.last_start[row] = now
        table.waited[row] = now - table.queued_since[row]
        table.attained_before[row], table.run_before[row] = table.attained[row], table.run_s[row]
        return Change(row, "start")

    def _resized(self, row: int, now: float) -> Change:
        self.table.resizes[row] += 1
        self.table.ready[row] = max(self.table.ready[row], now + self.table.resize[row])
        return Change(row, "resize")

    def _hold(self, row: int) -> None:
        """Write into the table what the ledger says."""
        table = self.table
        devices = self.ledger.held.get(row)
        if devices is None or not len(devices):
            table.workers[row] = 0
            table.total[row] = 0
        else:
            table.workers[row] = np.bincount(self.fleet.device_kind[devices], minlength=table.kinds)
            table.total[row] = len(devices)
            table.tried[row] = max(table.tried[row], len(devices))
            table.in_use[row] = self.ledger.share_of(row)

    def _to_move(self, wanted: Allocation, view: View) -> tuple[list[int], set[int]]:
        """Positions of the jobs that change, and of those among them that are placed anew."""
        table, rows = self.table, view.rows
        changed = np.empty(len(rows), np.int64)
        moved = changed[: rows_that_change(rows, table.workers, wanted.workers, changed)].tolist()
        if wanted.move is None and wanted.share is None:
            return moved, set()
        again = np.zeros(len(view), np.bool_) if wanted.move is None else wanted.move
        if wanted.share is not None:
            again = again | (wanted.share != table.in_use[rows])
        places = set(np.flatnonzero(again & view.running & wanted.workers.any(axis=1)).tolist())
        # Those that leave a device make room for those that take more of it.
        return sorted(places.union(moved), key=lambda at: (bool(wanted.workers[at].any()), at)), places
