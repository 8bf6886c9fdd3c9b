"""Traffic with bursts against servers that lend devices and servers that do not: the same requests, at the same times.

Each server has a client process of its own (`penstock load`). Meanwhile it is looked at who has the devices, and how
much of this machine's cores is used: by everything, and by what this process has started.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.core_use import OwnUse, busy_s
from benchmarks.harness.loan_world import (
    BURST,
    MODELS,
    OUTPUT,
    PROMPT,
    TPOT_S,
    TTFT_S,
    Setting,
    steps_made,
    story,
    trains_on,
)
from benchmarks.harness.server import Server

BURST_S = 10.0
BEGINNING_S = 2.0
"""Of a burst: while devices come back."""
AFTER_S = 3.0
LOOK_S = 0.5
JITTER_S = 5.0


@dataclass(frozen=True)
class Bursts:
    """Bursts at `onsets_s`; what comes before `learning_s` is not judged."""

    onsets_s: list[float]
    learning_s: float
    seconds: float
    """In all."""

    def stages(self, rate: float) -> str:
        """RATE:CV:DURATION, one after the other."""
        stages, at = [], 0.0
        for onset in self.onsets_s:
            stages += [f"{rate:.4f}:1:{onset - at:.3f}s", f"{BURST * rate:.4f}:1:{BURST_S:g}s"]
            at = onset + BURST_S
        return ",".join([*stages, f"{rate:.4f}:1:{self.seconds - at:.3f}s"])

    def oracle_device_s(self, lendable: tuple[int, int]) -> float:
        """What somebody who knows the traffic lends of what is judged: each moment the deepest rung that holds it."""
        busy_s = BURST_S * sum(onset >= self.learning_s for onset in self.onsets_s)
        calm, bursting = lendable
        return calm * (self.seconds - self.learning_s - busy_s) + bursting * busy_s

    def since_onset_s(self, due_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Infinite before the first burst."""
        onsets = np.array([-np.inf, *self.onsets_s])
        since: NDArray[np.float64] = due_s - onsets[np.searchsorted(onsets, due_s, side="right") - 1]
        return since


def make_bursts(kind: str, learning_s: float, seconds: float, seed: int) -> Bursts:
    """One a minute; `periodic` give or take 5 s, or at any time."""
    rng, whole_s = np.random.default_rng(seed), learning_s + seconds
    count = int(whole_s // 60)
    if kind == "periodic":
        onsets = [60.0 * n + 30 + float(rng.uniform(-JITTER_S, JITTER_S)) for n in range(count)]
        return Bursts(onsets, learning_s, whole_s)
    onsets = []
    while len(onsets) < count:
        at = float(rng.uniform(5, whole_s - BURST_S))
        if all(abs(at - other) > BURST_S + 1 for other in onsets):
            onsets.append(at)
    return Bursts(sorted(onsets), learning_s, whole_s)


def run_bursts(setting: Setting, servers: Mapping[str, Server], bursts: Bursts, seed: int) -> dict[str, dict[str, Any]]:
    """To all servers at once; what each made of it, by its name."""
    folder = setting.world.folder
    files = {name: folder / name / "requests.npz" for name in servers}
    steps = {name: steps_made(setting, name) for name in servers}
    clients = {
        name: _send(server.url, bursts.stages(setting.rate_per_s), seed, files[name])
        for name, server in servers.items()
    }
    try:
        with _Watch(servers, bursts.learning_s) as watch:
            for name, client in clients.items():
                errors = client.communicate()[1]
                if client.returncode not in (0, 1):  # 1: the client was late itself, which is told below
                    raise SystemExit(f"benchmarks.loans: the client of {name} has failed: {errors[-2000:]}")
    finally:
        for client in clients.values():
            client.kill()
    found = {}
    for name, server in servers.items():
        judged = _judged(files[name], bursts)
        told = story(server)
        trained_s = watch.held(name) * (bursts.seconds - bursts.learning_s)
        oracle_s = bursts.oracle_device_s(setting.lendable)
        found[name] = judged | {
            "trained_device_s": round(trained_s, 1),
            "of_oracle": round(trained_s / oracle_s, 3),
            "steps": steps_made(setting, name) - steps[name],
            "recalls": sum(one["to"] < one["from"] for one in told["decisions"]),
            "surprises": sum("missed" in one for one in told["decisions"]),
            "returned_s": [took for one in told["decisions"] for took in one.get("returned_s", {}).values()],
            "cores": watch.cores(),
        }
    return found


class _Watch:
    """Looks at servers and cores until it is left; the cores' use is that of everything on the machine."""

    def __init__(self, servers: Mapping[str, Server], from_s: float) -> None:
        self._servers, self._from_s = servers, from_s
        self._held: dict[str, list[int]] = {name: [] for name in servers}
        self._own = OwnUse()
        self._cores: list[tuple[float, float]] = []
        """Of everything, and of our own."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def held(self, name: str) -> float:
        """Devices that jobs had, on average."""
        return float(np.mean(self._held[name] or [0]))

    def cores(self) -> dict[str, dict[str, float]]:
        used = np.array(self._cores or [(0.0, 0.0)])
        return {
            name: {"mean": round(float(column.mean()), 3), "p99": round(float(np.quantile(column, 0.99)), 3)}
            for name, column in zip(("all", "own"), used.T, strict=True)
        }

    def _look(self) -> None:
        began = at = time.monotonic()
        used = np.array((busy_s(), self._own.cpu_s()))
        while not self._over.wait(LOOK_S):
            before, before_s, at, used = at, used, time.monotonic(), np.array((busy_s(), self._own.cpu_s()))
            self._cores.append(tuple(((used - before_s) / (at - before)).tolist()))
            for name, server in self._servers.items():
                if at - began >= self._from_s:
                    self._held[name].append(trains_on(server))


def _send(url: str, stages: str, seed: int, file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "serving.cli", "load", "--url", url, "--json", "--requests", str(file)]
    command += ["--stages", stages, "--seed", str(seed), "--slo", f"{TTFT_S}s/{TPOT_S}s"]
    command += ["--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _judged(file: Path, bursts: Bursts) -> dict[str, Any]:
    """Attainment of all and of the worst model, how many were late when, and times of those that were answered."""
    with np.load(file) as rows:
        due_s, model, answered = rows["due_s"], rows["model"], rows["answered"]
        ttft_s, tpot_s, lag_s = rows["ttft_s"], rows["tpot_s"], rows["lag_s"]
    is_judged = due_s >= bursts.learning_s
    late = is_judged & ~(answered & ~(ttft_s > TTFT_S) & ~(tpot_s > TPOT_S))
    since_s = bursts.since_onset_s(due_s)
    phases = {
        "burst begins": since_s < BEGINNING_S,
        "burst": (since_s >= BEGINNING_S) & (since_s < BURST_S),
        "after": (since_s >= BURST_S) & (since_s < BURST_S + AFTER_S),
        "calm": since_s >= BURST_S + AFTER_S,
    }
    each = [
        1 - late[model == index].sum() / max((is_judged & (model == index)).sum(), 1) for index in range(len(MODELS))
    ]
    return {
        "all": round(float(1 - late.sum() / max(is_judged.sum(), 1)), 5),
        "worst_model": round(float(min(each)), 5),
        "requests": int(is_judged.sum()),
        "late": {phase: int((late & during).sum()) for phase, during in phases.items()},
        "ttft_ms": _times_ms(ttft_s[is_judged]),
        "tpot_ms": _times_ms(tpot_s[is_judged]),
        "client_lag_ms": _times_ms(lag_s),
    }


def _times_ms(seconds: NDArray[np.float64]) -> dict[str, float]:
    known = 1e3 * seconds[np.isfinite(seconds)]
    return {"median": round(float(np.median(known)), 1), "p99": round(float(np.quantile(known, 0.99)), 1)}
