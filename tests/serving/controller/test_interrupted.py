"""Changes of plan whose asker goes, and stops that come amid something: all ends whole, and nothing of it stays."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from placement.errors import InputError
from serving.controller import views
from serving.controller.replan import _penstock
from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.group import Group
from tests.serving.controller.worlds import EMULATED, chat, group, plan, problem, run, serving, until

APART = plan(group(0), group(1))


@contextlib.asynccontextmanager
async def halfway():
    """A controller that waits for an open request before the new plan's models can be loaded, and that request."""
    async with serving(plan(group(0, 1, pp=2)), problem(memory=300)) as controller:
        asked = asyncio.create_task(chat(controller, "long", tokens=100))
        await until(lambda: controller.router.running == 1)
        change = asyncio.create_task(controller.apply(APART, "a test"))
        await until(lambda: controller.in_force.plan is APART)
        yield controller, asked, change


def test_a_change_goes_on_when_who_asked_for_it_has_gone():
    async def work():
        async with halfway() as (controller, asked, change):
            change.cancel()
            assert len(await asked) == 100
            await until(lambda: controller.unready() == {})
            assert [str(owner) for owner in controller.ledger.owners.values()] == [
                *("group g1", "group g2", "idle", "idle")
            ]
            assert len(await chat(controller, "after")) == 20
            moves = views.explain_moves(controller)["moves"]
            assert [move["what"] for move in moves if move.get("group") == "g0"] == ["serving", "stopped"]

    run(work())


def test_stopping_amid_a_change_ends_every_group():
    async def work():
        async with halfway() as (controller, asked, change):
            old, new = controller._leaving["g0"], list(controller.runners.values())
            await controller.stop(drain_s=20.0)
            assert len(await asked) == 100
            assert [runner.state for runner in (old, *new)] == ["stopped"] * 3
            assert [runner.group for runner in (old, *new)] == [None] * 3
            await asyncio.wait((change,), timeout=5)
            assert change.cancelled()

    run(work())


def test_a_plan_that_cannot_be_is_told_though_nobody_waits_for_it():
    class Unwilling(EmulatedLauncher):
        async def start(self, spec):
            if spec.device != "cpu:0":
                await may_fail.wait()
                raise InputError(f"{spec.name}: there is no such device")
            return await super().start(spec)

    may_fail = asyncio.Event()

    async def work():
        async with serving(plan(group(0)), launcher=Unwilling(EMULATED)) as controller:
            change = asyncio.create_task(controller.apply(APART, "a test"))
            await asyncio.sleep(0)
            change.cancel()
            with pytest.raises(asyncio.CancelledError):
                await change
            may_fail.set()

            def reasons():
                moves = views.explain_moves(controller)["moves"]
                return [move["reason"] for move in moves if move["what"] == "not replaced"]

            await until(reasons)
            assert "no such device" in reasons()[0]
            assert len(await chat(controller, "after")) == 20

    run(work())


def test_a_group_stopped_while_it_dies_leaves_nothing(monkeypatch):
    stop, dying, may_end = Group.stop, asyncio.Event(), asyncio.Event()

    async def stop_slowly(group, grace_s=2.0):
        dying.set()
        await may_end.wait()
        await stop(group, grace_s)

    monkeypatch.setattr(Group, "stop", stop_slowly)

    async def work():
        async with serving(plan(group(0))) as controller:
            runner = controller.runners["g0"]
            one = runner.group
            one.give_up("a test")
            await dying.wait()
            stopping = [asyncio.create_task(runner.stop()) for _ in range(2)]
            await asyncio.sleep(0)
            may_end.set()
            await asyncio.gather(*stopping)
            assert runner.state == "stopped"
            assert not one._scratch.path.exists()

    run(work())


def test_a_search_given_up_as_it_ends(monkeypatch):
    """The server's end waits for it."""

    class Process:
        def __init__(self):
            self.ended, self.returncode, self.is_killed = asyncio.get_running_loop().create_future(), 0, False

        async def communicate(self):
            return await self.ended

        def kill(self):
            self.is_killed = True

        async def wait(self):
            return -9

    async def work():
        process = Process()

        async def start(*arguments, **options):
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        searching = asyncio.create_task(_penstock(Path(), 1.0, "plan"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.ended.set_result((b"{}", b""))
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        assert process.is_killed

    run(work())
