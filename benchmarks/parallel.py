"""What splitting a model over two cores gives: a two-stage pipeline and two-way tensor parallelism, by real workers.

python -m benchmarks.parallel [--tiny] [--repeats N]

A random Llama of hidden size 1024 whose pass over a prompt takes about 100 ms on one core; requests ask for one token,
so that a request is one pass. Groups of shapes (1, 1), (1, 2) and (2, 1) on the same cores take turns in each repeat.
Latency: one request at a time. Throughput: many at once, one in a step. Ratios are medians over repeats; the limits
are 2 for the throughput of two stages, 0.5 for the latency of two halves.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit
from serving.sampling import SamplingParams
from serving.small_models.random import make_random
from serving.worker.event_loop import run
from serving.worker.group import Group, GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

SHAPES = {"one": (1, 1), "pipeline": (1, 2), "tensor": (2, 1)}
SIZES: dict[str, Any] = {"hidden": 1024, "layers": 12, "heads": 16, "ffn": 2816, "vocabulary": 512}
TINY: dict[str, Any] = {"hidden": 128, "layers": 4, "heads": 4, "ffn": 256, "vocabulary": 512}
TOKENS = 20
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class Load:
    """Sends requests to one group; no two prompts are alike, so that no prefix is known."""

    def __init__(self, group: Group, name: str) -> None:
        self._group, self._name = group, name
        self._random = np.random.default_rng(0)
        self._sent = 0

    async def latency_s(self, requests: int) -> float:
        taken = []
        for _ in range(requests):
            began = time.perf_counter()
            await self._one()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    async def throughput_per_s(self, requests: int) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(self._one() for _ in range(requests)))
        return requests / (time.perf_counter() - began)

    async def _one(self) -> None:
        self._sent += 1
        prompt = self._random.integers(0, SIZES["vocabulary"], TOKENS).tolist()
        async for _ in self._group.generate(f"{self._name}-{self._sent}", "m", prompt, ONE_TOKEN):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama"
        make_random(model, **(TINY if options.tiny else SIZES))
        emit(run(measure(model, 2 if options.tiny else options.repeats, 4 if options.tiny else 16)))


async def measure(model: Path, repeats: int, requests: int) -> dict[str, Any]:
    groups = {name: await _start(name, shape, model) for name, shape in SHAPES.items()}
    try:
        loads = {name: Load(group, name) for name, group in groups.items()}
        latency: dict[str, list[float]] = {name: [] for name in SHAPES}
        throughput: dict[str, list[float]] = {name: [] for name in SHAPES}
        for load in loads.values():
            await load.latency_s(3)
        for _ in range(repeats):
            for name, load in loads.items():
                latency[name].append(await load.latency_s(5))
            for name, load in loads.items():
                throughput[name].append(await load.throughput_per_s(requests))
    finally:
        for group in groups.values():
            await group.stop()
    return {
        "benchmark": "parallel",
        "repeats": repeats,
        "latency_ms": {name: _summary([1e3 * s for s in found]) for name, found in latency.items()},
        "passes_per_s": {name: _summary(found) for name, found in throughput.items()},
        "ratio": {
            "pipeline_throughput": _ratio(throughput["pipeline"], throughput["one"]),
            "pipeline_latency": _ratio(latency["pipeline"], latency["one"]),
            "tensor_throughput": _ratio(throughput["tensor"], throughput["one"]),
            "tensor_latency": _ratio(latency["tensor"], latency["one"]),
        },
        "limit": {"pipeline_throughput": 2.0, "tensor_latency": 0.5},
    }


async def _start(name: str, shape: tuple[int, int], model: Path) -> Group:
    tp, pp = shape
    devices = tuple(f"cpu:{core}" for core in range(tp * pp))
    group = await start_group(GroupSpec(name=name, devices=devices, tp=tp, pp=pp), LocalLauncher())
    await group.load(ModelSpec(name="m", path=str(model), kv_bytes=64 << 20, step_tokens=TOKENS))
    return group


def _summary(found: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(found), 2), "least": round(min(found), 2), "most": round(max(found), 2)}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


if __name__ == "__main__":
    main()
