"""Groups whose processes meet in a room that somebody holds for them: links over TCP, on loopback."""

import contextlib

import pytest

from placement.errors import InputError
from serving.controller.journal import Journal
from serving.controller.probe import Probe, probe
from serving.controller.runner import GroupRunner, Setup
from serving.small_models.random import make_random
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec
from serving.worker.places import Tcp
from serving.worker.room import Room
from serving.worker.scratch import Scratch
from tests.serving.controller import worlds

SECRET = "a secret of enough bytes"
PROBE = Probe("generate", [1, 2, 3])


class Rooms:
    """As a cluster's would be, on loopback."""

    def __init__(self):
        self.open = []

    @contextlib.asynccontextmanager
    async def open_room(self, group, devices):
        with Scratch() as folder:
            self.open.append((group, devices))
            try:
                yield Room(tcp=Tcp(host="127.0.0.1", secret=SECRET, folder=str(folder)))
            finally:
                self.open.remove((group, devices))


def runner(setup, *devices, pp=1):
    planned = worlds.group(*devices, models=("chat",), pp=pp)
    return GroupRunner("g", planned, setup, Journal(), lambda: None)


def test_real_processes_meet_over_tcp_and_share_memory_where_the_room_says(tmp_path):
    make_random(tmp_path, hidden=64, heads=8, ffn=128, layers=2, vocabulary=300)
    rooms = Rooms()
    setup = Setup(
        launcher=LocalLauncher(),
        devices={"n/0": "cpu:0", "n/1": "cpu:1"},
        spec_of=lambda group, model: ModelSpec(name=model, path=str(tmp_path), kv_bytes=2**20),
        probes={"chat": PROBE},
        open_room=rooms.open_room,
    )

    async def scenario():
        one = runner(setup, 0, 1, pp=2)
        one.start()
        assert await one.settled() == ""
        assert rooms.open == [("g", ("n/0", "n/1"))]
        assert one.group is not None
        assert one.group._places.control.startswith("tcp:127.0.0.1:")
        assert one.group._places.rendezvous.startswith("/")
        await probe(one.group, "chat", PROBE)
        await one.stop()
        assert rooms.open == []

    worlds.run(scenario(), 120)


def test_a_group_for_which_there_is_no_room_waits_and_says_why():
    @contextlib.asynccontextmanager
    async def full(group, devices):
        raise InputError(f"no room for {group} on {devices[0]}")
        yield

    async def scenario():
        setup = worlds.setup()
        one = runner(Setup(**(vars(setup) | {"open_room": full})), 0)
        one.start()
        assert await one.settled() == "no room for g on n/0"
        assert one.state == "down"
        await one.stop()

    worlds.run(scenario())


@pytest.mark.parametrize("count", [1, 3])
def test_a_room_is_left_and_opened_anew_with_every_life(count):
    rooms = Rooms()

    async def scenario():
        one = runner(Setup(**(vars(worlds.setup()) | {"open_room": rooms.open_room})), 0)
        one.start()
        for death in range(count):
            await worlds.until(lambda: one.state == "serving")
            first = one.group
            first.give_up("a test")
            await worlds.until(lambda first=first: one.group not in (None, first))
            assert (one.deaths, len(rooms.open)) == (death + 1, 1)
        await one.stop()
        assert rooms.open == []

    worlds.run(scenario())
