"""What the benchmarks share: the planning cases with the peers' own results, read from $PENSTOCK_DATA, and the one
JSON line each benchmark prints."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from placement.files import convert
from placement.plan import Plan
from placement.problem import Problem, read_problem
from placement.workload import Workload, read_workload

EVALS = 4


@dataclass(frozen=True)
class PeerPlan:
    """What AlpaServe's search chose by one of its policies, and its attainment on each eval draw."""

    name: str
    plan: Plan
    attainment: list[float]
    mean: float
    search_s: float


@dataclass(frozen=True)
class Case:
    name: str
    problem: Problem
    evals: list[Workload]
    peers: list[PeerPlan]
    traffic: dict[str, Any]

    @property
    def best_peer(self) -> PeerPlan:
        return max(self.peers, key=lambda peer: peer.mean)


def data_root() -> Path:
    return Path(os.environ.get("PENSTOCK_DATA") or Path(__file__).parents[2] / "shared")


def case_names() -> list[str]:
    return sorted(path.parent.name for path in (data_root() / "cases").glob("c*/problem.json"))


def read_case(name: str) -> Case:
    folder = data_root() / "cases" / name
    problem = read_problem(folder / "problem.json")
    record = msgspec.json.decode((folder / "peer.json").read_bytes())
    peers = []
    for policy, entry in record["policies"].items():
        entry["plan"].pop("version", None)
        plan = convert(entry["plan"], Plan, f"{folder / 'peer.json'}: {policy}")
        peers.append(PeerPlan(policy, plan, entry["attainment"], entry["attainment_mean"], entry["search_cpu_s"]))
    evals = [read_workload(folder / f"eval{n}.npz", len(problem.models)) for n in range(EVALS)]
    return Case(name, problem, evals, peers, record["traffic"])


def emit(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")


def emit_skipped(benchmark: str) -> None:
    emit(
        {
            "benchmark": benchmark,
            "skipped": f"no planning cases in {data_root() / 'cases'}; set PENSTOCK_DATA",
        }
    )


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
