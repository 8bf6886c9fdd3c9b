"""How much of an engine's speed reaches clients that stream: the engine alone in this process, then a worker with the
same model behind the whole endpoint, both on the first core; server and clients share the second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import note
from benchmarks.engine import Ours
from benchmarks.peers.processes import ServerProcess, cpu_s
from serving.small_models.random import make_random

STREAMS, PROMPT, OUTPUT = 64, 32, 128
MODELS: dict[str, dict[str, Any]] = {
    "30m": {"hidden": 512, "layers": 8, "heads": 8, "ffn": 1408, "vocabulary": 8000},
    "5m": {"hidden": 256, "layers": 4, "heads": 4, "ffn": 704, "vocabulary": 8000},
}
TINY: dict[str, dict[str, Any]] = {"tiny": {"hidden": 64, "layers": 2, "heads": 4, "ffn": 128, "vocabulary": 512}}
ENGINE_CORE, OTHER_CORE = 0, 1
LIMIT = 0.1
HERE = Path(__file__).parent


def measure(tiny: bool) -> dict[str, Any]:
    """`ratio`: tokens/s through the endpoint over the engine's alone, by model."""
    repeats, output = (1, 16) if tiny else (3, OUTPUT)
    os.sched_setaffinity(0, {ENGINE_CORE})
    torch.set_num_threads(1)
    found = {name: _measure_one(sizes, repeats, output) for name, sizes in (TINY if tiny else MODELS).items()}
    return {
        "benchmark": "http streams",
        "streams": STREAMS,
        "models": found,
        "ratio": {name: one["ratio"] for name, one in found.items()},
        "limit": 1 - LIMIT,
    }


def _measure_one(sizes: dict[str, Any], repeats: int, output: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m"
        make_random(model, **sizes)
        engine, server = Ours(model), StreamServer(model)
        try:
            server.load(output)
            alone, served = [], []
            for repeat in range(-1, repeats):
                wall = engine.ask(op="generate", batch=STREAMS, prompt=PROMPT, output=output, seed=repeat + 1)["wall"]
                figures = server.load(output)
                if repeat >= 0:  # the first is for warming up
                    alone.append(STREAMS * output / wall)
                    served.append(figures)
                    note(f"alone {alone[-1]:.0f} tokens/s, served {figures['tokens_per_s']:.0f}")
        finally:
            server.close()
    best = max(served, key=lambda one: one["tokens_per_s"])
    return {
        "alone_tokens_per_s": round(max(alone)),
        **{name: round(value, 2) for name, value in best.items()},
        "ratio": round(best["tokens_per_s"] / max(alone), 3),
    }


class StreamServer:
    """The HTTP process, and the worker below it."""

    def __init__(self, model: Path) -> None:
        os.sched_setaffinity(0, {ENGINE_CORE, OTHER_CORE})
        command = [sys.executable, "-m", "benchmarks.peers.stream_server"]
        self._server = ServerProcess(command, [str(model)], lambda port: _ask(port, 1, 1))
        os.sched_setaffinity(0, {ENGINE_CORE})

    def load(self, output: int) -> dict[str, float]:
        """Tokens/s, and what each process used of its core meanwhile."""
        http, *workers = self._server.members()
        before = cpu_s([http]), cpu_s(workers)
        seen = _ask(self._server.port, STREAMS, output)
        http_s, workers_s = cpu_s([http]) - before[0], cpu_s(workers) - before[1]
        tokens, wall_s = STREAMS * output, seen["wall_s"]
        return {
            "tokens_per_s": tokens / wall_s,
            "worker_core": workers_s / wall_s,
            "server_core": http_s / wall_s,
            "client_core": seen["cpu_s"] / wall_s,
            "server_us_per_token": http_s / tokens * 1e6,
            "events_per_token": (seen["events"] - STREAMS) / tokens,
        }

    def close(self) -> None:
        self._server.close()


def _ask(port: int, streams: int, output: int) -> dict[str, float]:
    numbers = [port, streams, PROMPT, output, OTHER_CORE]
    command = [sys.executable, str(HERE / "stream_load.py"), *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
