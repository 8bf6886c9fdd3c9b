"""What benchmarks of live loans run on: devices with two chat models each, a ladder, a job that takes all it gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.server import Server
from benchmarks.harness.world import World, made_once, make_world
from placement.capacity import Rung, find_rungs, usual_requests, with_rungs
from placement.cli.admin import ask_admin
from placement.plan import Group, Plan
from serving.profiler.effort import QUICK
from serving.small_models.random import make_random
from training.elastic.task import HISTORY

MODELS = ("chat", "chat-2")
SMALL: dict[str, Any] = {"hidden": 192, "layers": 4, "heads": 4, "ffn": 512, "vocabulary": 1024}
LARGER: dict[str, Any] = {"hidden": 512, "layers": 8, "heads": 8, "ffn": 1536, "vocabulary": 4096}
TINY: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 8, "ffn": 128, "vocabulary": 512}
JOB = "all"
PROMPT, OUTPUT = 32, 16
TTFT_S, TPOT_S = 1.0, 0.2
BURST = 10.0
"""Times the rate between bursts."""
FULL = 0.6
"""Of what all devices hold: the rate of a burst."""


@dataclass(frozen=True)
class Workers:
    """How devices are stood in for. `step_s` is what a step of the job takes at least."""

    kind: str
    devices: int
    sizes: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    step_s: float = 0.0
    at_once: bool = False
    """Several servers fit on this machine beside each other."""


KINDS = {
    "paced": Workers("paced", 4, SMALL, {"pace": 12.0}, step_s=0.05, at_once=True),
    "real": Workers("real", 2, LARGER),
}


@dataclass(frozen=True)
class Setting:
    world: World
    plan: Plan
    workers: Workers
    rate_per_s: float
    """Between bursts."""
    lendable: tuple[int, int]
    """Devices that the rate between bursts leaves, and that of a burst."""


def make_setting(folder: Path, workers: Workers) -> Setting:
    models = []
    for seed, name in enumerate(MODELS):
        path = _model(name, workers.sizes, seed)
        traffic = {"rate": 5, "cv": 1, "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
        slo = {"ttft": TTFT_S, "tpot": TPOT_S}
        models.append({"name": name, "path": str(path), "slo": slo, "traffic": traffic})
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "tokens.npy", np.random.default_rng(0).zipf(1.3, 100_000) % TINY["vocabulary"])
    data = [str(folder), str(_lesson(workers))]
    training = {"store": f"sqlite:///{folder}/queue.db", "data": data, "loans": {"minimum": "5s"}}
    world = make_world(
        folder,
        models,
        workers.devices,
        effort=QUICK,
        workers={"kind": workers.kind} | workers.settings,
        training=training,
        keeps=lambda shape: shape if (shape.tp, shape.pp) == (1, 1) else None,
    )
    count = workers.devices
    groups = [Group((f"local/{n}",), 1, 1, MODELS, dict.fromkeys(MODELS, 32 << 20)) for n in range(count)]
    ladder = tuple(tuple(range(count - drained, count)) for drained in range(1, count))
    plan, problem = Plan(tuple(groups), ladder), world.problem()
    rungs = find_rungs(problem, plan)
    work_s = float(np.mean([one.work_s for one in usual_requests(problem).values()]))
    rate = FULL * rungs[0].work_per_s / work_s / BURST
    lendable = (_devices(rungs, rate * work_s), _devices(rungs, BURST * rate * work_s))
    return Setting(world, with_rungs(plan, rungs), workers, rate, lendable)


@contextmanager
def serving(setting: Setting, name: str, loans: bool) -> Iterator[Server]:
    """A server with a job that takes all it can get: a small model, whose steps are short on any device."""
    world, workers = setting.world, setting.workers
    training = world.document["training"]
    terms = training["loans"] | {"mode": "apply" if loans else "off"}
    store = training["store"].replace("queue.db", f"{name}.db")
    config = world.write(name, training=training | {"loans": terms, "store": store})
    with Server(config, f"--plan={world.write_plan(name, setting.plan)}") as server:
        lm = {"model": str(_lesson(workers)), "data": str(world.folder / "tokens.npy"), "steps": 10**6}
        lm |= {"batch": 4, "context": 32, "fresh": True, "pace": workers.step_s}
        most = workers.devices
        job = {"id": JOB, "type": "lm", "gpus": 1, "min_gpus": 1, "max_gpus": most, "duration": 10**6, "lm": lm}
        ask_admin(server.url, "/v1/jobs", json.dumps(job).encode(), "POST")
        yield server


def story(server: Server) -> dict[str, Any]:
    """What `penstock explain loans` tells."""
    found: dict[str, Any] = ask_admin(server.url, "/admin/explain/loans")
    return found


def trains_on(server: Server) -> int:
    """Devices that jobs have."""
    return sum(owner.startswith("job") for owner in server.status()["devices"].values())


def steps_made(setting: Setting, name: str) -> int:
    """By the job of the server of that name, so far."""
    history = setting.world.folder / f"{name}-jobs" / JOB / HISTORY
    return history.read_bytes().count(b'"what":"step"') if history.is_file() else 0


def _lesson(workers: Workers) -> Path:
    """What the job trains."""
    return _model(MODELS[0], workers.sizes if workers.sizes == TINY else SMALL, 0)


def _model(name: str, sizes: dict[str, Any], seed: int) -> Path:
    return made_once(f"loans-{name}-{sizes['hidden']}", make_random, **sizes, seed=seed)


def _devices(rungs: tuple[Rung, ...], work_per_s: float) -> int:
    return max((len(rung.drained) for rung in rungs if rung.work_per_s >= work_per_s), default=0)
