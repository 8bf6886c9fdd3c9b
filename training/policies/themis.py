"""Themis: finish-time fairness rho = T_shared / T_ideal, the worst off first, by an auction of partial allocations.

Devices are leased until the next multiple of `lease_s`; what is free then is offered to the share 1 - `fairness` of
the jobs with the worst rho. They bid 1 / rho for each number of workers; the winners share in proportion (the product
of the bids is greatest), pay by giving up a part of the flexible workers, and what is left goes to the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.growing import Grown, grown_at_price
from training.kernels import first_fit, keep_fastest
from training.view import Allocation, Information, View


@dataclass(frozen=True)
class Themis:
    name: ClassVar[str] = "themis"
    fairness: float = 0.8
    lease_s: float = 1200.0
    strict: bool = False
    information: Information = "predicted"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        ended = abs(view.now / self.lease_s - round(view.now / self.lease_s)) * self.lease_s < 1e-6
        leased = np.zeros(len(view), np.bool_) if ended else view.running
        workers = np.zeros((len(view), len(view.capacity)), np.int64)
        free = view.capacity.copy()
        keep_fastest(view.workers, leased, view.total, view.speed, free, workers)
        rho = finish_time_fairness(view)
        worst = worst_first(rho, ~leased, self.fairness)
        first_fit(worst, view.fewest, view.speed, view.mixed, view.workers, free, self.strict, workers)
        bidding = np.zeros(len(view), np.bool_)
        bidding[worst] = True
        won = grown_at_price(view, workers, view.remaining_s, free, bidding, fairly=True)
        workers = paid(workers, won)
        rest = np.flatnonzero(~leased & (workers.sum(axis=1) == 0))
        rest = rest[np.argsort(-rho[rest], kind="stable")]
        left = view.capacity - workers.sum(axis=0)
        first_fit(rest, view.fewest, view.speed, view.mixed, view.workers, left, self.strict, workers)
        wake = (np.floor(view.now / self.lease_s + 1e-9) + 1) * self.lease_s
        return Allocation(workers, wake=float(wake) if len(view) else np.inf)


def finish_time_fairness(view: View) -> Floats:
    """rho if a job had what it asked for from now on: (time since arrival + time left) / time alone."""
    shared = view.now - view.submit + view.remaining_s
    rho: Floats = shared / np.maximum(view.estimate_s, 1e-6)
    return rho


def worst_first(rho: Floats, bidding: Bools, fairness: float) -> Ints:
    """The worst 1 - f share of all jobs by rho, of those that bid."""
    jobs = np.flatnonzero(bidding)
    count = min(len(jobs), max(1, int(np.ceil((1 - fairness) * len(rho)))))
    return jobs[np.argsort(-rho[jobs], kind="stable")[:count]]


def paid(base: Ints, won: Grown) -> Ints:
    """What winners keep of their flexible workers, so that honest bids are best: what the others lose by their being
    there, exp(-price x workers), the price being the logarithm of a bid that one more worker would have raised."""
    extra = won.workers - base
    kept = np.exp(-won.price * extra.sum(axis=1, keepdims=True))
    result: Ints = base + np.ceil(extra * kept - 1e-9).astype(np.int64)
    return result
