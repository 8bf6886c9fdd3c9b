"""A small model with experts on two real devices, a controller over them, and who looks after the experts."""

import asyncio
import contextlib
import json
from functools import partial

import numpy as np

from moe.expert_placement import ExpertPlacement
from placement.cluster import Cluster, Node
from placement.plan import Group, Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from placement.workload import Workload
from router import Request, Router
from serving.config import ExpertsConfig
from serving.controller.controller import Controller
from serving.controller.expert_files import ExpertModel, check_experts, read_places
from serving.controller.experts import ExpertKeeper, warm_up
from serving.controller.probe import Probe
from serving.controller.runner import Setup
from serving.models import make_shard, read_config
from serving.models.runner import make_runner
from serving.sampling import SamplingParams
from serving.small_models.random import make_random
from serving.worker.group import GroupLost
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

MODEL = {"hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 24, "layers": 3, "vocabulary": 300, "experts": 6}
UNEVEN = [[[0, 1, 2, 3, 4], [5]], [[0], [1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4], [5]]]
"""Room for five experts of a layer on each device, and most tokens wait for one of them."""
SPREAD = [[[0, 2, 4], [1, 3, 5]]] * 3
CACHE_BYTES = 4_000_000


def problem(memory=10**9, pp=1):
    generation = Generation((StepCost(fixed=0.02),) * pp, (512.0,) * pp)
    profile = Profile((ShapeProfile(2, pp, (Bytes(2**20),) * pp, generation=generation),))
    models = (Model("moe", profile, Slo(ttft=20.0, tpot=20.0)),)
    tokens = np.full(1, 8, np.int32)
    workload = Workload(np.array([0.0]), np.array([0], np.int32), tokens, tokens)
    return Problem(Cluster((Node("n", 2 * pp, Bytes(memory)),)), models, workload)


def make_model(directory):
    """And compile what workers call for it: that may take longer than a sign of life of theirs."""
    make_random(directory, **MODEL)
    config = read_config(directory)
    shard = make_shard(config.sizes, 2, 1, 0, ExpertPlacement.of_lists(UNEVEN))
    make_runner(directory, config, shard, blocks=1).warm()
    warm_up()
    return directory


def write_places(path, places):
    path.write_text(json.dumps({"version": 1, "placement": places}))
    return path


def plan(path=None):
    experts = {} if path is None else {"moe": str(path)}
    return Plan((Group(("n/0", "n/1"), 2, 1, ("moe",), {"moe": CACHE_BYTES}, experts),))


@contextlib.asynccontextmanager
async def serving(directory, first, memory=10**9, **settings):
    config, world = read_config(directory), problem(memory)
    models = {"moe": ExpertModel(config, "fp32", directory)}

    def spec_of(group, model):
        places = read_places(group, model, config.sizes)
        return ModelSpec(name=model, path=str(directory), kv_bytes=group.kv_bytes[model], experts=places)

    setup = Setup(
        launcher=LocalLauncher(),
        devices={"n/0": "cpu:0", "n/1": "cpu:1"},
        spec_of=spec_of,
        probes={"moe": Probe("generate", [1, 2])},
        check=partial(check_experts, problem=world, models=models),
    )
    controller = Controller(world, Router(world, (GroupLost,)), setup)
    await controller.start(first, "a test")
    try:
        yield controller, ExpertKeeper(controller, models, ExpertsConfig(tokens=64, **settings))
    finally:
        await controller.stop(5.0)


PROMPTS = [[(3 * index + 7 * place) % 299 for place in range(4 + 5 * index)] for index in range(4)]


async def answer(controller, name, index, tokens=24):
    """The greedy answer to one of the prompts, through the router."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    request = Request(id=name, model="moe", tokens=len(PROMPTS[index]), max_tokens=tokens)
    ticket = controller.router.submit(request, lambda group: group.generate(name, "moe", PROMPTS[index], params))
    return [produced.token async for produced in ticket]


async def answers(controller, name, tokens=24):
    asked = (answer(controller, f"{name}-{index}", index, tokens) for index in range(len(PROMPTS)))
    return await asyncio.gather(*asked)


@contextlib.asynccontextmanager
async def clients(controller, expected):
    """Requests come all the while; each answer must be what it was before."""
    done, served = asyncio.Event(), []

    async def client():
        while not done.is_set():
            served.append(await answers(controller, f"c{len(served)}"))

    asking = asyncio.create_task(client())
    try:
        yield served
        while len(served) < 2:
            await asyncio.sleep(0.01)
    finally:
        done.set()
        await asking
    assert all(one == expected for one in served)
