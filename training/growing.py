"""Policies that give jobs more workers than they need: the common steps. Pure functions over a view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.kernels import first_fit, grow_by_gain, keep_fastest
from training.view import View

MOVE_GAIN = 2.0
"""A job moves to faster devices if it ends sooner by so many times what moving takes."""


def bases(view: View, key: Floats, preemptive: bool, need: Ints | None = None, left: Floats | None = None) -> Ints:
    """Base workers [n, kinds], first fit in the order of `key`; without preemption whoever runs keeps its base where
    it has it. Whom that serves by what is `left` of it, [n] in seconds, moves to faster devices in its turn."""
    need = view.fewest if need is None else need
    moves = np.zeros(len(view), np.bool_) if left is None else better_elsewhere(view, left)
    workers = np.zeros((len(view), len(view.capacity)), np.int64)
    free = view.capacity.copy()
    if preemptive:
        order = np.argsort(key, kind="stable")
    else:
        keep_fastest(view.workers, view.running, need, view.speed, free, workers)
        waiting = np.flatnonzero(~view.running | moves)
        order = waiting[np.argsort(key[waiting], kind="stable")]
    held = np.where(moves[:, None], 0, view.workers)
    first_fit(order, need, view.speed, view.mixed, held, free, False, workers)
    return workers


def better_elsewhere(view: View, left: Floats) -> Bools:
    """Who runs on a kind that is slower than its fastest and has enough `left` to do to make up for moving, [n]"""
    if len(view.capacity) == 1:
        return np.zeros(len(view), np.bool_)
    here = np.where(view.workers > 0, view.speed, np.inf).min(axis=1)
    fastest = np.where(view.capacity > 0, view.speed, 0.0).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        saved_s = np.where(view.running, left / here - left / fastest, 0.0)
    better: Bools = saved_s > MOVE_GAIN * view.restart
    return better


def grown(view: View, workers: Ints, work: Floats) -> Ints:
    """`workers` with what is left given out, worker by worker, to the job whose running time it lowers most.

    `work` [n] is the seconds that what is left of each job takes at `gpus` workers. A job on one kind grows there.
    """
    return grown_at_price(view, workers, work, view.capacity - workers.sum(axis=0)).workers


@dataclass(frozen=True)
class Grown:
    """Workers [n, kinds], and what the first worker would have brought that no device was left for."""

    workers: Ints
    price: float


def grown_at_price(
    view: View, workers: Ints, work: Floats, free: Ints, among: Bools | None = None, fairly: bool = False
) -> Grown:
    """The same with only some `free` devices, for only the jobs `among` [n]; `fairly`: by the logarithm of the time
    since arrival, which is proportional fairness."""
    single = workers.shape[1] == 1
    total = workers[:, 0] if single else workers.sum(axis=1)
    grows = (total > 0) & (total < view.most)
    jobs = np.flatnonzero(grows if among is None else grows & among)
    if not len(jobs) or not free.any():
        return Grown(workers, 0.0)
    kind = np.zeros(len(jobs), np.int64) if single else workers[jobs].argmax(axis=1)
    serial, curve, curves, one = view.curve_columns
    more = total[jobs]
    scratch = np.zeros(len(jobs), np.int64), np.zeros(len(jobs))
    price = grow_by_gain(
        (work * one)[jobs],
        (view.now - view.submit)[jobs],
        fairly,
        view.most[jobs],
        serial[jobs],
        curve[jobs],
        curves,
        kind,
        view.speed[jobs, kind],
        free,
        more,
        *scratch,
    )
    workers = workers.copy()
    workers[jobs, kind] += more - total[jobs]
    return Grown(workers, price)
