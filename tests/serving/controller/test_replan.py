"""Traffic that the plan was not made for: what is suggested, and what is done."""

import time
from dataclasses import replace
from shutil import copy

import pytest

from placement.errors import InputError
from placement.problem import Slo, read_problem
from router import RouterSettings
from serving.config import ExpertsConfig, ReplanConfig
from serving.controller.admin import AdminDesk
from serving.controller.experts import ExpertKeeper
from serving.controller.replan import Replanner
from tests.serving.controller.worlds import embed, group, plan, problem, run, serving


def tight():
    """Embeddings are wanted within 50 ms; one device makes at most 200 of them a second."""
    world = problem()
    chat, embedding = world.models
    return replace(world, models=(chat, replace(embedding, slo=Slo(end_to_end=0.05))))


def see(controller, rate, seconds=2.0):
    """Let the router remember such traffic."""
    now = time.monotonic()
    arrived = controller.router.statistics.arrived
    arrived.extend((now - seconds + number / rate, "embed", 3, 0) for number in range(int(rate * seconds)))


@pytest.mark.parametrize("mode", ["suggest", "apply"])
def test_too_little_for_what_comes(mode):
    async def work():
        first = plan(group(0), group(1, models=["chat"]))
        async with serving(first, tight()) as controller:
            replanner = Replanner(controller, ReplanConfig(mode=mode, budget=1.0))
            desk = AdminDesk(controller, replanner, ExpertKeeper(controller, {}, ExpertsConfig()))
            see(controller, 300)
            await replanner.look()
            holders = len(controller.in_force.plan.replicas("embed"))
            if mode == "apply":
                assert holders > 1
                assert "traffic drifted" in controller.in_force.why
                assert replanner.told() is None
            else:
                told = (await desk.explain("plan"))["suggested"]
                assert told["then"]["attainment"] > told["now"]["attainment"] + 0.1
                assert (await desk.status())["suggested"]
                assert holders == 1
                await desk.apply_plan(told["plan"] | {"version": 1})
                assert len(controller.in_force.plan.replicas("embed")) > 1
            assert (await embed(controller, "after")).shape == (1, 4)

    run(work(), 300)  # the commands it runs may have to be compiled first


def test_nothing_is_searched_while_all_is_well_or_little_is_known(monkeypatch):
    async def no_search(folder, budget_s, *arguments):
        assert arguments[0] == "simulate"
        return {"models": {}, "attainment": 1.0}

    monkeypatch.setattr("serving.controller.replan._penstock", no_search)

    async def work():
        async with serving(plan(group(0)), tight()) as controller:
            replanner = Replanner(controller, ReplanConfig())
            await replanner.look()
            see(controller, 50, seconds=1.0)
            await replanner.look()
            see(controller, 150)
            await replanner.look()
            assert replanner.told() is None

    run(work())


def test_a_search_that_fails_says_so(monkeypatch):
    monkeypatch.setattr("serving.controller.replan.sys.executable", "/bin/false")

    async def work():
        async with serving(plan(group(0)), tight()) as controller:
            see(controller, 300)
            with pytest.raises(InputError, match="penstock simulate ended with 1"):
                await Replanner(controller, ReplanConfig()).look()

    run(work())


def test_a_search_knows_what_the_server_knows(monkeypatch):
    """Which models stand alone, and the rule that dispatches."""
    asked = []

    async def search(folder, budget_s, *arguments, nice=19):
        asked.append((arguments[0], *arguments[arguments.index("--dispatch") :]))
        assert [model.alone for model in read_problem(folder / "problem.json").models] == [True, False]
        if arguments[0] == "plan":
            copy(folder / "plan.json", folder / "better.json")
        return {"models": {}, "attainment": 0.5}

    monkeypatch.setattr("serving.controller.replan._penstock", search)

    async def work():
        world = tight()
        chat, embedding = world.models
        world = replace(world, models=(replace(chat, alone=True), embedding))
        async with serving(plan(group(0, models=["chat"]), group(1, models=["embed"])), world) as controller:
            controller.router.settings = RouterSettings(dispatch="shortest-queue")
            replanner = Replanner(controller, ReplanConfig())
            see(controller, 300)
            await replanner.look()
            await replanner.rehearse()
            await replanner.plan_anew("a device is gone")

    run(work())
    rule = ("--dispatch", "shortest-queue")
    assert asked == [(command, *rule) for command in ("simulate", "plan", "simulate", "plan", "plan")]
