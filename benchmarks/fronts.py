"""What several HTTP processes bring: one-pass requests to emulated workers, answered by the process that routes itself
(0 front ends), by one front end, and by two.

    python -m benchmarks.fronts [--tiny] [--seconds S]

Closed-loop load from two processes. Told are requests a second, CPU of all of the server's processes a request, and how
busy each process was: whoever is near 1 is the limit, and where all processes share few cores, the machine is. Told
beside is `routing_us`, what a request costs the one process that routes: its inverse is what one router takes, however
many front ends there are. `ratio` is CPU a request with two front ends over that with one (limit 1.1).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import emit, note
from benchmarks.harness.encoder import make_random_encoder
from benchmarks.harness.fidelity_worlds import TINY_ENCODER
from benchmarks.harness.server import Server
from benchmarks.harness.world import World, make_world
from benchmarks.peers.processes import cpu_s
from placement.plan import Group, Plan
from placement.profile import Profile, ShapeProfile
from placement.units import Bytes

LIMIT = 1.1
PASS_S = 0.002
DEVICES = 16
LOAD = Path(__file__).parent / "peers" / "http_load.py"
CONNECTIONS = 32
"""Of each of the two processes that ask."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="half a second each: a check that it runs")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    seconds, repeats = (0.5, 1) if options.tiny else (options.seconds, options.repeats)
    counts = (1, 2) if options.tiny else (0, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        world, plan = _world(Path(folder))
        found = {count: _measure(world, plan, count, seconds, repeats) for count in counts}
    cpu_us = {count: row["cpu_us"] for count, row in found.items()}
    emit(
        {
            "benchmark": "fronts",
            "ratio": round(cpu_us[2] / cpu_us[1], 3),
            "limit": LIMIT,
            "requests_per_s_ratio": round(found[2]["per_s"] / found[1]["per_s"], 3),
            "cores": os.cpu_count(),
            "fronts": {str(count): row for count, row in found.items()},
        }
    )


def _world(folder: Path) -> tuple[World, Plan]:
    make_random_encoder(folder / "noop", **TINY_ENCODER)
    latency: dict[int, tuple[float, ...]] = dict.fromkeys((1, 2, 4, 8, 16), (PASS_S,))
    profiles = {"noop": Profile((ShapeProfile(1, 1, (Bytes(2**20),), latency),))}
    entries = [{"name": "noop", "path": str(folder / "noop"), "slo": 5.0}]
    world = make_world(folder, entries, DEVICES, profiles=profiles, workers={"kind": "emulated"})
    return world, Plan(tuple(Group((f"local/{number}",), 1, 1, ("noop",)) for number in range(DEVICES)))


def _measure(world: World, plan: Plan, fronts: int, seconds: float, repeats: int) -> dict[str, Any]:
    name = f"fronts-{fronts}"
    config, path = world.write(name, fronts=fronts), world.write_plan(name, plan)
    with Server(config, "--plan", str(path)) as server:
        port = int(server.url.rpartition(":")[2])
        _load(port, 0.5)
        rows = [_window(server.process.pid, port, seconds) for _ in range(repeats)]
    best = min(rows, key=lambda row: row["cpu_us"])
    note(f"{fronts} front ends: {best}")
    return best | {"per_s": max(row["per_s"] for row in rows)}


def _window(server: int, port: int, seconds: float) -> dict[str, Any]:
    processes = [server, *_children(server)]
    before, began = {one: cpu_s([one]) for one in processes}, time.monotonic()
    seen = _load(port, seconds)
    took = time.monotonic() - began
    used = {one: cpu_s([one]) - before[one] for one in processes}
    requests = sum(one["requests"] for one in seen)
    return {
        "per_s": round(sum(one["per_s"] for one in seen), 1),
        "cpu_us": round(sum(used.values()) / requests * 1e6, 1),
        "routing_us": round(used[server] / requests * 1e6, 1),
        "busy": {
            "router": round(used[server] / took, 2),
            "fronts": [round(used[one] / took, 2) for one in processes[1:]],
        },
        "p99_ms": round(max(one["p99_ms"] for one in seen), 2),
        "failed": sum(one["failed"] for one in seen),
    }


def _load(port: int, seconds: float) -> list[dict[str, float]]:
    """Two processes ask at once."""
    cores = sorted(os.sched_getaffinity(0))
    asking = [
        subprocess.Popen(
            [sys.executable, str(LOAD), str(port), str(CONNECTIONS), str(seconds), str(core)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in (cores[0], cores[-1])
    ]
    return [json.loads(one.communicate(timeout=seconds + 60)[0]) for one in asking]


def _children(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


if __name__ == "__main__":
    main()
