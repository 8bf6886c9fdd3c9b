"""What it costs to see that a group works which nobody asks: an echo, beside a pass of its model, on one core.

python -m benchmarks.probes [--tiny] [--repeats N]

One worker with a random Llama of 110 million parameters (--tiny: a small one). `ratio`: of the time in which a group is
kept from requests, what a pass when it is due and an echo else cost, to what a pass at every look would.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.cases import emit
from benchmarks.engine import SIZES, TINY
from serving.controller.probe import Probe, probe
from serving.controller.proving import Proving
from serving.small_models.random import make_random
from serving.worker.event_loop import run
from serving.worker.group import GroupSpec, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

PROBE = Probe("generate", [0, 1, 2, 3])
PAUSE_S = 0.2
"""Before each question, so that the worker has gone to sleep."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_random(Path(folder), **(TINY if options.tiny else SIZES))
        pass_s, echo_s = run(_measure(folder, 5 if options.tiny else options.repeats))
    proving = Proving()
    looks = proving.renew_s / proving.every_s
    report = {
        "benchmark": "probes",
        "pass_ms": round(1e3 * pass_s, 3),
        "echo_ms": round(1e3 * echo_s, 3),
        "ratio": round((pass_s + (looks - 1) * echo_s) / (looks * pass_s), 3),
        "limit": round(1 / looks, 3),
    }
    emit(report)


async def _measure(path: str, repeats: int) -> tuple[float, float]:
    """Seconds of a pass and of an echo, medians."""
    group = await start_group(GroupSpec(name="g", devices=("cpu:0",)), LocalLauncher())
    try:
        await group.load(ModelSpec(name="m", path=path, kv_bytes=2**24))
        passes = await _times(lambda: probe(group, "m", PROBE), repeats)
        return passes, await _times(group.echo, repeats)
    finally:
        await group.stop()


async def _times(ask: Callable[[], Awaitable[None]], repeats: int) -> float:
    took = []
    for _ in range(repeats + 2):  # the first warm up
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - began)
    return statistics.median(took[2:])


if __name__ == "__main__":
    main()
