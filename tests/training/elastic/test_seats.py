"""Who gets which device: laws, and what a coordinator does where nobody with the newest state can have one."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.elastic.worlds import places, spec_of
from training.elastic import coordinator as coordinating
from training.elastic.coordinator import LEAVE_S, Coordinator
from training.elastic.member import Member
from training.elastic.messages import Go, Move, Save, Saved, Yield
from training.elastic.seats import seats
from training.elastic.task import CHECKPOINT, Task


def member(name, device, state, step, node=""):
    made = Member(name, device, node, state=state, step=step)
    made.link = Link()
    return made


class Link:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, order):
        self.sent.append(order)

    def kinds(self):
        return [type(order) for order in self.sent]


class Handle:
    pid = 1

    def __init__(self):
        self.killed = False

    def kill(self):
        self.killed = True


DEVICES = st.sampled_from([f"d{n}" for n in range(5)])
MEMBERS = st.lists(
    st.builds(
        member,
        st.just("worker"),
        DEVICES,
        st.sampled_from(["parked", "parking"]),
        st.integers(-1, 3),
        st.sampled_from(["x", "y"]),
    ),
    max_size=6,
)


@given(st.dictionaries(DEVICES, st.sampled_from(["x", "y"])), MEMBERS)
def test_no_device_is_left_and_no_state_that_is_newer(free, members):
    found = seats(free, members)
    assert set(found) <= set(free)
    assert len({id(one) for one in found.values()}) == len(found)
    for device, one in found.items():
        assert one.node == free[device]
    for node in "xy":
        here = sum(one.node == node for one in members)
        seated = [one for one in found.values() if one.node == node]
        assert len(seated) == min(here, sum(place == node for place in free.values()))
        left = [one.step for one in members if one.node == node and one not in seated]
        assert not seated or not left or max(left) <= min(one.step for one in seated)


@given(st.sets(DEVICES, min_size=1))
def test_who_can_keeps_its_own_device(devices):
    members = [member(f"of {device}", device, "parked", 7) for device in devices]
    found = seats(dict.fromkeys(devices, ""), members)
    assert {device: one.name for device, one in found.items()} == {device: f"of {device}" for device in devices}


@contextlib.contextmanager
def coordinator_of(world, folder, devices, *members, **more):
    task = Task(lm={}, run="r1", devices=places(devices), **more)
    made = Coordinator(task, spec_of(world), folder, folder / "tokens", launcher=None)
    made._members = list(members)
    try:
        yield made
    finally:
        for one in members:
            one.stop_waiting()
        made._history.close()
        made._scratch.remove()


def test_one_that_waits_does_not_go_on_while_another_that_knows_more_is_in_its_step(world, tmp_path):
    old, new = member("old", "local/0", "waiting", 100), member("new", "local/1", "parking", 100)

    async def go():
        with coordinator_of(world, tmp_path, (0,), old, new) as job:
            job._consider()
            assert not old.link.sent  # a step more may come
            new.state, new.step = "parked", 101
            job._consider()
            job._consider()
            assert (old.link.kinds(), new.link.kinds()) == ([], [Save])
            (tmp_path / CHECKPOINT).mkdir()
            (tmp_path / CHECKPOINT / f"step-{101:010d}-{'0' * 32}.safetensors").touch()
            job._take(new.link, Saved(101))
            (order,) = old.link.sent
            assert isinstance(order, Go)
            assert (order.saved, order.behind) == (101, ())

    asyncio.run(go())


@pytest.mark.parametrize("state", ["finishing", "yielding", "leaving"])
def test_one_that_ends_with_more_is_waited_for(world, tmp_path, state):
    old, new = member("old", "local/0", "waiting", 100), member("new", "local/1", state, 101)

    async def go():
        with coordinator_of(world, tmp_path, (0, 1), old, new) as job:
            job._consider()
            assert not old.link.sent
            job._members.remove(new)
            job._consider()
            assert old.link.kinds() == [Go]

    asyncio.run(go())


def test_all_but_the_source_are_behind_what_it_reads(world, tmp_path):
    members = [member(f"worker-{n}", f"local/{n}", "waiting", step) for n, step in enumerate((90, 100, 100))]
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / f"step-{101:010d}-{'0' * 32}.safetensors").touch()

    async def go():
        with coordinator_of(world, tmp_path, (0, 1, 2), *members) as job:
            job._consider()
            assert [(one.saved, one.source, one.behind) for m in members for one in m.link.sent] == [
                (101, 1, (0, 2))
            ] * 3

    asyncio.run(go())


def test_a_device_is_kept_for_the_newest_until_it_has_parked(world, tmp_path):
    old, new = member("old", "local/0", "parked", 100), member("new", "local/1", "training", 200)

    async def go():
        with coordinator_of(world, tmp_path, (1,), old, new) as job:
            job._want(places((0,)))
            assert (old.state, new.state) == ("parked", "parking")
            job._park(new)
            job._start_missing()
            job._consider()
            assert (old.state, new.state, new.device) == ("parked", "training", "local/0")
            assert not old.link.sent
            assert Move in new.link.kinds()

    asyncio.run(go())


def test_one_whose_device_comes_back_is_no_longer_hurried(world, tmp_path, monkeypatch):
    monkeypatch.setattr(coordinating, "LEAVE_S", 0.01)
    alone = member("alone", "local/0", "training", 100)
    alone.handle = Handle()

    async def go():
        with coordinator_of(world, tmp_path, (0,), alone, grace_s=0.05) as job:
            job._want({})
            await asyncio.sleep(0.03)  # its grace has begun
            job._want(places((0,)))
            await asyncio.sleep(0.1)
            assert alone.state == "training"
            assert not alone.handle.killed

    asyncio.run(go())


def test_one_that_finishes_gives_its_device_away(world, tmp_path):
    ends = member("ends", "local/0", "finishing", 100)
    ends.handle = Handle()

    async def go():
        with coordinator_of(world, tmp_path, (0,), ends) as job:
            await asyncio.wait_for(job.resize({}), LEAVE_S + 0.5)
            assert (job.workers, job.parked) == ({}, (1,))
            assert ends.link.kinds() == [Yield]
            job._consider()
            assert ends.link.kinds() == [Yield]
            job._want(places((0,)))
            assert job.workers == {"local/0": 1}

    asyncio.run(go())
