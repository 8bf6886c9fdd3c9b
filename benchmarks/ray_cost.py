"""What launching through Ray adds to a request: CPU of server and worker a request, with the local launcher and on a
Ray cluster of this machine, interleaved.

    python -m benchmarks.ray_cost [--tiny] [--seconds S] [--repeats N]

A small real encoder on one device, closed-loop load over 16 connections. The path of a request does not go through
Ray, but the server is a driver of Ray's, with threads of its own. `ratio` is CPU a request with Ray over that without
(limit 1.05), the best window of each; beside it, what Ray's own processes take a second, requests or not. Needs Ray.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

from benchmarks.cases import emit, note
from benchmarks.harness.server import Server
from benchmarks.harness.small_world import ask, own_cores, small_world
from benchmarks.harness.world import World
from benchmarks.peers.processes import cpu_s
from placement.plan import Plan

LIMIT = 1.05
PASS_S = 0.001
CONNECTIONS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="half a second each: a check that it runs")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        why = "Ray is not installed here; pip install 'penstock[ray]' brings it"
        emit({"benchmark": "ray_cost", "ratio": None, "skipped": why})
        return
    seconds, repeats = (0.5, 1) if options.tiny else (options.seconds, options.repeats)
    from benchmarks.harness.ray_nodes import ray_nodes

    with tempfile.TemporaryDirectory() as folder, ray_nodes({"local": 1}) as nodes:
        world, plan = small_world(Path(folder), 1, PASS_S)
        ways = {"local": (), "ray": ("--launcher", "ray", "--address", nodes.address)}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, further in ways.items():
                found[name] += _measure(world, plan, name, further, seconds)
    best = {name: min(rows, key=lambda row: row["cpu_us"]) for name, rows in found.items()}
    emit(
        {
            "benchmark": "ray_cost",
            "ratio": round(best["ray"]["cpu_us"] / best["local"]["cpu_us"], 3),
            "limit": LIMIT,
            "launchers": best,
        }
    )


def _measure(world: World, plan: Plan, name: str, further: tuple[str, ...], seconds: float) -> list[dict[str, float]]:
    config, path = world.write(name), world.write_plan(name, plan)
    with Server(config, "--plan", str(path), *further) as server:
        port = int(server.url.rpartition(":")[2])
        worker = server.status()["groups"][0]["pids"][0]
        ask(port, CONNECTIONS, min(seconds, 1.0), own_cores()[-1:])
        rows = [_window(server.process.pid, worker, port, seconds) for _ in range(3)]
    note(f"{name}: {rows}")
    return rows


def _window(server: int, worker: int, port: int, seconds: float) -> dict[str, float]:
    processes = {"server": [server], "worker": [worker], "ray": _of_ray()}
    before, began = {name: cpu_s(each) for name, each in processes.items()}, time.monotonic()
    (seen,) = ask(port, CONNECTIONS, seconds, own_cores()[-1:])
    took = time.monotonic() - began
    used = {name: cpu_s(each) - before[name] for name, each in processes.items()}
    requests = seen["requests"]
    return {
        "cpu_us": round((used["server"] + used["worker"]) / requests * 1e6, 1),
        "server_us": round(used["server"] / requests * 1e6, 1),
        "per_s": round(seen["per_s"], 1),
        "p99_ms": round(seen["p99_ms"], 2),
        "ray_cores": round(used["ray"] / took, 3),
    }


def _of_ray() -> list[int]:
    """Ray's own processes on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"raylet" in command or b"gcs_server" in command or command.startswith(b"ray::"):
            found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
