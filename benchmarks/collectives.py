"""How fast do two shards exchange tensors? Shared memory beside torch.distributed's gloo, in the same run, interleaved.

    python benchmarks/collectives.py [--tiny]

Two processes on two cores, one thread each. Microseconds: the median over rounds of each round's median, and the
lowest and highest round. All-reduce of float32 in place; channel: half of the way there and back, once with a receiver
that is awake and once with one that has slept for 2 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import emit
from benchmarks.harness.ranks import run_ranks

ROUNDS, TIMES = 21, 40
LIMIT_S = 600
IDLE_S = 0.002
REDUCED_KB = (4, 64, 256, 1024)
SENT_KB = (4, 256)
Samples = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two short rounds: a check that it runs")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is None:
        emit({"benchmark": "collectives", **_summary(_start(given.tiny))})
        return
    samples = _measure(given.rank, given.place, *((2, 5) if given.tiny else (ROUNDS, TIMES)))
    if given.rank == 0:
        emit(samples)


def _start(tiny: bool) -> Samples:
    samples: Samples = run_ranks("benchmarks.collectives", ["--tiny"] if tiny else [], 2, LIMIT_S)
    return samples


def _summary(samples: Samples) -> dict[str, Any]:
    median = {name: statistics.median(each) for name, each in samples.items()}
    compared = [name.removeprefix("shared ") for name in samples if name.startswith("shared ")]
    return {
        "microseconds": {name: round(value, 1) for name, value in median.items()},
        "spread": {name: [round(min(each), 1), round(max(each), 1)] for name, each in samples.items()},
        "ratio_to_gloo": {name: round(median[f"gloo {name}"] / median[f"shared {name}"], 1) for name in compared},
    }


def _measure(rank: int, place: Path, rounds: int, times: int) -> Samples:
    """Each round's median of every exchange, in microseconds; each round does all of them, one after the other."""
    import torch

    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    exchanges = _exchanges(rank, place)
    samples: Samples = {name: [] for name in exchanges}
    for _ in range(rounds):
        for name, exchange in exchanges.items():
            idle_s = IDLE_S if "idle" in name and rank == 0 else 0.0
            samples[name].append(statistics.median(_timed(exchange, idle_s) for _ in range(times)) * 1e6)
    return samples


def _timed(exchange: Callable[[], float], idle_s: float) -> float:
    time.sleep(idle_s)
    begin = time.perf_counter()
    ways = exchange()
    return (time.perf_counter() - begin) / ways


def _exchanges(rank: int, place: Path) -> dict[str, Callable[[], float]]:
    """By name, what both ranks do together; each tells how many ways it took. gloo is used as torch offers it."""
    import torch
    import torch.distributed as dist

    from serving.parallel import Layout, connect

    for name in ("stage", "stages"):
        (place / name).mkdir(exist_ok=True)
    tensor = connect(Layout(2, 1, rank), place / "stage").tensor
    pair = connect(Layout(1, 2, rank), place / "stages")
    channel = pair.next or pair.previous
    assert channel is not None
    dist.init_process_group("gloo", init_method=f"file://{place}/gloo", rank=rank, world_size=2)

    def reduce(sum_up: Callable[[Any], Any], brought: Any) -> float:
        sum_up(brought)
        return 1

    def there_and_back(send: Callable[[Any], Any], receive: Callable[[Any], Any], brought: Any) -> float:
        first, second = (send, receive) if rank == 0 else (receive, send)
        first(brought)
        second(brought)
        return 2

    def receive_shared(_: Any) -> None:
        channel.receive()

    send_gloo, receive_gloo = partial(dist.send, dst=1 - rank), partial(dist.recv, src=1 - rank)
    exchanges: dict[str, Callable[[], float]] = {}
    for size in REDUCED_KB:
        brought = torch.zeros(size << 8)
        exchanges[f"shared all_reduce {size} KB"] = partial(reduce, tensor.all_reduce, brought)
        exchanges[f"gloo all_reduce {size} KB"] = partial(reduce, dist.all_reduce, brought)
    for state in ("", " idle"):
        for size in SENT_KB:
            brought = torch.zeros(size << 8)
            exchanges[f"shared channel {size} KB{state}"] = partial(
                there_and_back, channel.send, receive_shared, brought
            )
            exchanges[f"gloo channel {size} KB{state}"] = partial(there_and_back, send_gloo, receive_gloo, brought)
    return exchanges


if __name__ == "__main__":
    main()
