"""Nodes that leave and join while requests run: who serves then, and who has which device."""

import asyncio
from dataclasses import replace

import pytest

from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.plan import Group, Plan
from placement.units import Bytes
from router import Router
from serving.controller.controller import Controller
from serving.controller.ledger import IDLE, Ledger, Owner
from serving.controller.nodes import NodeKeeper
from serving.controller.runner import Setup
from serving.worker.group import GroupLost
from tests.serving.controller import worlds


def cluster(*names, devices=2):
    return Cluster(tuple(Node(name, devices, Bytes(1000)) for name in names))


def group(*devices, pp=1):
    return Group(devices, 1, pp, ("chat", "embed"), {"chat": worlds.CACHE_BYTES})


class Replans:
    """As the replanner, with plans made by hand."""

    def __init__(self, controller):
        self.controller, self.plans, self.asked = controller, {}, []

    async def plan_anew(self, why):
        self.asked.append(why)
        names = tuple(node.name for node in self.controller.problem.cluster.nodes)
        if names not in self.plans:
            raise InputError("no plan holds all models")
        await self.controller.apply(self.plans[names], why)


class World:
    """A controller of nodes a and b with a group on each, and one across both."""

    def __init__(self):
        problem = replace(worlds.problem(), cluster=cluster("a", "b"))
        devices = {f"{name}/{number}": f"cpu:{number}" for name in "abc" for number in range(2)}
        setup = Setup(**(vars(worlds.setup()) | {"devices": devices}))
        self.controller = Controller(problem, Router(problem, (GroupLost,), kinds=["any"]), setup)
        self.replans = Replans(self.controller)
        self.nodes = cluster("a", "b")
        self.keeper = NodeKeeper(self.controller, self.replans, self.find)

    async def find(self):
        return self.nodes

    async def start(self):
        await self.controller.start(Plan((group("a/0"), group("a/1", "b/1", pp=2), group("b/0"))), "a test")

    @property
    def owners(self):
        return {device: str(owner) for device, owner in self.controller.ledger.owners.items()}


def test_a_node_that_leaves_takes_its_groups_along_and_what_is_left_is_planned_anew():
    async def scenario():
        world = World()
        await world.start()
        controller = world.controller
        world.replans.plans[("a",)] = Plan((group("a/0"), group("a/1")))
        kept = controller.runners["g0"]
        await world.keeper.look()
        assert world.replans.asked == []
        open_requests = [asyncio.create_task(worlds.chat(controller, f"r{n}", 40)) for n in range(6)]
        await asyncio.sleep(0.05)
        world.nodes = cluster("a")
        await world.keeper.look()
        assert world.replans.asked == ["node b left"]
        assert world.owners == {"a/0": "group g0", "a/1": "group g3"}
        assert controller.runners["g0"] is kept
        answers = await asyncio.gather(*open_requests, return_exceptions=True)
        assert all(len(one) == 40 for one in answers if isinstance(one, list))
        assert sum(isinstance(one, list) for one in answers) >= 2, "those of the group that stays are answered"
        assert len(await worlds.chat(controller, "after", 5)) == 5
        assert controller.problem.cluster == cluster("a")
        with pytest.raises(InputError, match="b/0"):
            await controller.apply(Plan((group("b/0"),)), "of old")
        await controller.stop(0.1)

    worlds.run(scenario())


def test_a_node_that_joins_is_used():
    async def scenario():
        world = World()
        await world.start()
        world.nodes = cluster("a", "b", "c")
        world.replans.plans[("a", "b", "c")] = Plan((group("a/0"), group("b/0"), group("c/0", "c/1", pp=2)))
        await world.keeper.look()
        assert world.replans.asked == ["node c joined"]
        assert world.owners["c/1"] == "group g3"
        assert world.owners["a/1"] == "idle"
        assert len(await worlds.chat(world.controller, "r", 5)) == 5
        await world.controller.stop(0.1)

    worlds.run(scenario())


def test_where_no_plan_is_found_the_rest_serves_on_and_it_is_tried_again(monkeypatch):
    monkeypatch.setattr("serving.controller.nodes.AGAIN_S", 0.0)

    async def scenario():
        world = World()
        await world.start()
        world.nodes = cluster("b")
        with pytest.raises(InputError, match="no plan"):
            await world.keeper.look()
        assert [one.spec.devices for one in world.controller.runners.values()] == [("b/0",)]
        assert [one.devices for one in world.controller.in_force.plan.groups] == [("b/0",)]
        assert len(await worlds.chat(world.controller, "r", 5)) == 5
        world.replans.plans[("b",)] = Plan((group("b/0"), group("b/1")))
        await world.keeper.look()
        await world.keeper.look()
        assert world.replans.asked == ["node a left"] * 2
        assert len(world.controller.runners) == 2
        await world.controller.stop(0.1)

    worlds.run(scenario())


def test_nodes_are_looked_at_while_a_plan_is_rehearsed():
    looks = []

    class Rehearsing:
        async def rehearse(self):
            await asyncio.sleep(60)

    async def look(self):
        looks.append(self)

    async def scenario():
        world = World()
        keeper = NodeKeeper(world.controller, Rehearsing(), find=None)
        keeper.look = look.__get__(keeper)
        task = asyncio.create_task(keeper.run())
        await worlds.until(lambda: looks)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    worlds.run(scenario())


def test_a_ledger_keeps_owners_of_devices_that_stay():
    ledger = Ledger(["a", "b"])
    ledger.move(["a"], IDLE, Owner("group", "g"))
    ledger.keep(["c", "a"])
    assert ledger.owners == {"c": IDLE, "a": Owner("group", "g")}
    with pytest.raises(AssertionError, match="still have owners"):
        ledger.keep(["c"])
