"""What splitting a model over two cores gives: a two-stage pipeline and two-way tensor parallelism, by real workers.

python -m benchmarks.parallel [--tiny] [--repeats N]

A random Llama of hidden size 1024 whose pass over a prompt takes about 100 ms on one core; requests ask for one token,
so that a request is one pass. Groups of shapes (1, 1), (1, 2) and (2, 1) on the same cores take turns in each repeat.
Latency: one request at a time. Throughput: many at once, one in a step. Ratios are medians over repeats. What two cores
of this machine can do at most is measured in the same turns: `side_by_side`, two groups of one core each that know
nothing of each other. A pipeline fills and drains: with n requests and two stages its ratio is at most 2n / (n + 1).
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
TWIN = "twin"
SIZES: dict[str, Any] = {"hidden": 1024, "layers": 12, "heads": 16, "ffn": 2816, "vocabulary": 512}
TINY: dict[str, Any] = {"hidden": 128, "layers": 4, "heads": 16, "ffn": 256, "vocabulary": 512}
TOKENS = 32
REQUESTS, FEW = 160, 4
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

    async def send(self, requests: int) -> None:
        """All at once, until the last is answered."""
        await asyncio.gather(*(self._one() for _ in range(requests)))

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
        emit(run(measure(model, 2 if options.tiny else options.repeats, FEW if options.tiny else REQUESTS)))


async def measure(model: Path, repeats: int, requests: int) -> dict[str, Any]:
    starting = [_start(name, shape, model) for name, shape in SHAPES.items()]
    started = await asyncio.gather(*starting, _start(TWIN, (1, 1), model, first_core=1))
    groups = dict(zip((*SHAPES, TWIN), started, strict=True))
    try:
        loads = {name: Load(group, name) for name, group in groups.items()}
        latency: dict[str, list[float]] = {name: [] for name in SHAPES}
        throughput: dict[str, list[float]] = {name: [] for name in (*SHAPES, "side_by_side")}
        for load in loads.values():
            await load.latency_s(3)
        for _ in range(repeats):
            for name in SHAPES:
                latency[name].append(await loads[name].latency_s(5))
            for name in SHAPES:
                throughput[name].append(await throughput_per_s([loads[name]], requests))
            throughput["side_by_side"].append(await throughput_per_s([loads["one"], loads[TWIN]], requests))
    finally:
        for group in groups.values():
            await group.stop()
    return {
        "benchmark": "parallel",
        "repeats": repeats,
        "requests": requests,
        "latency_ms": {name: _summary([1e3 * s for s in found]) for name, found in latency.items()},
        "passes_per_s": {name: _summary(found) for name, found in throughput.items()},
        "ratio": {
            "pipeline_throughput": _ratio(throughput["pipeline"], throughput["one"]),
            "pipeline_latency": _ratio(latency["pipeline"], latency["one"]),
            "tensor_throughput": _ratio(throughput["tensor"], throughput["one"]),
            "tensor_latency": _ratio(latency["tensor"], latency["one"]),
            "pipeline_to_side_by_side": _ratio(throughput["pipeline"], throughput["side_by_side"]),
        },
        "limit": {
            "pipeline_throughput": _ratio(throughput["side_by_side"], throughput["one"]),
            "pipeline_fill": round(2 * requests / (requests + 1), 3),
            "tensor_latency": 0.5,
        },
    }


async def throughput_per_s(loads: list[Load], requests: int) -> float:
    """Of all together, each with an equal part of the requests."""
    began = time.perf_counter()
    await asyncio.gather(*(load.send(requests // len(loads)) for load in loads))
    return requests / (time.perf_counter() - began)


async def _start(name: str, shape: tuple[int, int], model: Path, first_core: int = 0) -> Group:
    tp, pp = shape
    devices = tuple(f"cpu:{first_core + core}" for core in range(tp * pp))
    group = await start_group(GroupSpec(name=name, devices=devices, tp=tp, pp=pp), LocalLauncher())
    await group.load(ModelSpec(name="m", path=str(model), kv_bytes=64 << 20, step_tokens=TOKENS))
    return group


def _summary(found: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(found), 2), "least": round(min(found), 2), "most": round(max(found), 2)}


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


if __name__ == "__main__":
    main()
