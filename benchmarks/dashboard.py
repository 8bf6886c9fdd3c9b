"""What the dashboard costs: CPU of the server's process and latency of requests with three viewers, beside the same
server without any dashboard (its rings are not even filled), under the same traffic, in turns.

python -m benchmarks.dashboard [--tiny] [--windows N] [--seconds S] [--rate R]

64 emulated devices with 60 models. `cores` is CPU seconds a second; `cost` what three viewers and the rings add to
it, `ratio` that over the limit of 2% of a core. `latency_ms` are p50 and p99 of all windows; `noise_ms` is how far the
windows without a dashboard lie apart (standard deviation), beside the difference.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.dashboard_world import pool_plan, pool_world
from benchmarks.harness.draw import Floats, measured, send
from benchmarks.harness.viewers import viewing
from benchmarks.harness.watched_server import WatchedServer

LIMIT = 0.02
VIEWERS = 3
BLIND = "import serving.dashboard.viewers as viewers; viewers.EVERY_S = 1e9; from serving.cli import main; main()"


class BlindServer(WatchedServer):
    """Its dashboard looks once, and never again."""

    def __init__(self, config: Path, *options: str) -> None:
        super().__init__(config, *options)
        self._command[1:3] = ["-c", BLIND]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=40.0)
    options = parser.parse_args()
    if options.tiny:
        emit(measure(devices=4, models=2, windows=1, seconds=2.0, rate=10.0))
    else:
        emit(measure(64, 60, options.windows, options.seconds, options.rate))


def measure(devices: int, models: int, windows: int, seconds: float, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        world = pool_world(Path(name), devices, models)
        plan = str(world.write_plan("plan", pool_plan(devices, models)))
        blind_config, config = world.write("blind"), world.write("seeing")
        with BlindServer(blind_config, "--plan", plan) as blind, WatchedServer(config, "--plan", plan) as seeing:
            return _compare(blind, seeing, windows, seconds, rate) | {"devices": devices, "models": models}


def _compare(blind: WatchedServer, seeing: WatchedServer, windows: int, seconds: float, rate: float) -> dict[str, Any]:
    cores: dict[str, list[float]] = {"without": [], "nobody_looks": [], "three_look": []}
    took: dict[str, list[Floats]] = {name: [] for name in cores}
    for server in (blind, seeing):
        _window(server, 1.0, rate, 0)
    for window in range(windows):
        note(f"window {window + 1} of {windows}")
        for name, server, viewers in (
            ("without", blind, 0),
            ("nobody_looks", seeing, 0),
            ("three_look", seeing, VIEWERS),
        ):
            port = int(server.url.rpartition(":")[2])
            if viewers:
                with viewing(port, viewers):
                    used, latency_s = _window(server, seconds, rate, window)
            else:
                used, latency_s = _window(server, seconds, rate, window)
            cores[name].append(used)
            took[name].append(latency_s)
    return _report(cores, took, windows, seconds, rate)


def _window(server: WatchedServer, seconds: float, rate: float, seed: int) -> tuple[float, Floats]:
    """CPU seconds a second, and the latency of what was answered."""
    before = server.cpu_s()
    sent = send(server.url, rate=f"{rate}", cv="1", duration=f"{seconds}s", seed=seed, slo="60s", prompt_tokens="8")
    used = (server.cpu_s() - before) / seconds
    latency_s = measured(sent).latency_s
    return used, latency_s[np.isfinite(latency_s)]


def _report(
    cores: dict[str, list[float]], took: dict[str, list[Floats]], windows: int, seconds: float, rate: float
) -> dict[str, Any]:
    mean = {name: float(np.mean(values)) for name, values in cores.items()}
    cost = mean["three_look"] - mean["without"]
    points = {name: np.percentile(np.concatenate(values), (50, 99)) * 1e3 for name, values in took.items()}
    each = np.array([np.percentile(values, (50, 99)) * 1e3 for values in took["without"]])
    return {
        "benchmark": "dashboard",
        "windows": windows,
        "seconds": seconds,
        "rate_per_s": rate,
        "cores": {name: round(value, 4) for name, value in mean.items()},
        "cost": round(cost, 4),
        "limit": LIMIT,
        "ratio": round(cost / LIMIT, 3),
        "latency_ms": {name: [round(float(value), 2) for value in pair] for name, pair in points.items()},
        "latency_added_ms": [round(float(value), 2) for value in points["three_look"] - points["without"]],
        "noise_ms": [round(float(value), 2) for value in each.std(axis=0)],
    }


if __name__ == "__main__":
    main()
