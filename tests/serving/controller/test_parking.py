"""Parked models of a group: one is awake at a time, and known to be, whatever becomes of those who ask."""

import asyncio
from contextlib import suppress

import pytest

from serving.controller.parking import ParkingGroup
from tests.serving.controller.worlds import run


class Sleeper:
    """A group whose orders take until they are let go; refuses requests of models that are asleep."""

    def __init__(self):
        self.awake, self.orders = set(), []
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def suspend(self, model):
        self.orders.append(f"suspend {model}")
        self.awake.discard(model)
        await self.may_go.wait()

    async def resume(self, model):
        self.orders.append(f"resume {model}")
        await self.may_go.wait()
        self.awake.add(model)

    async def infer(self, request, model, inputs, kinds=None):
        assert self.awake == {model}
        return model


@pytest.mark.parametrize("order", ["suspend a", "resume b"])
def test_who_goes_while_a_model_wakes_leaves_it_known_which_is_awake(order):
    async def work():
        group = Sleeper()
        parking = ParkingGroup(group, ("a", "b"))
        await parking.infer("1", "a", [])
        group.may_go.clear()
        gone = asyncio.create_task(parking.infer("2", "b", []))
        while group.orders[-1] != order:
            await asyncio.sleep(0)
            if order == "resume b" and group.orders[-1] == "suspend a":
                group.may_go.set()
                await asyncio.sleep(0)
                group.may_go.clear()
        for _ in range(2):  # and a server that stops may cancel once more
            gone.cancel()
            await asyncio.sleep(0)
        others = [asyncio.create_task(parking.infer(name, name, [])) for name in "ab"]
        await asyncio.sleep(0)
        group.may_go.set()
        with suppress(asyncio.CancelledError):
            await gone
        assert gone.cancelled()
        assert await asyncio.gather(*others) == ["a", "b"]
        assert group.awake == {parking.awake}

    run(work(), 10)


def test_a_model_under_steady_load_does_not_keep_the_others_asleep():
    async def work():
        group = Sleeper()
        parking = ParkingGroup(group, ("a", "b"))
        ended, may_answer = [], asyncio.Event()

        async def infer(request, model, inputs, kinds=None):
            await may_answer.wait()
            ended.append(request)

        group.infer = infer
        tasks = []
        for request, model in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "b")):
            tasks.append(asyncio.create_task(parking.infer(request, model, [])))
            await asyncio.sleep(0.01)
        tasks[3].cancel()  # who goes leaves its place
        may_answer.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert ended == ["1", "2", "3", "5"]
        assert group.orders == ["resume a", "suspend a", "resume b"]

    run(work(), 10)


def test_a_model_is_roused_before_anybody_asks_and_what_that_takes_is_known():
    async def work():
        group = Sleeper()
        parking = ParkingGroup(group, ("a", "b"))
        await parking.rouse("a")
        assert (parking.awake, group.awake) == ("a", {"a"})
        await parking.rouse("a")
        assert group.orders == ["resume a"]
        await parking.infer("1", "b", [])
        await parking.rest()
        assert (parking.awake, group.awake) == (None, set())
        await parking.rouse("a")
        assert set(parking.wake_s) == {"a", "b"}
        assert min(parking.wake_s.values()) > 0

    run(work(), 10)


def test_before_the_first_time_waking_is_taken_to_be_as_long_as_planned():
    async def work():
        parking = ParkingGroup(Sleeper(), ("a", "b"), {"a": 7.0, "b": 7.0})
        await parking.infer("1", "a", [])
        assert parking.wake_s["a"] < 7.0
        assert parking.wake_s["b"] == 7.0

    run(work(), 10)
