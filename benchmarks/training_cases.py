"""Our policies beside the peers' own recorded results: mix480 (Tiresias), Gavel's trace, Pollux' workloads.

    python -m benchmarks.training_cases [--tiny]

Reads $PENSTOCK_DATA (see benchmarks.cases). Mean JCT in seconds, ours over the peer's as `ratio`. Prints one JSON line;
`worst_ratio` is the largest distance of mix480's mean JCTs from the peer's, as a ratio.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.cases import data_root, emit, note
from placement.cluster import Cluster, Node
from placement.units import Bytes
from training.fleet import DEVICE_MEMORY, Fleet
from training.gavel_trace import read_gavel
from training.job_files import read_jobs
from training.policies import policy_named
from training.pollux_trace import read_pollux
from training.simulator import World, simulate
from training.view import Allocation, Information, Policy, View

GPUS = 64
FIELDS = ("mean_jct", "median_jct", "p95_jct", "makespan", "preemptions")
# policy, options, what Tiresias' simulator gave: mean JCT, median, p95, makespan, preemptions
MIX480: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "fcfs --strict": ("fcfs", {"strict": True}, (14097.606, 14551, 28479.2, 120906, 0)),
    "fcfs": ("fcfs", {}, (8412.054, 4325.5, 25625.9, 116844, 0)),
    "fewest-gpus": ("fewest-gpus", {}, (7997.350, 2449.5, 33830.3, 118220, 80)),
    "srtf": ("srtf", {}, (5693.329, 1525.5, 22374.3, 115417, 577)),
    "srsf": ("srsf", {}, (5502.648, 1525.5, 19874.9, 121934, 178)),
    "tiresias-las": ("tiresias-las", {}, (6880.802, 1770.5, 32782.1, 117985, 273)),
}
# mean JCT and makespan from Gavel's own code on 8 V100, 16 P100, 24 K80
GAVEL: dict[str, tuple[float, float]] = {
    "fifo-perf": (19526.9, 72320),
    "fifo-perf, shares held": (19526.9, 72320),
    "max-min-fairness": (19989.3, 77141),
    "max-min-fairness-perf": (14622.8, 63945),
    "finish-time-fairness-perf": (15009.7, 64971),
    "max-sum-throughput-perf": (17071.7, 63937),
    "min-makespan-perf": (22972.6, 61513),
    "gandiva": (17379.4, 67405),
}
ROUND_S, HELD_S = 360.0, 1920.0
"""Gavel's rounds, and how long it keeps to the shares it has computed."""
# mean JCT from Pollux' own simulator, by workload: nodes of 4, then its policies
POLLUX: dict[str, tuple[int, dict[str, float]]] = {
    "case_w6_first12.csv": (4, {"pollux": 1753, "optimus": 2857, "tiresias-las": 3268}),
    "workloads/workload-6.csv": (16, {"pollux": 2446.1, "optimus": 5301.9, "tiresias-las": 3469.7}),
}
# In that simulator Tiresias has two queues, and everybody decides once a minute.
POLLUX_TIRESIAS: dict[str, Any] = {"thresholds": (57600.0,), "round_s": 60.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="one policy: a check that it runs")
    tiny = parser.parse_args().tiny
    path = data_root() / "cases" / "training" / "mix480.csv"
    if not path.exists():
        emit({"benchmark": "training_cases", "skipped": f"no {path}; set PENSTOCK_DATA", "worst_ratio": None})
        return
    mix480 = run_mix480(path, 1 if tiny else None)
    worst = max(max(row["ratio"], 1 / row["ratio"]) for row in mix480.values())
    result = {"benchmark": "training_cases", "worst_ratio": round(worst, 4), "mix480": mix480}
    if not tiny:
        result |= {
            "gavel": run_gavel(data_root() / "data" / "gavel"),
            "pollux": run_pollux(data_root() / "data" / "pollux"),
        }
    emit(result)


def run_mix480(path: Path, first: int | None) -> dict[str, Any]:
    jobs = read_jobs(path)
    rows: dict[str, Any] = {}
    for label, (name, options, peer) in list(MIX480.items())[:first]:
        summary = simulate(jobs, Fleet.of(GPUS), policy_named(name, **options)).summary()
        ours = [round(float(summary[field]), 3) for field in FIELDS]
        rows[label] = {
            "ours": dict(zip(FIELDS, ours, strict=True)),
            "peer": dict(zip(FIELDS, peer, strict=True)),
            "ratio": round(ours[0] / peer[0], 6),
        }
        note(f"{label}: {rows[label]}")
    return rows


def run_gavel(folder: Path) -> dict[str, Any]:
    jobs = read_gavel(folder / "traces" / "max_min_fairness.trace", folder / "simulation_throughputs.json")
    counts = {"v100": 2, "p100": 4, "k80": 6}
    fleet = Fleet(Cluster(tuple(_node(f"{kind}-{n}", kind) for kind, count in counts.items() for n in range(count))))
    rows: dict[str, Any] = {}
    for label, peer in GAVEL.items():
        summary = simulate(jobs, fleet, _gavel_policy(label)).summary()
        rows[label] = {
            "mean_jct": round(summary["mean_jct"], 1),
            "makespan": round(summary["makespan"]),
            "peer": peer,
            "ratio": round(summary["mean_jct"] / peer[0], 4),
        }
        note(f"gavel {label}: {rows[label]}")
    return rows


def run_pollux(folder: Path) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, (nodes, peers) in POLLUX.items():
        fleet = Fleet(Cluster(tuple(_node(f"n{n}", "any") for n in range(nodes))))
        for policy, peer in peers.items():
            options = POLLUX_TIRESIAS if policy == "tiresias-las" else {}
            elastic = policy != "tiresias-las"
            jobs, speeds = read_pollux(folder / name, folder / "profiles", tuned=policy == "pollux", elastic=elastic)
            mean = simulate(jobs, World(fleet, speeds=speeds), policy_named(policy, **options)).summary()["mean_jct"]
            rows[f"{name} {policy}"] = {"mean_jct": round(mean, 1), "peer": peer, "ratio": round(mean / peer, 4)}
            note(f"pollux {name} {policy}: {rows[f'{name} {policy}']}")
    return rows


@dataclass
class HeldFifo:
    """Gavel's fifo-perf as its own simulator runs it: shares are computed anew 1,920 s after the last time at the
    soonest, the first job that does not fit blocks the rest, and what is free then stays idle. For one run."""

    name: ClassVar[str] = "gavel"
    information: Information = "oracle"
    round_s: float = ROUND_S
    given: dict[int, int] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    since: float = -np.inf

    def allocate(self, view: View) -> Allocation:
        rows = view.rows.tolist()
        if self.known != frozenset(rows) and view.now - self.since >= HELD_S:
            self.known, self.since, self.given = frozenset(rows), view.now, _in_turn(view)
        workers = np.zeros_like(view.workers)
        for at, row in enumerate(rows):
            if row in self.given:
                workers[at, self.given[row]] = view.gpus[at]
        wake = (np.floor(view.now / ROUND_S + 1e-9) + 1) * ROUND_S
        return Allocation(workers, wake=float(wake))


def _in_turn(view: View) -> dict[int, int]:
    """Kinds by row, in order of arrival: each job's fastest with room, until one finds none."""
    given: dict[int, int] = {}
    free = view.capacity.copy()
    for at, row in enumerate(view.rows.tolist()):
        usable = np.flatnonzero((free >= view.gpus[at]) & (view.speed[at] > 0))
        if not len(usable):
            break
        given[row] = int(usable[np.argmax(view.speed[at, usable])])
        free[given[row]] -= view.gpus[at]
    return given


def _gavel_policy(label: str) -> Policy:
    if label == "fifo-perf, shares held":
        return HeldFifo()
    return policy_named("gandiva") if label == "gandiva" else policy_named("gavel", objective=label)


def _node(name: str, kind: str) -> Node:
    return Node(name, 4, Bytes(DEVICE_MEMORY), kind=kind)


if __name__ == "__main__":
    main()
