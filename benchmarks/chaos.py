"""Workers killed under load: what becomes of the requests, how soon service is back, what is left behind.

python -m benchmarks.chaos [--tiny] [--kills N] [--seed S]

Four groups of one paced device each (real workers, slowed down so that four fit on two cores) hold two chat
models with random weights. Requests come at 0.7 of the rate that was served just before; each worker in turn is killed
with SIGKILL, N times in all. Counted: answers; failures whose tokens had begun; refusals (429 or 503; that these carry
Retry-After is tested in tests/e2e); anything else is `wrong`. Beside it stands what the same load gives without a kill.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.cases import emit
from benchmarks.harness.server import Server, write_config, write_plan
from benchmarks.harness.traffic import Traffic, capacity_per_s
from loadgen.results.record import Record
from serving.small_models.random import make_random

DEVICES = 4
PACE = 3.0
BACK_WITHIN_S = 15.0
PAUSE_S = 1.0
MODELS = ("chat", "chat-2")
SIZES: dict[str, Any] = {"hidden": 192, "layers": 4, "heads": 4, "ffn": 512, "vocabulary": 1024}
TINY: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 8, "ffn": 128, "vocabulary": 512}
TINY_PACE = 24.0
"""Such that a capacity is soon found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kills = 1 if options.tiny else options.kills
    world = (TINY_PACE, TINY) if options.tiny else (PACE, SIZES)
    with tempfile.TemporaryDirectory() as folder, Server(*write_world(Path(folder), *world)) as server:
        emit(measure(server, kills, 1.0 if options.tiny else 8.0, options.seed))


def write_world(folder: Path, pace: float, sizes: dict[str, Any]) -> tuple[Path, str, str]:
    """Two small chat models on four paced devices, one group each; what `Server` is called with."""
    models = []
    for seed, name in enumerate(MODELS):
        make_random(folder / name, **sizes, seed=seed)
        traffic = {"rate": 5, "cv": 1, "prompt_tokens": 32, "output_tokens": 16}
        models.append(
            {"name": name, "path": str(folder / name), "slo": {"ttft": "1s", "tpot": "200ms"}, "traffic": traffic}
        )
    workers = {"kind": "paced", "pace": pace}
    config = write_config(folder / "config.yaml", DEVICES, models, workers=workers, replan={"mode": "off"})
    shared = {"tp": 1, "pp": 1, "models": list(MODELS), "kv_bytes": dict.fromkeys(MODELS, 32 << 20)}
    plan = write_plan(folder / "plan.json", [{"devices": [f"local/{number}"]} | shared for number in range(DEVICES)])
    return config, "--quick", f"--plan={plan}"


def measure(server: Server, kills: int, calm_s: float, seed: int) -> dict[str, Any]:
    capacity = capacity_per_s(server.url, calm_s)
    rate = 0.7 * capacity
    calm = Traffic(server.url, rate, calm_s, seed).run()
    before = _footprint(server)
    killer = Killer(server, kills)
    traffic = Traffic(server.url, rate, kills * (PAUSE_S + 6.0), seed + 1, stop=killer.done)
    killer.start()
    stormy = traffic.run()
    killer.join()
    _settle(server)
    after = _footprint(server)
    counts = Counter(_fate(record) for record in stormy.records)
    return {
        "benchmark": "chaos",
        "kills": len(killer.back_s),
        "capacity_per_s": round(capacity, 1),
        "rate_per_s": round(rate, 1),
        "requests": len(stormy.records),
        "fates": dict(counts),
        "wrong": counts["wrong"],
        "answered_share": {
            "without_kills": round(calm.answered_share, 4),
            "with_kills": round(stormy.answered_share, 4),
        },
        "ratio": round(stormy.answered_share / max(calm.answered_share, 1e-9), 4),
        "back_s": {"median": round(statistics.median(killer.back_s), 2), "most": round(max(killer.back_s), 2)},
        "back_within_s": BACK_WITHIN_S,
        "left_behind": {name: after[name] - before[name] for name in before},
    }


class Killer(threading.Thread):
    """Kills each worker in turn, waits until all groups serve again, and a moment longer."""

    def __init__(self, server: Server, kills: int) -> None:
        super().__init__(daemon=True)
        self._server, self._kills = server, kills
        self.back_s: list[float] = []
        self.done = threading.Event()

    def run(self) -> None:
        try:
            time.sleep(PAUSE_S)
            for turn in range(self._kills):
                groups = self._server.status()["groups"]
                os.kill(groups[turn % len(groups)]["pids"][0], signal.SIGKILL)
                began = time.monotonic()
                time.sleep(0.2)
                while not self._all_serve():
                    time.sleep(0.05)
                self.back_s.append(time.monotonic() - began)
                time.sleep(PAUSE_S)
        finally:
            self.done.set()

    def _all_serve(self) -> bool:
        groups = self._server.status()["groups"]
        return all(one["state"] == "serving" and all(m["ready"] for m in one["models"].values()) for one in groups)


def _fate(record: Record) -> str:
    if not record.reason:
        return "answered"
    if record.status == 503 or record.status == 429:
        return "refused"
    if record.status == 200 and record.reason == "failed":
        return "failed after its tokens had begun"
    return "interrupted by us" if record.reason == "interrupted" else "wrong"


def _settle(server: Server) -> None:
    deadline = time.monotonic() + 10
    while server.status()["queue"]["running"] and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)


def _footprint(server: Server) -> dict[str, int]:
    """What a server that leaks would have more of."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task")
    status = server.status()
    return {
        "processes": sum(_parent(path) == pid for path in Path("/proc").glob("[0-9]*")),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(list(children.iterdir())),
        "folders": len(list(Path(tempfile.gettempdir()).glob("penstock-*"))),
        "running": sum(one["running"] for group in status["groups"] for one in group["models"].values()),
        "cache_blocks": sum(one["blocks_used"] for group in status["groups"] for one in group["models"].values()),
    }


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main()
