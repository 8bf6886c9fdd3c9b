"""What several HTTP processes bring: one-pass requests to emulated workers, answered by the process that routes itself
(0 front ends), by one front end, and by two.

    python -m benchmarks.fronts [--tiny] [--seconds S]

Closed-loop load from two processes, as many connections for each front end. Two measurements:
  free   all have the machine, and share it: CPU of the server's processes a request, and of each of them. `ratio` is
         CPU a request with two front ends over that with one (limit 1.1). `computed_per_s` is not measured: what the
         dearest process would take if every process had a core of its own.
  held   the kernel holds each front end to a quarter of a core, so that they are the limit and neither the process
         that routes nor the load is (`busy` says who took how much): `scaling` is requests a second with two over one
         (goal 1.7), `held_ratio` CPU a request. Needs the right to make a cgroup.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.cases import emit, note
from benchmarks.harness.quota import can_hold, held
from benchmarks.harness.server import Server
from benchmarks.harness.small_world import ask, own_cores, small_world
from benchmarks.harness.world import World
from benchmarks.peers.processes import cpu_s
from placement.plan import Plan

LIMIT, SCALING = 1.1, 1.7
PASS_S = 0.0005
DEVICES = 16
SHARE = 0.25
"""Of a core, for a front end that is held."""
CONNECTIONS = 12
"""Of each of the two processes that ask, for each front end: a process that more ask at once takes less for each, so
that front ends are compared where each has as many. Enough to keep it busy, so few that no request takes as long as is
watched over (serving/http/watch.py), which costs CPU of its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="half a second each: a check that it runs")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    seconds, repeats = (0.5, 1) if options.tiny else (options.seconds, options.repeats)
    counts = (1, 2) if options.tiny else (0, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        world, plan = small_world(Path(folder), DEVICES, PASS_S, workers={"kind": "emulated"})
        free: dict[int, dict[str, Any]] = {}
        bound: dict[int, dict[str, Any]] = {}
        for count in counts:
            free[count], bound[count] = _measure(world, plan, count, seconds, repeats)
    found: dict[str, Any] = {
        "benchmark": "fronts",
        "ratio": round(free[2]["cpu_us"] / free[1]["cpu_us"], 3),
        "limit": LIMIT,
        "cores": os.cpu_count(),
        "free": {str(count): row for count, row in free.items()},
    }
    if can_hold():
        found["scaling"] = round(bound[2]["per_s"] / bound[1]["per_s"], 3)
        found |= {"scaling_goal": SCALING, "held_to_cores": SHARE}
        found["held_ratio"] = round(bound[2]["cpu_us"] / bound[1]["cpu_us"], 3)
        found["held"] = {str(count): row for count, row in bound.items() if count}
    emit(found)


def _measure(world: World, plan: Plan, fronts: int, seconds: float, repeats: int) -> tuple[dict[str, Any], ...]:
    """Free and held: the window with the least CPU a request, and that with the most requests."""
    name = f"fronts-{fronts}"
    config, path = world.write(name, fronts=fronts), world.write_plan(name, plan)
    with Server(config, "--plan", str(path)) as server:
        port, process = int(server.url.rpartition(":")[2]), server.process.pid
        connections = CONNECTIONS * max(fronts, 1)
        ask(port, connections, 0.5, own_cores()[:2])
        free = [_window(process, port, connections, seconds) for _ in range(repeats)]
        holds = fronts > 0 and can_hold()
        with held(_children(process), SHARE) if holds else nullcontext():
            bound = [_window(process, port, connections, seconds) for _ in range(repeats if holds else 0)]
    best = min(free, key=lambda row: row["cpu_us"]), max(bound, key=lambda row: row["per_s"], default={})
    note(f"{fronts} front ends: {best}")
    return best


def _window(server: int, port: int, connections: int, seconds: float) -> dict[str, Any]:
    processes = [server, *_children(server)]
    before, began, asking = {one: cpu_s([one]) for one in processes}, time.monotonic(), _ended_cpu_s()
    seen = ask(port, connections, seconds, own_cores()[:2])
    took = time.monotonic() - began
    used = {one: cpu_s([one]) - before[one] for one in processes}
    requests = sum(one["requests"] for one in seen)
    each_us = [round(used[one] / requests * 1e6, 1) for one in processes]
    return {
        "per_s": round(sum(one["per_s"] for one in seen), 1),
        "cpu_us": round(sum(each_us), 1),
        "routing_us": each_us[0],
        "fronts_us": each_us[1:],
        "computed_per_s": round(1e6 / max(each_us)),
        "busy": {
            "router": round(used[server] / took, 2),
            "fronts": [round(used[one] / took, 2) for one in processes[1:]],
            "load": round((_ended_cpu_s() - asking) / took, 2),
        },
        "p99_ms": round(max(one["p99_ms"] for one in seen), 2),
        "failed": sum(one["failed"] for one in seen),
    }


def _ended_cpu_s() -> float:
    """Of processes of ours that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


if __name__ == "__main__":
    main()
