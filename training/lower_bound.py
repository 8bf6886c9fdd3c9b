"""How little mean queueing any schedule can have that knows all arrivals and may cut jobs at will.

A job ends at least half its length (with the most workers it may have) after the mean time of its work, so the least
sum of those mean times bounds the sum of ends from below. Instead of being limited, let devices have a price that
changes with time; let each job alone choose its cheapest seconds, counting their time and their price; and take from
the sum what all devices would have earned. Whatever the prices, no schedule is below that (weak duality). Prices rise
where more is chosen than there is and fall where less is; the best bound seen counts. One kind of device; elastic
jobs must scale linearly.
"""

from __future__ import annotations

import numpy as np

from placement.compiled import entry_point
from training.arrays import Floats
from training.jobs import LINEAR, Job

HALVINGS = 60
LATE = 1e15
"""When the last slot ends, which is free."""
PATIENCE, MOMENTUM = 5, 0.7
"""Rounds without a better bound after which the level comes down; how much of a step the next one keeps."""


def least_mean_queue(jobs: list[Job], gpus: int, slots: int = 500, rounds: int = 1000) -> float:
    """Seconds beyond the time each job takes with the most workers it may have, on average."""
    assert all(job.curve == LINEAR for job in jobs if job.elastic)
    width = np.array([job.most for job in jobs], np.float64)
    length = np.array([job.work_s * job.gpus for job in jobs]) / width
    arrival = np.array([job.arrival for job in jobs], np.float64)
    order = np.argsort(arrival, kind="stable")
    arrival, length, width = arrival[order] - arrival.min(), length[order], width[order]
    end = float(arrival[-1]) + float((length * width).sum()) / gpus
    edges = np.append(np.linspace(0.0, end, slots + 1), LATE)
    return max(0.0, _best_bound(arrival, length, width, edges, gpus, rounds)) / len(jobs)


def _best_bound(arrival: Floats, length: Floats, width: Floats, edges: Floats, gpus: int, rounds: int) -> float:
    """Seconds of queueing of all jobs together, by subgradient ascent: each step would reach a level above the best
    (Polyak's) if all were straight; the level comes down while nothing better is found."""
    room = gpus * np.diff(edges)
    price, asked, towards = np.zeros(len(room)), np.empty(len(room)), np.zeros(len(room))
    best, best_price, ahead, worse = 0.0, price, float(length.sum()), 0
    for _ in range(rounds):
        found = bound_at(price, arrival, length, width, edges, asked) - float((price * room).sum())
        if found > best:
            best, best_price, worse = found, price, 0
        worse += 1
        if worse > PATIENCE:
            price, found, ahead, worse = best_price, best, ahead / 2, 0
            towards[:] = 0.0
            bound_at(price, arrival, length, width, edges, asked)
        towards = asked - room + MOMENTUM * towards
        towards[-1] = 0.0  # the last slot stays free
        norm = float((towards**2).sum())
        if norm <= 0:
            break
        price = np.maximum(price + (best + ahead - found) / norm * towards, 0.0)
    return best


@entry_point
def bound_at(price: Floats, arrival: Floats, length: Floats, width: Floats, edges: Floats, asked: Floats) -> float:
    """What the jobs pay and wait in all when each takes its cheapest seconds; `asked` is set to the device-seconds
    chosen in each slot. Each job's sum is the least there is, or below it by what halving leaves."""
    slots = asked.size
    slot = edges[1] - edges[0]
    asked[:] = 0.0
    total = 0.0
    for job in range(arrival.size):
        begin, work = arrival[job], length[job] * width[job]
        first = min(int(begin / slot), slots - 1)
        # Running at once is dear enough: nothing later than what that costs is ever chosen.
        high, last = begin + length[job], first
        while last < slots and edges[last] < begin + length[job]:
            high = max(high, begin + length[job] + work * price[last])
            last += 1
        low, level = begin, begin
        for _ in range(HALVINGS):
            level = (low + high) / 2
            taken, at = 0.0, first
            while at < slots and edges[at] < level and taken < length[job]:
                taken += max(0.0, min(edges[at + 1], level - work * price[at]) - max(edges[at], begin))
                at += 1
            if taken < length[job]:
                low = level
            else:
                high = level
            if high - low < 1e-9 * high:
                break
        taken, at, cost = 0.0, first, 0.0
        while at < slots and edges[at] < low:
            start = max(edges[at], begin)
            spent = min(edges[at + 1], low - work * price[at]) - start
            if spent > 0:
                taken += spent
                cost += spent * (start + spent / 2 - begin + work * price[at])
                asked[at] += spent * width[job]
                last = at
            at += 1
        rest = max(length[job] - taken, 0.0)
        asked[last if taken > 0 else first] += rest * width[job]
        total += (cost + rest * (low - begin)) / length[job] - length[job] / 2
    return total
