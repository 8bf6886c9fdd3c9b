"""What routing costs with 64 groups: microseconds of `submit`, and CPU of a request from submit to its end.

`python -m benchmarks.router [--tiny]` prints one JSON line. `ratio` is the worst median of `submit` in any case (idle,
with 5,000 who wait, overloaded; one-pass and generating) over the limit of 50 us. Beside it: `cpu_us`, all that the
router does for a request (time is virtual, so all CPU is work; what asyncio takes for the same tasks and timers is
taken off), `refused_us`, and `least_loaded_us`, a plain choice of the replica with the fewest requests, which admits
everybody and knows no deadline. Best of three interleaved rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from benchmarks.cases import emit
from placement.cluster import Cluster
from placement.files import convert
from placement.plan import Group
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.workload import Workload
from router import LiveGroup, NotServed, Request, Router, RouterSettings, warm_up
from router.virtual_time import VirtualTimeLoop

LIMIT_US = 50.0
GROUPS, MODELS, COPIES = 64, 32, 8
WORK_S = 0.010
GROWTH = {1: 1.0, 2: 1.6, 4: 2.8, 8: 5.0}
"""How many times as long a batch takes, by its size."""
PROMPT, OUTPUT, KV_BYTES = 200, 4, 1000


@dataclass(frozen=True)
class Case:
    generates: bool
    slo_s: tuple[float, ...]
    """Of the models, in turns, so that each group has models of one goal."""
    queued: bool
    load: float
    """Of what the groups can do."""
    batches: bool = False
    beside: bool = False
    """Models of all goals on each group."""


CASES = {
    "one-pass, idle": Case(False, (0.5,), False, 0.7),
    "one-pass, queued": Case(False, (600.0,), True, 1.0),
    "one-pass, queued, batches": Case(False, (600.0,), True, 1.0, batches=True),
    "one-pass, queued, four goals": Case(False, (600.0, 610.0, 620.0, 630.0), True, 1.0),
    "one-pass, queued, four goals on each group": Case(False, (600.0, 610.0, 620.0, 630.0), True, 1.0, beside=True),
    "one-pass, overloaded": Case(False, (0.2,), False, 3.0),
    "generating, idle": Case(True, (0.5,), False, 0.7),
    "generating, queued": Case(True, (600.0,), True, 1.0),
    "generating, overloaded": Case(True, (0.2,), False, 3.0),
}


def make_problem(case: Case) -> Problem:
    """Models alike on groups alike; a prompt is prefilled in WORK_S."""
    shape: dict[str, object] = {"tp": 1, "pp": 1, "stage_memory": [2**20]}
    if case.generates:
        step = {"fixed": 1e-4, "weights": 1e-3, "prefill_token": WORK_S / PROMPT, "prefill_context": 0.0}
        step |= {"sequence": 1e-5, "cached_token": 1e-9}
        shape["generation"] = {"stages": [step], "kv_bytes_per_token": [KV_BYTES]}
    else:
        sizes = GROWTH if case.batches else {1: 1.0}
        shape["stage_latency"] = {str(size): [growth * WORK_S] for size, growth in sizes.items()}
    profile = convert({"shapes": [shape]}, Profile, "benchmark")
    models = []
    for m in range(MODELS):
        goal = case.slo_s[(m // (MODELS // COPIES) if case.beside else m) % len(case.slo_s)]
        models.append(Model(f"m{m}", profile, Slo(ttft=goal, tpot=1.0) if case.generates else Slo(goal)))
    cluster = convert({"nodes": [{"name": "n", "devices": GROUPS, "memory": 2**40}]}, Cluster, "benchmark")
    return Problem(cluster, tuple(models), Workload(np.zeros(1), np.zeros(1, np.int32)))


class Paced:
    """A group that answers at about the profiled pace: who comes at one time is a batch; prompts one by one."""

    def __init__(self) -> None:
        self.came_at = -1.0
        self.start = self.free = 0.0
        self.members: list[asyncio.Future[None]] = []

    async def infer(self) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now != self.came_at:
            self.came_at, self.start, self.members = now, max(self.free, now), []
        done = loop.create_future()
        self.members.append(done)
        size = next(size for size in GROWTH if size >= len(self.members))
        self.free = self.start + WORK_S * GROWTH[size]
        loop.call_at(self.free, _answer, self.members, len(self.members))
        await done
        yield 1

    async def generate(self) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        self.free = max(self.free, loop.time()) + WORK_S
        await asyncio.sleep(self.free - loop.time())
        yield 0
        for token in range(1, OUTPUT):
            await asyncio.sleep(0.001)
            yield token


def _answer(members: list[asyncio.Future[None]], size: int) -> None:
    if len(members) == size:  # else more came, and a later timer answers
        for done in members:
            if not done.done():
                done.set_result(None)


def run_of(case: Case, group: Paced) -> AsyncIterator[int]:
    return group.generate() if case.generates else group.infer()


def models_of(group: int) -> tuple[str, ...]:
    return tuple(f"m{(group + k * MODELS // COPIES) % MODELS}" for k in range(MODELS * COPIES // GROUPS))


def live_groups() -> list[LiveGroup[Paced]]:
    groups = []
    for g in range(GROUPS):
        names = models_of(g)
        spec = Group((f"n/{g}",), 1, 1, names, dict.fromkeys(names, 100_000_000 * KV_BYTES))
        groups.append(LiveGroup(name=f"g{g}", spec=spec, handle=Paced(), ready=names))
    return groups


def make_request(case: Case, number: int) -> Request:
    output = OUTPUT if case.generates else 0
    return Request(id=str(number), model=f"m{number * 7 % MODELS}", tokens=PROMPT, max_tokens=output)


async def consume(items: AsyncIterator[int]) -> None:
    async for _ in items:
        pass


async def routed(case: Case, queued: int, requests: int) -> dict[str, float]:
    """`queued` come at once, then `requests` at the case's load."""
    loop = asyncio.get_running_loop()
    settings = RouterSettings(queue_requests=2 * queued + 1000, running_requests=2 * queued + 4000)
    router: Router[Paced] = Router(make_problem(case), (), settings, now=loop.time)
    router.apply(live_groups())
    tasks: set[asyncio.Task[None]] = set()
    admitted: list[float] = []
    refused: list[float] = []

    def come(number: int) -> None:
        request = make_request(case, number)
        begin = time.perf_counter()
        try:
            ticket = router.submit(request, lambda group: run_of(case, group))
        except NotServed:
            refused.append(time.perf_counter() - begin)
            return
        admitted.append(time.perf_counter() - begin)
        task = asyncio.create_task(consume(ticket))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for number in range(queued):
        come(number)
    await asyncio.sleep(0)
    admitted.clear()
    gap_s = WORK_S / (GROUPS * case.load)
    waited = 0
    gc.collect()
    begin = time.process_time()
    for number in range(requests):
        await asyncio.sleep(gap_s)
        come(number)
        waited += router.waiting
    cpu_s = time.process_time() - begin
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    figures = {
        "median_us": float(np.median(admitted)) * 1e6,
        "p99_us": float(np.percentile(admitted, 99)) * 1e6,
        "cpu_us": (cpu_s - sum(refused)) / len(admitted) * 1e6,
        "waiting": waited / requests,
    }
    if refused:
        figures |= {"refused": len(refused) / requests, "refused_us": float(np.median(refused)) * 1e6}
    return figures


async def plain(case: Case, requests: int) -> tuple[float, float]:
    """The same groups, tasks and timers with the plain choice: microseconds of the choice, and all CPU beside it."""
    groups = [Paced() for _ in range(GROUPS)]
    holders = {f"m{m}": [g for g in range(GROUPS) if f"m{m}" in models_of(g)] for m in range(MODELS)}
    open_requests = [0] * GROUPS
    tasks: set[asyncio.Task[None]] = set()
    chosen: list[float] = []

    async def run(group: int) -> None:
        await consume(run_of(case, groups[group]))
        open_requests[group] -= 1

    before = time.process_time()
    for number in range(requests):
        await asyncio.sleep(WORK_S / GROUPS)
        request = make_request(case, number)
        begin = time.perf_counter()
        group = min(holders[request.model], key=open_requests.__getitem__)
        open_requests[group] += 1
        chosen.append(time.perf_counter() - begin)
        task = asyncio.create_task(run(group))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    cpu_s = time.process_time() - before
    await asyncio.gather(*tasks)
    return float(np.median(chosen)) * 1e6, (cpu_s - sum(chosen)) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few requests, to see that it runs")
    requests, queued, rounds = (200, 100, 1) if parser.parse_args().tiny else (5_000, 5_000, 3)
    figures: dict[str, dict[str, float]] = {}
    least_loaded_us = float("inf")
    warm_up()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        for _ in range(rounds):
            for name, case in CASES.items():
                choice_us, asyncio_us = runner.run(plain(case, requests))
                least_loaded_us = min(least_loaded_us, choice_us)
                found = runner.run(routed(case, queued if case.queued else 0, requests))
                found["cpu_us"] -= asyncio_us
                best = figures.setdefault(name, found)
                figures[name] = {key: min(value, best[key]) for key, value in found.items()}
    worst_us = max(figures[name]["median_us"] for name in CASES)
    emit(
        {
            "benchmark": "router",
            "ratio": round(worst_us / LIMIT_US, 3),
            "limit_us": LIMIT_US,
            "least_loaded_us": round(least_loaded_us, 2),
            "groups": GROUPS,
            "cases": {name: {key: round(value, 2) for key, value in found.items()} for name, found in figures.items()},
        }
    )


if __name__ == "__main__":
    main()
