"""Groups that nobody asks are found when they hang, at little cost while they do not."""

import asyncio

import msgspec

from placement.profile import Profile, ShapeProfile
from placement.units import Bytes
from serving.controller.proving import Proving
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.messages import Echo, Generate, Infer
from tests.serving.controller.worlds import EMULATED, chat, embed, group, plan, run, serving, until


def overhear(group):
    """The orders that it is given from now on."""
    orders, send = [], group._link.send
    group._link.send = lambda order: (orders.append(order), send(order))[1]
    return orders


def test_models_have_their_turn_and_no_more_at_once_than_must():
    proving = Proving(every_s=5.0, renew_s=20.0)
    proven = dict.fromkeys("abcd", 0.0)
    assert proving.due(proven, 19.0) == []
    for now, model in ((20.0, "a"), (25.0, "b"), (30.0, "c"), (35.0, "d"), (40.0, "a")):
        assert proving.due(proven, now) == [model]
        proven[model] = now
    assert len(proving.due(dict.fromkeys("abcde", 0.0), 20.0)) == 2


def test_a_quiet_group_echoes_and_computes_only_what_is_due():
    async def work():
        async with serving(plan(group(0))) as controller:
            runner = controller.runners["g0"]
            orders = overhear(runner.group)
            await Proving(every_s=60.0).prove(runner)
            assert orders == []
            await Proving(every_s=0.0).prove(runner)
            assert [type(one) for one in orders] == [Echo]
            assert not runner.group._orders
            orders.clear()
            await embed(controller, "a")
            await asyncio.sleep(0.1)
            orders.clear()
            await chat(controller, "b", tokens=1)
            orders.clear()
            await Proving(every_s=0.1, renew_s=0.1).prove(runner)  # chat has just answered somebody
            assert [one.model for one in orders if isinstance(one, Generate | Infer)] == ["embed"]

    run(work())


def test_a_group_that_is_stuck_is_ended_before_a_pass_is_due():
    async def work():
        async with serving(plan(group(0), group(1))) as controller:
            runner = controller.runners["g0"]
            orders = []
            runner.group._link.send = orders.append  # and go nowhere
            await Proving(every_s=0.0, patience_s=0.1).prove(runner)
            assert [type(one) for one in orders[:1]] == [Echo]
            await until(lambda: runner.deaths == 1)
            assert "did not answer a probe" in runner.last_death
            await until(lambda: runner.state == "serving")

    run(work())


def test_a_model_that_answers_no_probe_ends_its_group():
    async def work():
        async with serving(plan(group(0))) as controller:
            runner = controller.runners["g0"]
            runner.group._link.send = lambda order: None
            await Proving(renew_s=0.001, patience_s=0.1).prove(runner)
            await until(lambda: runner.deaths == 1)
            assert "'chat' did not answer a probe" in runner.last_death
            await until(lambda: runner.state == "serving")

    run(work())


def test_a_probe_of_a_model_that_goes_does_not_end_its_group():
    slow = msgspec.structs.replace(EMULATED["embed"], profile=Profile((ShapeProfile(1, 1, (Bytes(50),), {1: (0.4,)}),)))

    async def work():
        launcher = EmulatedLauncher(EMULATED | {"embed": slow})
        async with serving(plan(group(0)), launcher=launcher) as controller:
            runner = controller.runners["g0"]
            proving = asyncio.create_task(Proving(every_s=1.0, renew_s=0.001).prove(runner))
            await asyncio.sleep(0.1)
            await controller.apply(plan(group(0, models=("chat",))), "a test")
            await proving
            await asyncio.sleep(0.1)
            assert runner.deaths == 0
            assert len(await chat(controller, "a")) == 20

    run(work())
