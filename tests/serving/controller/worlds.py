"""A small cluster of emulated devices with a chat and an embedding model, and a controller over it."""

import asyncio
import contextlib

import numpy as np

from placement.cluster import Cluster, Node
from placement.plan import Group, Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from placement.workload import Workload
from router import Request, Router
from serving.controller.controller import Controller
from serving.controller.probe import Probe
from serving.controller.runner import Setup
from serving.sampling import SamplingParams
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.emulated_model import EmulatedModel
from serving.worker.event_loop import run as run_loop
from serving.worker.group import GroupLost
from serving.worker.messages import ModelSpec

CHAT_BYTES, EMBED_BYTES, CACHE_BYTES = 100, 50, 100
TOKEN_S = 0.005


def _chat(pp):
    stages = tuple(StepCost(fixed=TOKEN_S / pp) for _ in range(pp))
    generation = Generation(stages, (0.01,) * pp)
    return ShapeProfile(1, pp, tuple(Bytes(CHAT_BYTES // pp) for _ in range(pp)), generation=generation)


def _embed(pp):
    latency = {1: (0.01 / pp,) * pp, 4: (0.02 / pp,) * pp}
    return ShapeProfile(1, pp, tuple(Bytes(EMBED_BYTES // pp) for _ in range(pp)), latency)


CHAT = Profile((_chat(1), _chat(2)))
EMBED = Profile((_embed(1), _embed(2)))
EMULATED = {
    "chat": EmulatedModel(profile=CHAT, vocabulary=100),
    "embed": EmulatedModel(profile=EMBED, vocabulary=100, width=4),
}


def problem(devices=4, memory=1000):
    """Times are generous: what is tested is who serves, not how fast."""
    models = (
        Model("chat", CHAT, Slo(ttft=20.0, tpot=20.0)),
        Model("embed", EMBED, Slo(end_to_end=20.0)),
    )
    tokens = np.full(2, 8, np.int32)
    workload = Workload(np.array([0.0, 1.0]), np.array([0, 1], np.int32), tokens, tokens)
    return Problem(Cluster((Node("n", devices, Bytes(memory)),)), models, workload)


def group(*devices, models=("chat", "embed"), pp=1, parked=()):
    names = tuple(f"n/{device}" for device in devices)
    caches = {name: CACHE_BYTES for name in models if name == "chat"}
    return Group(names, 1, pp, tuple(models), caches, {}, tuple(parked))


def plan(*groups):
    return Plan(tuple(groups))


def setup(launcher=None, devices=4):
    return Setup(
        launcher=launcher or EmulatedLauncher(EMULATED),
        devices={f"n/{number}": f"cpu:{number}" for number in range(devices)},
        spec_of=lambda group, model: ModelSpec(name=model, path=model, kv_bytes=group.kv_bytes.get(model, 0)),
        probes={"chat": Probe("generate", [1, 2]), "embed": Probe("infer", [1, 2])},
        start_s=20.0,
    )


def run(work, seconds=60):
    return run_loop(asyncio.wait_for(work, seconds))


@contextlib.asynccontextmanager
async def serving(first, world=None, launcher=None):
    world = world or problem()
    router = Router(world, (GroupLost,))
    controller = Controller(world, router, setup(launcher))
    await controller.start(first, "a test")
    try:
        yield controller
    finally:
        await controller.stop(drain_s=0.1)


async def chat(controller, name, tokens=20):
    """The tokens of an answer, asked through the router."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    request = Request(id=name, model="chat", tokens=3, max_tokens=tokens)
    ticket = controller.router.submit(request, lambda handle: handle.generate(name, "chat", [1, 2, 3], params))
    return [produced.token async for produced in ticket]


async def embed(controller, name):
    async def work(handle):
        yield await handle.infer(name, "embed", [[1, 2, 3]])

    ticket = controller.router.submit(Request(id=name, model="embed", tokens=3), work)
    return next(iter([answer async for answer in ticket]))


async def until(holds, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
