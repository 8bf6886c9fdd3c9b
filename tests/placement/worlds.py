"""Small worlds for tests: a problem, a plan and a workload as the plain values that the files hold.

Drawn times are multiples of 1/64 s and sizes are powers of two, so that sums are exact and ties are ties.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from placement.cluster import Cluster
from placement.files import convert
from placement.plan import Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.workload import Workload

TICK = 1 / 64
MIB = 2**20
BANDWIDTH = 64 * MIB
"""Bytes per second: one MiB wakes or loads in one tick."""


@dataclass(frozen=True)
class World:
    """Plain values, as in problem.json, profiles.json, plan.json and the workload's .npz."""

    nodes: list[dict[str, Any]]
    profiles: dict[str, Any]
    models: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    arrivals: list[tuple[float, int]]
    overhead: float = 0.0
    ready: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the replica of (model, group) is loaded; at once where it is not named."""

    @cached_property
    def problem(self) -> Problem:
        cluster = convert({"nodes": self.nodes}, Cluster, "world")
        profiles = {name: convert(entry, Profile, "world") for name, entry in self.profiles.items()}
        models = tuple(
            Model(entry["name"], profiles[entry["profile"]], Slo(entry["slo"]), weight=entry.get("weight", 1.0))
            for entry in self.models
        )
        return Problem(cluster, models, self.workload, self.overhead)

    @cached_property
    def plan(self) -> Plan:
        return convert({"groups": self.groups}, Plan, "world")

    @cached_property
    def workload(self) -> Workload:
        arrival = np.array([arrival for arrival, _ in self.arrivals])
        return Workload(arrival, np.array([model for _, model in self.arrivals], np.int32))

    def with_groups(self, groups: list[dict[str, Any]]) -> World:
        return replace(self, groups=groups)

    def problem_document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "cluster": {"nodes": self.nodes},
            "models": self.models,
            "profiles": "profiles.json",
            "workload": "workload.npz",
            "overhead": self.overhead,
        }

    def write(self, folder: Path) -> Path:
        """All four files; returns the problem's."""
        documents = {
            "problem": self.problem_document(),
            "profiles": self.profiles,
            "plan": {"version": 1, "groups": self.groups},
        }
        for name, document in documents.items():
            (folder / f"{name}.json").write_text(json.dumps(document))
        np.savez(folder / "workload.npz", arrival=self.workload.arrival, model=self.workload.model)
        return folder / "problem.json"


def shape(
    latency: dict[int, list[float]], memory: list[int] | None = None, tp: int = 1, **extra: Any
) -> dict[str, Any]:
    """A profile's entry; as many stages as the latencies have, 1 MiB each unless told."""
    stages = len(latency[1])
    return {
        "tp": tp,
        "pp": stages,
        "stage_latency": {str(size): stage_s for size, stage_s in latency.items()},
        "stage_memory": memory or [MIB] * stages,
        **extra,
    }


def node(devices: int, name: str = "n", **extra: Any) -> dict[str, Any]:
    return {
        "name": name,
        "devices": devices,
        "memory": 1024 * MIB,
        "host_memory": 2**40,
        "load_bandwidth": BANDWIDTH,
        **extra,
    }


def group(
    devices: list[str], models: list[str], tp: int = 1, parked: list[str] | None = None, **extra: Any
) -> dict[str, Any]:
    entry = {"devices": devices, "tp": tp, "pp": len(devices) // tp, "models": models, **extra}
    return entry | ({"parked": parked} if parked else {})


def one_model_world(
    latency: dict[int, list[float]], slo: float, arrivals: list[float], groups: int = 1, **extra: Any
) -> World:
    """Model "a" on each of so many equal groups."""
    stages = len(latency[1])
    return World(
        nodes=[node(groups * stages)],
        profiles={"p": {"shapes": [shape(latency)]}},
        models=[{"name": "a", "profile": "p", "slo": slo}],
        groups=[group([f"n/{g * stages + s}" for s in range(stages)], ["a"]) for g in range(groups)],
        arrivals=[(arrival, 0) for arrival in arrivals],
        **extra,
    )


SHAPES = ((1, 1), (1, 2), (2, 1), (1, 3))


def worlds(max_requests: int = 60, loading: bool = False) -> st.SearchStrategy[World]:
    """Hypothesis chooses a seed and shrinks how many requests come. (Choosing every number, it stays with
    tiny worlds in which nobody waits.)"""
    requests = st.integers(1, max_requests) | st.just(max_requests)
    return st.builds(random_world, st.integers(0, 2**32), requests, st.just(loading))


def random_world(seed: int, requests: int = 60, loading: bool = False) -> World:
    """1-5 groups of mixed shapes, 1-5 models with batch sizes among 1, 2, 4, resident or parked or nowhere;
    traffic from idle to overloaded, with simultaneous arrivals and equal deadlines. `loading`: some replicas
    are not ready at the start."""
    random = Random(seed)
    shapes = [random.choice(SHAPES) for _ in range(random.randint(1, 5))]
    models = random.randint(1, 5)
    most_parked = random.choice((0, 0, 1, 3))
    mean_gap = random.choice((0.5, 1.0, 3.0))
    patience = random.choice((2, 4, 8, 12))
    overhead = random.choice((0.0, TICK))
    devices = sum(tp * pp for tp, pp in shapes)
    here = random.choice((devices, random.randint(1, devices)))
    nodes = [node(here, "n", kind="k")]
    if here < devices:
        nodes.append(node(devices - here, "o", kind="k", load_bandwidth=BANDWIDTH // random.choice((1, 2))))
    names = [f"{entry['name']}/{index}" for entry in nodes for index in range(entry["devices"])]
    costs = {f"p{index}": _profile(random, sorted(set(shapes))) for index in range(random.randint(1, 3))}
    entries = []
    for index in range(models):
        profile = random.choice(sorted(costs))
        shortest = min(sum(entry["stage_latency"]["1"]) for entry in costs[profile]["shapes"])
        slo = overhead + shortest * random.choice((1, 1.5, patience, patience, 2 * patience))
        weight = random.choice((0.5, 1.0, 1.0, 4.0))
        entries.append({"name": f"m{index}", "profile": profile, "slo": slo, "weight": weight})
    groups, ready = [], {}
    for number, (tp, pp) in enumerate(shapes):
        placed = [entry["name"] for entry in entries if random.random() < 0.75]
        parked = random.sample(placed, min(most_parked, len(placed)))
        resident = [name for name in placed if name not in parked]
        groups.append({"devices": names[: tp * pp], "tp": tp, "pp": pp, "models": resident, "parked": parked})
        names = names[tp * pp :]
        if loading:
            ready |= {(name, number): random.randint(0, 20) * TICK for name in placed}
    arrivals, tick = [], 0
    for _ in range(requests):
        if random.random() < 0.5:  # else together with the one before
            tick += round(2 * random.expovariate(1 / mean_gap))
        arrivals.append((tick * TICK, random.randrange(models)))
    return World(nodes, costs, entries, groups, arrivals, overhead, ready)


def _profile(random: Random, shapes: list[tuple[int, int]]) -> dict[str, Any]:
    """Every shape of the plan, for any kind and span; sometimes an entry of its own across nodes."""
    entries = []
    for tp, pp in shapes:
        latency = {1: [random.randint(1, 8) for _ in range(pp)]}
        for size in random.choice(((), (2,), (4,), (2, 4), (2, 4))):
            # From nearly free to worse than one by one.
            worst = random.choice((1, size))
            latency[size] = [one + random.randint(0, worst * one) for one in latency[1]]
        memory = [random.randint(1, 6) * MIB for _ in range(pp)]
        seconds = {size: [ticks * TICK for ticks in stages] for size, stages in latency.items()}
        entries.append(shape(seconds, memory, tp))
        if tp * pp > 1 and random.random() < 0.3:
            dearer = {1: [stage_s + TICK for stage_s in seconds[1]]}
            entries.append(shape(dearer, memory, tp, kind="k", span="cluster"))
    return {"shapes": entries}


def other_groups(world: World, seed: int) -> list[dict[str, Any]]:
    """Another plan for the world: some groups as they are with other models, some devices grouped anew."""
    random = Random(seed)
    kept = [entry for entry in world.groups if random.random() < 0.5]
    used = {device for entry in kept for device in entry["devices"]}
    names = [f"{entry['name']}/{index}" for entry in world.nodes for index in range(entry["devices"])]
    free = [name for name in names if name not in used]
    random.shuffle(free)
    shapes = [(entry["tp"], entry["pp"]) for entry in world.groups]
    groups = [dict(entry) for entry in kept]
    while free:
        tp, pp = random.choice([*shapes, (1, 1)])
        if (tp, pp) in shapes and tp * pp <= len(free):
            groups.append({"devices": free[: tp * pp], "tp": tp, "pp": pp, "models": [], "parked": []})
        free = free[tp * pp :]
    random.shuffle(groups)
    for entry in groups:
        if entry["models"] + entry["parked"] and random.random() < 0.5:
            continue
        roles = {model["name"]: random.choice(("models", "models", "parked", "absent")) for model in world.models}
        entry["models"] = [name for name, role in roles.items() if role == "models"]
        entry["parked"] = [name for name, role in roles.items() if role == "parked"]
    return groups
