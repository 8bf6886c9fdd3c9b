"""Chronus: jobs with a deadline get leases from an integer program, best-effort jobs fill what is left.

Time is cut into leases. A deadline job needs so many whole leases before its deadline; the program admits as many of
them as can be met together. Those that run now are the ones it puts into the first lease; the others wait for theirs,
while best-effort jobs (and deadlines that are lost) fill in, least remaining time first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from scipy.optimize import LinearConstraint, milp

from training.arrays import Bools, Floats, Ints
from training.kernels import first_fit
from training.view import Allocation, Information, View

sparse: Any = scipy.sparse
LARGEST = 6000
"""Variables up to which the program is solved in whole numbers; larger ones are relaxed."""


@dataclass(frozen=True)
class Chronus:
    name: ClassVar[str] = "chronus"
    lease_s: float = 300.0
    slots: int = 64
    """Leases that are planned ahead."""
    strict: bool = False
    information: Information = "predicted"

    @property
    def round_s(self) -> float:
        return self.lease_s

    def allocate(self, view: View) -> Allocation:
        workers = np.zeros_like(view.workers)
        wake = (np.floor(view.now / self.lease_s + 1e-9) + 1) * self.lease_s
        due = np.floor((view.deadline - view.now) / self.lease_s + 1e-9)
        needs = np.ceil(view.remaining_s / self.lease_s - 1e-9)
        hopeful = np.flatnonzero(np.isfinite(due) & (needs <= due))
        free = view.capacity.copy()
        first = np.zeros(len(view), np.bool_)
        if len(hopeful):
            slots = int(min(self.slots, due[hopeful].max()))
            now = plan(needs[hopeful], due[hopeful], view.gpus[hopeful], int(view.capacity.sum()), slots)
            first[hopeful] = now
        order = np.lexsort((view.remaining_s, np.where(first, view.deadline, np.inf), ~first))
        first_fit(order, view.gpus, view.speed, view.mixed, view.workers, free, self.strict, workers)
        return Allocation(workers, wake=float(wake) if len(view) else np.inf)


def plan(needs: Floats, due: Floats, gpus: Ints, capacity: int, slots: int) -> Bools:
    """Which jobs run in the first lease, when as many as can be meet their deadlines, [n].

    Variables: admitted y_j, and x_jt whether j runs in lease t; sum_t x_jt = needs_j y_j before its deadline. Earlier
    leases are cheaper (all together by less than one job), so that nothing is put off without need. Beyond the
    planned leases a job is trusted to get what is left.
    """
    jobs = len(needs)
    # What lies beyond the horizon counts as one long lease that takes the rest.
    inside = np.minimum(due, slots)
    required = np.maximum(needs - np.maximum(due - slots, 0), 0)
    pairs = [(job, slot) for job in range(jobs) for slot in range(int(inside[job]))]
    size = jobs + len(pairs)
    owner = np.array([job for job, _ in pairs], np.int64)
    slot = np.array([slot for _, slot in pairs], np.int64)
    columns = jobs + np.arange(len(pairs))
    exact = sparse.csr_array(
        (
            np.concatenate((np.ones(len(pairs)), -required)),
            (np.append(owner, np.arange(jobs)), np.append(columns, np.arange(jobs))),
        ),
        shape=(jobs, size),
    )
    room = sparse.csr_array((gpus[owner].astype(np.float64), (slot, columns)), shape=(slots, size))
    cost = np.concatenate((-np.ones(jobs), 0.5 * (slot + 1) / max(slots, 1) / max(float(required.sum()), 1.0)))
    solve: Any = milp
    found = solve(
        cost,
        constraints=[LinearConstraint(exact, 0.0, 0.0), LinearConstraint(room, -np.inf, float(capacity))],
        integrality=np.full(size, int(size <= LARGEST)),
        bounds=(0, 1),
        options={"time_limit": 10.0, "mip_rel_gap": 1e-6, "presolve": False},
    )
    now = np.zeros(jobs, np.bool_)
    if found.x is not None:
        runs = found.x[jobs:] > 0.5
        now[owner[runs & (slot == 0)]] = True
    return now
