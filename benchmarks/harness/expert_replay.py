"""Real routes of an expert model, replayed through emulated devices. Nothing here runs a model or waits.

The step-time model, for the expert part of a layer: the device with the most choices takes `EXPERT_S` for each of them,
and the exchange takes `EXCHANGE_S` for each choice of that device, there and back. A batch takes the sum over layers.
Requests are batches that arrive by chance and are served one after the other. A new placement serves from the next
batch on, whoever made it: the time to copy weights is not in the model, the bytes are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moe.arrays import Floats
from moe.decision import Terms, decide
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.popularity import Recent, Routes, count_choices
from moe.replication import Eplb, Penstock, Static, Task
from moe.split import Splitter, balancedness, even_levels

DOMAINS = ("intent", "law", "summary")
BATCH = 512
EXPERTS = 64
EXPERT_S = 17.3e6 / 125e12
"""3 matrices of 2048 x 1408, two operations a weight, at 125 TFLOP/s."""
EXCHANGE_S = 2 * 2048 * 2 / 50e9
"""A row of 2048 two-byte numbers at 50 GB/s, there and back."""
EXPERT_BYTES = 3 * 2048 * 1408 * 2
HOLD_S = 10.0
"""How long a placement is thought to serve, when a move is weighed."""
EVERY = 4
"""Batches between two looks at the placement."""


@dataclass(frozen=True)
class Domain:
    """Batches of routes; what is planned from the first half is judged on the second."""

    history: list[Routes]
    later: list[Routes]


@dataclass(frozen=True)
class Served:
    service_s: Floats
    """[batches]"""
    balance: Floats
    """[batches]: mean over layers."""
    bytes_moved: int


def read_domains(path: Path) -> dict[str, Domain]:
    domains = {}
    with np.load(path) as data:
        for name in DOMAINS:
            ids = data[f"{name}_ids"]
            batches = [ids[begin : begin + BATCH] for begin in range(0, len(ids) - BATCH + 1, BATCH)]
            domains[name] = Domain(batches[: len(batches) // 2], batches[len(batches) // 2 :])
    return domains


def mixed(domains: dict[str, Domain]) -> list[Routes]:
    """The histories, taking turns."""
    return [
        batch for batches in zip(*(domain.history for domain in domains.values()), strict=False) for batch in batches
    ]


def loads(batches: list[Routes]) -> Floats:
    """[batches, layers, experts]"""
    return np.stack([count_choices(batch, EXPERTS) for batch in batches])


def levels_of(policy: str, placement: ExpertPlacement, pool: Pool) -> Callable[[Floats], Floats]:
    """The greatest device load of each layer as the policy would split it: ours each batch anew, others evenly."""
    if policy == "penstock":
        splitter = Splitter(placement, pool.speed)
        return lambda load: splitter.split(load.astype(np.int64)).level
    return lambda load: even_levels(load, placement, pool.speed)


def first_placement(policy: str, history: list[Routes], pool: Pool) -> ExpertPlacement:
    seen = loads(history)
    load = seen.mean(axis=0)
    if policy == "static":
        return Static().place(Task(load, pool))
    return Penstock().place(Task(load, pool, seen)) if policy == "penstock" else Eplb().place(Task(load, pool))


def replay(policy: str, history: list[Routes], stream: list[Routes], pool: Pool, every: int = EVERY) -> Served:
    """Serve the stream, looking at the placement every so many batches: `eplb` is placed anew for the recent loads, its
    moves free (`eplb_once` is not); `penstock` decides with the bytes in view."""
    recent = Recent(history[0].shape[1], EXPERTS)
    for batch in history:
        recent.learn(batch)
    placement = first_placement(policy, history, pool)
    terms = Terms(EXPERT_BYTES, hold_s=HOLD_S)
    service, balance, moved = [], [], 0
    for number, batch in enumerate(stream):
        load = count_choices(batch, EXPERTS)
        level = levels_of(policy, placement, pool)(load)
        service.append(float(level.sum()) * (EXPERT_S + EXCHANGE_S))
        balance.append(float(balancedness(load, level, pool.speed).mean()))
        recent.learn(batch)
        if (number + 1) % every or policy in ("static", "eplb_once"):
            continue
        if policy == "eplb":
            placement = Eplb().place(Task(recent.load(), pool))
            continue
        decision = decide(Task(recent.load(), pool, recent.history(), placement), terms)
        placement, moved = decision.placement, moved + decision.bytes_moved
    return Served(np.array(service), np.array(balance), moved)


def latencies(service_s: Floats, arrival: Floats) -> Floats:
    """One after the other, in order of arrival; the stream's batches again and again."""
    done = 0.0
    answer = np.empty(len(arrival))
    for number, at in enumerate(arrival):
        done = max(done, at) + service_s[number % len(service_s)]
        answer[number] = done - at
    return answer
