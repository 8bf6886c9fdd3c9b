"""Elastic training: how long a worker takes to join and to leave, and the others to go on when one is killed; and how
long a queue takes to get devices back that it has lent.

python -m benchmarks.elastic [--tiny] [--cycles N] [--peer]

One `lm` job on two devices, steps of 50 ms. In a cycle, five times a worker leaves (it is parked) and comes back, and
the whole job is parked and returns; then a worker is killed with SIGKILL, and its successor joins. Seconds: `leave` and
`park` from asking until the devices are free, `rejoin` and `return` from asking to the first step on them, `join` from
a successor that is ready (after `start`, while the others train) to the first step with it, `kill` from the signal to
the next step of the others, and `pause`, the longest time between two steps. `again`: steps that were made twice, one
for each kill at most; `same_bits`: no more than these were, none was left out, and all that was learned is what one
worker alone learns in as many. In the queue: `recall_one` (of two) and `recall_all` from devices that are missing until
the job has given them back, `lend` from being there to the first step. --peer measures torchft 0.2 in the same way (in
an environment of its own).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.elastic_job import ElasticJob
from benchmarks.harness.elastic_queue import NAMES, LentJob
from benchmarks.peers.environment import HERE, peer_python
from placement.units import Seconds
from serving.small_models.random import make_random
from training.elastic.spec import LmSpec

LIMIT_S = 1.0
"""From the decision to a device that serves again; recalling it is the queue's part."""
STEP_S = 0.05
LOANS = 5
"""How often devices are taken and given back in a cycle."""
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Made:
    """`again`: how many of the steps were made twice; `is_same`: all were made, and learned what one worker would."""

    steps: int
    again: int
    is_same: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one cycle: a check that it runs")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--peer", action="store_true", help="measure torchft too")
    given = parser.parse_args()
    cycles = 1 if given.tiny else given.cycles
    with tempfile.TemporaryDirectory() as folder:
        times, made = measure(Path(folder), cycles)
    recall = max(summary(times[name])["p99"] for name in ("recall_one", "recall_all"))
    emit(
        {
            "benchmark": "elastic",
            "cycles": cycles,
            "seconds": {name: summary(each) for name, each in times.items()},
            "limit_s": LIMIT_S,
            "ratio_to_limit": round(recall / LIMIT_S, 4),
            "steps": made.steps,
            "again": made.again,
            "same_bits": made.is_same and made.again <= cycles,
            "torchft": torchft(cycles) if given.peer else None,
        }
    )


def measure(folder: Path, cycles: int) -> tuple[Times, Made]:
    make_random(folder / "base", hidden=64, layers=2, heads=4, ffn=128, vocabulary=512)
    np.save(folder / "tokens.npy", np.random.default_rng(0).zipf(1.3, 100_000) % 512)
    spec = LmSpec(
        model=str(folder / "base"),
        data=str(folder / "tokens.npy"),
        steps=10**6,
        batch=4,
        context=32,
        fresh=True,
        pace=Seconds(STEP_S),
    )
    times: Times = defaultdict(list)
    with ElasticJob(folder / "job", spec, (0, 1)) as job:
        job.first_step(2, 0.0)
        for cycle in range(cycles):
            for _ in range(LOANS):
                _leave(job, times)
                _park(job, times)
            _kill(job, times)
            note(f"cycle {cycle + 1} of {cycles}")
        job.stop()
        made = _compare(job, spec)
    asyncio.run(_recall(LentJob(folder / "queue", spec), times, cycles))
    return times, made


def _leave(job: ElasticJob, times: Times) -> None:
    time.sleep(_some_steps())
    began = time.time()
    job.ask(0)
    times["leave"].append(time.time() - began)
    job.first_step(1, began)
    times["leave_pause"].append(job.longest_pause(began))
    began = time.time()
    job.ask(0, 1)
    times["rejoin"].append(job.first_step(2, began) - began)
    times["rejoin_pause"].append(job.longest_pause(began))


def _park(job: ElasticJob, times: Times) -> None:
    time.sleep(_some_steps())
    began = time.time()
    job.park()
    times["park"].append(time.time() - began)
    time.sleep(_some_steps())
    began = time.time()
    job.ask(0, 1)
    times["return"].append(job.first_step(2, began) - began)


async def _recall(lent: LentJob, times: Times, cycles: int) -> None:
    async with lent as job:
        await job.lend(*NAMES)
        for loan in range(cycles * LOANS):
            await asyncio.sleep(_some_steps())
            times["recall_one"].append(await job.recall(NAMES[loan % 2]))
            await asyncio.sleep(_some_steps())
            times["recall_all"].append(await job.recall())
            await asyncio.sleep(_some_steps())
            times["lend"].append(await job.lend(*NAMES))


def _some_steps() -> float:
    """So that nothing happens always at the same point of a step."""
    return random.uniform(3, 6) * STEP_S


def _join(job: ElasticJob, times: Times, began: float) -> None:
    joined = job.first_step(2, began)
    ready = float(job.history("ready", began)[0]["at"])
    times["start"].append(ready - began)
    times["join"].append(joined - ready)
    times["join_pause"].append(job.longest_pause(began))


def _kill(job: ElasticJob, times: Times) -> None:
    time.sleep(_some_steps())
    victim, began = job.ask().workers["local/1"], time.time()
    os.kill(victim, signal.SIGKILL)
    alone = job.first_step(1, began)
    times["kill"].append(alone - began)
    _join(job, times, alone)  # a step with the victim may have been noted behind the signal


def _compare(job: ElasticJob, spec: LmSpec) -> Made:
    import torch

    from serving.parallel import Alone
    from training.elastic.checkpoints import Checkpoints
    from training.elastic.exchange import sum_parts
    from training.elastic.learner import Learner
    from training.elastic.task import CHECKPOINT

    torch.set_num_threads(1)
    found = Checkpoints(job.folder / CHECKPOINT, spec.keep).latest()
    assert found is not None
    learner = Learner(spec, Path(spec.data))
    learner.begin()
    while learner.step < found.step:
        learner.take(sum_parts(Alone(), learner.gradients(range(spec.parts)), spec.parts, learner.size))
    wanted = learner.state().tensors
    is_same = wanted.keys() == found.tensors.keys() and all(torch.equal(wanted[n], found.tensors[n]) for n in wanted)
    noted = [one["step"] for one in job.history("step")]
    return Made(found.step, len(noted) - len(set(noted)), is_same and set(noted) == set(range(1, found.step + 1)))


def torchft(cycles: int) -> dict[str, Any]:
    """Its heartbeats time out after 1 s, and after 0.3 s."""
    python = peer_python("torchft")
    found = {}
    for timeout_ms in (1000, 300):
        command = [str(python), str(HERE / "torchft_peer.py"), str(timeout_ms), str(cycles)]
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        times = json.loads(run.stdout.splitlines()[-1])
        found[f"{timeout_ms} ms"] = {name: summary(each) for name, each in times.items()}
    return found


def summary(times: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times), 4),
        "p99": round(float(np.percentile(times, 99)), 4),
        "most": round(max(times), 4),
    }


if __name__ == "__main__":
    main()
