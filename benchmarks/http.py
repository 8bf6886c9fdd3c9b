"""What the endpoint costs: a model that does nothing, through the whole path (HTTP, router, link, a worker process and
back), beside other servers with such a model. CPU of all processes of a server, all on one core, the load on another.

`python -m benchmarks.http [--tiny]` prints one JSON line; `ratio` is our requests per CPU second over each peer's, by
concurrency. FastAPI stands for the least a Python server does: it has no queue and no worker. The best window of all
interleaved repeats counts, for each server alike, since others may use the machine.

`--streams` measures instead what streaming loses of an engine's speed (benchmarks/peers/streams.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import emit, note
from benchmarks.peers.environment import peer_python
from benchmarks.peers.processes import ServerProcess, cpu_s

LIMIT_US = 400.0
PEERS = ("fastapi", "litserve", "bentoml", "ray")
CONCURRENCY = (1, 32, 128)
HERE = Path(__file__).parent / "peers"
SERVER_CORE, LOAD_CORE = 0, 1
WINDOWS = 3

Figures = dict[str, float]


class Server:
    """One contestant while it runs."""

    def __init__(self, name: str, install: bool) -> None:
        if name == "penstock":
            command = [sys.executable, "-m", "benchmarks.peers.noop_penstock"]
        else:
            python = peer_python(name) if install else Path(sys.executable)
            command = [str(python), str(HERE / f"noop_{name}.py")]
        self._process = ServerProcess(command, [str(SERVER_CORE)], lambda port: _load(port, 1, 0.05))

    def load(self, connections: int, seconds: float) -> Figures:
        """Microseconds of CPU a request, and what its clients saw."""
        members = self._process.members()
        before = cpu_s(members)
        seen = _load(self._process.port, connections, seconds)
        return seen | {"cpu_us": (cpu_s(members) - before) / seen["requests"] * 1e6}

    def close(self) -> None:
        self._process.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args()
    if options.streams:
        from benchmarks.peers import streams

        emit(streams.measure(options.tiny))
        return
    if options.tiny:
        emit(measure(["fastapi"], (1, 8), repeats=1, seconds=0.3, install=False))
    else:
        peers = [name for name in options.peers.split(",") if name]
        emit(measure(peers, CONCURRENCY, options.repeats, options.seconds, install=True))


def measure(
    peers: list[str], concurrency: tuple[int, ...], repeats: int, seconds: float, install: bool
) -> dict[str, Any]:
    found: dict[str, dict[int, list[Figures]]] = {}
    skipped: dict[str, str] = {}
    for repeat in range(repeats):
        for name in ["penstock", *(peer for peer in peers if peer not in skipped)]:
            note(f"repeat {repeat + 1}/{repeats}: {name}")
            try:
                _measure_one(name, concurrency, seconds, install, found.setdefault(name, {}))
            except (RuntimeError, subprocess.CalledProcessError) as error:
                if name == "penstock":
                    raise
                skipped[name] = str(error)
                del found[name]
    return _report(found, skipped, repeats)


def _measure_one(
    name: str, concurrency: tuple[int, ...], seconds: float, install: bool, found: dict[int, list[Figures]]
) -> None:
    server = Server(name, install)
    try:
        server.load(max(concurrency), seconds)
        for _ in range(WINDOWS):
            for connections in concurrency:
                found.setdefault(connections, []).append(server.load(connections, seconds))
    finally:
        server.close()


def _report(found: dict[str, dict[int, list[Figures]]], skipped: dict[str, str], repeats: int) -> dict[str, Any]:
    def best(name: str, figure: str) -> dict[str, float]:
        return {str(c): round(min(one[figure] for one in runs), 2) for c, runs in found[name].items()}

    cpu_us = {name: best(name, "cpu_us") for name in found}
    ours = cpu_us["penstock"]
    return {
        "benchmark": "http",
        "repeats": repeats,
        "cpu_us_per_request": cpu_us,
        "requests_per_cpu_s": {name: {c: round(1e6 / us) for c, us in each.items()} for name, each in cpu_us.items()},
        "p99_ms": {name: best(name, "p99_ms") for name in found},
        "worst_cpu_us": max(ours.values()),
        "limit_us": LIMIT_US,
        "ratio": {
            name: {c: round(each[c] / ours[c], 2) for c in ours} for name, each in cpu_us.items() if name != "penstock"
        },
        "skipped": skipped,
    }


def _load(port: int, connections: int, seconds: float) -> Figures:
    command = [sys.executable, str(HERE / "http_load.py"), str(port), str(connections), str(seconds), str(LOAD_CORE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or "the load client failed")
    figures: Figures = json.loads(done.stdout)
    if figures["failed"]:
        raise RuntimeError(f"{figures['failed']} of {figures['requests']} requests failed")
    return figures


if __name__ == "__main__":
    main()
