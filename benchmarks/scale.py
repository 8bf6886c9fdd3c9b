"""How router, controller, planner and loan officer fare with many devices, by simulation on one machine.

    python -m benchmarks.scale [--tiny] [--parts workers,planner,officer]

workers: one process has the router, the controller and 1,000 emulated workers with real links. Half of what they can do
is asked for. Told are how long `Router.submit` takes at the 99th percentile (limit 200 us), what a worker takes in
memory, and CPU as a share of a core, with requests and with heartbeats and probes alone (limit 1; the emulated workers'
own half of all that is included, so the controller takes less). planner: a plan for 10,000 devices and 1,000 models
(limit 3,600 s of CPU, an hour). officer: one decision over a ladder of 1,000 rungs of 10,000 devices (limit 50 ms: it
decides twenty times a second). Prints one JSON line; `ratio` is the worst of all parts, as a share of its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.planner_scale import make_problem
from placement.capacity import Rung
from placement.cluster import Cluster, Node
from placement.plan import Group, Plan
from placement.planner import default_steps, make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile, ShapeProfile
from placement.search.effort import Effort
from placement.units import Bytes
from placement.workload import Workload
from router import NotServed, Request, Router
from router.warm_up import warm_up
from serving.controller.controller import Controller
from serving.controller.probe import Probe
from serving.controller.runner import Setup
from serving.http import configure_logs
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import EmulatedModel
from serving.worker.event_loop import run
from serving.worker.group import GroupLost
from serving.worker.messages import ModelSpec
from training.lending import LoanOfficer, Terms

SUBMIT_LIMIT_US, CPU_LIMIT, PLAN_LIMIT_S, DECIDE_LIMIT_S = 200.0, 1.0, 3600.0, 0.050
WORK_S = 1.0
"""What a request takes: long, so that many workers are busy with few requests."""
LOAD = 0.5
PLANNED_S = 6.0
"""Of traffic that is planned for: with so many devices that is half a million requests."""
PARTS = ("workers", "planner", "officer")


@dataclass(frozen=True)
class Size:
    workers: int
    models: int
    seconds: float
    plan_devices: int
    plan_models: int
    rungs: int


FULL = Size(1000, 50, 20.0, 10_000, 1_000, 1_000)
TINY = Size(20, 4, 1.5, 16, 8, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="20 workers, 16 devices: a check that it runs")
    parser.add_argument("--parts", default=",".join(PARTS), help="of workers, planner, officer")
    options = parser.parse_args()
    size, parts = TINY if options.tiny else FULL, options.parts.split(",")
    configure_logs("json")
    found: dict[str, dict[str, Any]] = {}
    if "workers" in parts:
        found["workers"] = run(_workers(size))
        note(str(found))
    if "officer" in parts:
        found["officer"] = _officer(size)
        note(str(found))
    if "planner" in parts:
        found["planner"] = _planner(size, options.tiny)
    emit({"benchmark": "scale", "ratio": max(part["ratio"] for part in found.values()), "parts": found})


async def _workers(size: Size) -> dict[str, Any]:
    _allow_files(4 * size.workers + 1000)
    warm_up()
    problem, plan = _world(size)
    models = {model.name: EmulatedModel(profile=model.profile, vocabulary=100, width=4) for model in problem.models}
    launcher = EmulatedLauncher(models)
    setup = Setup(
        launcher=launcher,
        devices={device.name: f"cpu:{number}" for number, device in enumerate(problem.cluster.devices)},
        spec_of=lambda group, model: ModelSpec(name=model, path=model),
        probes={model.name: Probe("infer", [1, 2]) for model in problem.models},
        start_s=600.0,
    )
    router: Router[Any] = Router(problem, (GroupLost,))
    controller = Controller(problem, router, setup)
    gc.collect()
    before = _memory()
    began, cpu = time.monotonic(), time.process_time()
    await controller.start(plan, "a benchmark")
    start_s, start_cpu_s = time.monotonic() - began, time.process_time() - cpu
    note(f"{size.workers} workers started in {start_s:.1f} s")
    worker_bytes = (_memory() - before) / size.workers
    assert all(runner.state == "serving" for runner in controller.runners.values())
    gc.freeze()
    idle = await _share(asyncio.sleep(size.seconds))
    asked = _Asked()
    busy = await _share(_ask(router, problem, size, asked))
    await controller.stop(0.1)
    p99 = float(np.quantile(asked.submit_us, 0.99))
    return {
        "ratio": round(max(p99 / SUBMIT_LIMIT_US, busy / CPU_LIMIT), 3),
        "workers": size.workers,
        "submit_us": {"p50": round(float(np.median(asked.submit_us)), 1), "p99": round(p99, 1)},
        "submit_limit_us": SUBMIT_LIMIT_US,
        "requests_per_s": round(len(asked.submit_us) / size.seconds, 1),
        "refused": asked.refused,
        "cores": round(busy, 3),
        "cores_without_requests": round(idle, 3),
        "cores_limit": CPU_LIMIT,
        "bytes_per_worker": round(worker_bytes),
        "start_s": round(start_s, 1),
        "start_cpu_s": round(start_cpu_s, 1),
        "emulation_late_by_s": round(launcher.worst_lag_s, 4),
    }


class _Asked:
    def __init__(self) -> None:
        self.submit_us: list[float] = []
        self.refused = 0


def _world(size: Size) -> tuple[Problem, Plan]:
    """Nodes of eight; every group holds two models, every model is on as many groups."""
    profile = Profile((ShapeProfile(1, 1, (Bytes(2**20),), {1: (WORK_S,)}),))
    models = tuple(Model(f"m{number}", profile, Slo(20 * WORK_S)) for number in range(size.models))
    nodes = tuple(Node(f"n{n}", min(8, size.workers - 8 * n), Bytes(2**30)) for n in range(-(-size.workers // 8)))
    problem = Problem(Cluster(nodes), models, Workload(np.zeros(1), np.zeros(1, np.int32)), 0.003)
    groups = [
        Group((device.name,), 1, 1, tuple(sorted(f"m{(number + more) % size.models}" for more in (0, 1))))
        for number, device in enumerate(problem.cluster.devices)
    ]
    return problem, Plan(tuple(groups))


async def _ask(router: Router[Any], problem: Problem, size: Size, asked: _Asked) -> None:
    """Poisson arrivals, open loop, at half of what the workers can do."""
    rate = LOAD * size.workers / WORK_S
    random = np.random.default_rng(0)
    times = np.cumsum(random.exponential(1 / rate, int(rate * size.seconds)))
    chosen = random.integers(0, size.models, len(times))
    began, open_requests = time.monotonic(), set()
    for number, (at, model) in enumerate(zip(times.tolist(), chosen.tolist(), strict=True)):
        wait_s = began + at - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(_request(router, f"r{number}", problem.models[model].name, asked))
        open_requests.add(task)
        task.add_done_callback(open_requests.discard)
    await asyncio.gather(*open_requests)


async def _request(router: Router[Any], name: str, model: str, asked: _Asked) -> None:
    async def work(handle: Any) -> AsyncIterator[Any]:
        yield await handle.infer(name, model, [[1, 2, 3]])

    request = Request(id=name, model=model, tokens=3)
    began = time.perf_counter_ns()
    try:
        ticket = router.submit(request, work)
    except NotServed:
        asked.refused += 1
        return
    finally:
        asked.submit_us.append((time.perf_counter_ns() - began) / 1e3)
    async for _ in ticket:
        pass


async def _share(work: Any) -> float:
    """Cores taken by this process meanwhile."""
    began, cpu = time.monotonic(), time.process_time()
    await work
    return (time.process_time() - cpu) / (time.monotonic() - began)


def _planner(size: Size, tiny: bool) -> dict[str, Any]:
    make_plan(make_problem(8, 6, 5.0), effort=Effort(steps=1))  # compiles
    problem = make_problem(size.plan_devices, size.plan_models, PLANNED_S)
    begin = time.process_time()
    plan = make_plan(problem, effort=Effort(steps=20 if tiny else default_steps(problem)))
    seconds = time.process_time() - begin
    return {
        "ratio": round(seconds / PLAN_LIMIT_S, 3),
        "devices": size.plan_devices,
        "models": size.plan_models,
        "cpu_s": round(seconds, 1),
        "limit_s": PLAN_LIMIT_S,
        "groups": len(plan.groups),
        "attainment": round(plan.planner["attainment"], 5),
        "peak_memory_gib": round(_memory() / 2**30, 2),
    }


def _officer(size: Size) -> dict[str, Any]:
    """Demand that rises and falls, so that rungs close and open."""
    rungs = [
        Rung(tuple(range(number)), float(size.rungs - number), {"a": float(size.rungs - number)})
        for number in range(size.rungs)
    ]
    officer, took, depth = LoanOfficer(rungs, Terms()), [], 0
    for look in range(2000):
        now = look * 0.05
        officer.saw(now, "a", 0.05 * size.rungs * (0.5 + 0.45 * np.sin(now / 5)))
        began = time.perf_counter()
        depth = officer.decide(now, depth, explain=False).depth
        took.append(time.perf_counter() - began)
    p99 = float(np.quantile(took, 0.99))
    return {
        "ratio": round(p99 / DECIDE_LIMIT_S, 3),
        "rungs": size.rungs,
        "devices": 10 * size.rungs,
        "decide_ms": {"p50": round(1e3 * float(np.median(took)), 3), "p99": round(1e3 * p99, 3)},
        "limit_ms": 1e3 * DECIDE_LIMIT_S,
    }


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _memory() -> int:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
