"""Lyra on the 15-day case: loans of inference's idle servers and elastic jobs, against neither.

    python -m benchmarks.training_lyra [--tiny]

Reads $PENSTOCK_DATA/cases/training/lyra15d. Prints one JSON line: queueing and JCT with and without, how much of the
way to the JCT floor is covered (`to_floor`, against the README's baseline), preempted jobs, CPU seconds of each run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import msgspec

from benchmarks.cases import data_root, emit, note
from placement.cluster import Cluster, Node
from placement.units import Bytes
from training.demand import read_demand
from training.fleet import DEVICE_MEMORY, Fleet
from training.job_files import read_jobs
from training.jobs import Job
from training.policies import policy_named
from training.simulator import World, simulate

BASELINE = {"mean_queue": 1347.0, "p95_queue": 7140.0, "mean_jct": 21598.0}
"""First come first served with backfill, devices counted only, as the case's README gives it."""
FLOOR_S = 18506.0
OWN, LENT = 443, 520
RESTART_S, RESIZE_S, T4_SPEED = 60.0, 1.0, 0.33
FIELDS = ("mean_jct", "p95_jct", "mean_queue", "p95_queue", "preempted_jobs", "scaled_in", "utilization")


def lyra_jobs(all_elastic: bool = False) -> list[Job]:
    """The case's jobs with the costs its README gives."""
    jobs = []
    for job in read_jobs(data_root() / "cases" / "training" / "lyra15d" / "jobs.csv.gz"):
        fields: dict[str, Any] = {"restart": RESTART_S, "resize": RESIZE_S}
        if all_elastic:
            fields |= {"min_gpus": max(1, job.gpus // 2), "max_gpus": 2 * job.gpus}
        jobs.append(msgspec.structs.replace(job, **fields))
    return jobs


def lyra_world(loans: bool) -> World:
    """443 servers of 8 V100, and 520 of 8 T4 that traffic needs a changing part of."""
    own = [Node(f"v{n}", 8, Bytes(DEVICE_MEMORY), kind="v100") for n in range(OWN)]
    if not loans:
        return World(Fleet(Cluster(tuple(own))))
    lent = [Node(f"t{n}", 8, Bytes(DEVICE_MEMORY), kind="t4") for n in range(LENT)]
    speeds = {"v100": 1.0, "t4": T4_SPEED}
    fleet = Fleet(Cluster((*own, *lent)), speeds, lendable=frozenset(node.name for node in lent))
    return World(fleet, read_demand(data_root() / "cases" / "training" / "lyra15d" / "inference.csv"))


def measured(jobs: list[Job], policy: str, loans: bool, **options: Any) -> dict[str, Any]:
    began = time.process_time()
    summary = simulate(jobs, lyra_world(loans), policy_named(policy, **options)).summary()
    row = {name: round(summary[name], 3) for name in (*FIELDS, "reclaimed")}
    row["overall_utilization"] = summary["overall_utilization"]
    return row | {"preemption_ratio": round(row["preempted_jobs"] / len(jobs), 4), "cpu_s": round(_since(began), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="2,000 jobs: a check that it runs")
    tiny = parser.parse_args().tiny
    if not (data_root() / "cases" / "training" / "lyra15d" / "jobs.csv.gz").exists():
        emit({"benchmark": "training_lyra", "skipped": "no lyra15d case; set PENSTOCK_DATA", "to_floor": None})
        return
    count = 2000 if tiny else None
    rows = {}
    for label, policy, loans, all_elastic in (
        ("neither (fcfs)", "fcfs", False, False),
        ("lyra", "lyra", True, False),
        ("lyra, all elastic", "lyra", True, True),
    ):
        rows[label] = measured(lyra_jobs(all_elastic)[:count], policy, loans)
        note(f"{label}: {rows[label]}")
    lyra, everyone = rows["lyra"], rows["lyra, all elastic"]
    span = BASELINE["mean_jct"] - FLOOR_S
    emit(
        {
            "benchmark": "training_lyra",
            "to_floor": round((BASELINE["mean_jct"] - lyra["mean_jct"]) / span, 3),
            "queue_better": _times(BASELINE["mean_queue"], lyra["mean_queue"]),
            "p95_queue_better": _times(BASELINE["p95_queue"], lyra["p95_queue"]),
            "all_elastic_jct_better": _times(BASELINE["mean_jct"], everyone["mean_jct"]),
            "rows": rows,
        }
    )


def _times(before: float, after: float) -> float:
    """How many times better; a wait below a second counts as one."""
    return round(before / max(after, 1.0), 2)


def _since(began: float) -> float:
    return time.process_time() - began


if __name__ == "__main__":
    main()
