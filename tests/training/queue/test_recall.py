"""Devices that are wanted back at once: no policy is asked, no other job waited for, and what can waits in memory."""

import asyncio
import threading
import time
from contextlib import suppress
from itertools import groupby

import pytest

from tests.training.queue.worlds import Lent, running, service, shell, states, until
from training.queue import Running
from training.queue.record import Process
from training.queue.runner import Exited, Parking

NAMES = ("n0/0", "n0/1", "n0/2")


class Elastic:
    """A runner whose jobs change in place and wait in memory; nothing runs. It notes what it is asked for."""

    def __init__(self):
        self.asked = []
        self.alive = {}
        self.fails = set()
        self.is_open = threading.Event()
        self.is_open.set()

    def start(self, record):
        self.asked.append(("start", record.id))
        if record.id.startswith("slow"):
            self.is_open.wait(20)
        self.alive[record.id] = record.run
        return Process(1, 1)

    def look(self, record):
        return Running(Process(1, 1)) if self.alive.get(record.id) == record.run else Exited(0, True)

    def stop(self, record):
        self.asked.append(("stop", record.id))
        self.kill(record)

    def kill(self, record):
        if self.alive.get(record.id) == record.run:
            del self.alive[record.id]
        return self.look(record)

    def can_resize(self, record, devices):
        return True

    def resize(self, record, devices):
        self._do("resize", record)

    def can_park(self, record):
        return True

    def park(self, record):
        self._do("park", record)

    def can_resume(self, record):
        return isinstance(self.look(record), Running)

    def resume(self, record):
        self._do("resume", record)

    def _do(self, what, record):
        self.asked.append((what, record.id))
        if what in self.fails:
            raise OSError("no answer")


@pytest.fixture
def store(sqlite_store):
    return sqlite_store


def live(test):
    def run(store, tmp_path):
        devices, runner = Lent(NAMES), Elastic()
        asyncio.run(test(store, service(store, tmp_path / "jobs", "penstock", devices, runner, 3), devices, runner))

    run.__name__ = test.__name__
    return run


def runs_on(store, count):
    record = store.get("e")
    return record.state == "running" and len(record.devices) == count


def test_runners_that_park():
    assert isinstance(Elastic(), Parking)


@live
async def test_it_shrinks_then_waits_in_memory_then_goes_on(store, queue, devices, runner):
    store.submit([shell("e", "-", min_gpus=1, gpus=1, max_gpus=3)], "me")
    async with running(queue):
        await until(lambda: runs_on(store, 3))
        run = store.get("e").run
        devices.wanted_back = {"n0/1"}
        await queue.recall()
        assert set(devices.held["e"]) == set(store.get("e").devices) == {"n0/0", "n0/2"}
        assert (store.get("e").observed.resizes, store.get("e").observed.preemptions) == (1, 0)
        devices.wanted_back = set(NAMES)
        await queue.recall()
        assert devices.held == {}
        record = store.get("e")
        assert (record.state, record.why) == ("suspended", "its devices are others' now; waits in memory")
        assert (record.observed.resizes, record.observed.preemptions, record.devices) == (1, 1, ())
        attained = record.observed.attained
        assert attained > 0
        devices.wanted_back = {"n0/0", "n0/1"}
        await until(lambda: states(store)["e"] == "running")
        record = store.get("e")
        assert (record.run, record.attempts, record.devices) == (run, 1, ("n0/2",))
        assert (record.observed.starts, record.observed.attained) == (2, attained)
    told = [(event.state, event.why) for event in store.events("e")]
    assert ("running", "resized from 3 to 2 workers") in told
    assert ("starting", "from memory with 1 workers") in told
    assert [what for what, _ in runner.asked] == ["start", "resize", "park", "resume", "stop"]


@live
async def test_too_few_devices_in_all_for_the_job(store, queue, devices, runner):
    store.submit([shell("e", "-", gpus=2)], "me")
    told = []
    queue._note = lambda what, facts: told.append(what)
    async with running(queue):
        await until(lambda: states(store)["e"] == "running")
        devices.wanted_back = {"n0/0", "n0/1"}
        await asyncio.wait_for(queue.recall(), 5)
        assert devices.held == {}
        assert store.get("e").observed.preemptions == 1
        assert "failed" not in told
        devices.wanted_back = set()
        await until(lambda: states(store)["e"] == "running")


@live
async def test_a_recall_that_fails_is_not_begun_again_at_once(store, queue, devices, runner):
    store.submit([shell("e", "-")], "me")
    async with running(queue):
        await until(lambda: states(store)["e"] == "running")
        begun = []

        def broken(*arguments):
            begun.append(1)
            raise OSError("disk full")

        queue._left, left = broken, queue._left
        devices.wanted_back = set(devices.held["e"])
        queue.wake()
        await asyncio.sleep(0.5)
        assert len(begun) == 1
        queue._left = left
        await until(lambda: not set(devices.held.get("e", ())) & devices.wanted_back)


@live
async def test_a_recall_does_not_wait_for_the_start_of_another(store, queue, devices, runner):
    store.submit([shell("e", "-", gpus=2)], "me")
    async with running(queue):
        await until(lambda: states(store)["e"] == "running")
        runner.is_open.clear()
        store.submit([shell("slow", "-")], "me")
        await until(lambda: ("start", "slow") in runner.asked)
        devices.wanted_back = {"n0/0"}
        queue.wake()
        began = time.monotonic()
        await until(lambda: "e" not in devices.held)
        assert time.monotonic() - began < 1
        assert states(store) == {"e": "suspended", "slow": "starting"}
        devices.wanted_back |= set(store.get("slow").devices)  # it leaves when it has been started
        recall = asyncio.create_task(queue.recall())
        await asyncio.sleep(0.1)
        assert not recall.done()
        runner.is_open.set()
        await recall
        assert devices.held == {}


@live
async def test_one_that_does_not_answer_is_stopped_and_started(store, queue, devices, runner):
    runner.fails = {"resize", "park"}
    store.submit([shell("e", "-", min_gpus=1, gpus=1, max_gpus=3)], "me")
    async with running(queue):
        await until(lambda: runs_on(store, 3))
        first = store.get("e").run
        devices.wanted_back = set(NAMES[1:])
        await queue.recall()
        await until(lambda: runs_on(store, 1))
        record = store.get("e")
        assert record.run != first
        assert record.attempts == 2
        asked = [what for (what, _), _ in groupby(runner.asked)]  # a turn may try to resize it just before the recall
        assert asked == ["start", "resize", "park", "stop", "start"]
        runner.fails = {"resume"}
        devices.wanted_back = set(NAMES)
        await queue.recall()
        devices.wanted_back = set(NAMES[1:])
        await until(lambda: store.get("e").attempts == 3)
        assert store.get("e").losses == 0
    told = [event.why for event in store.events("e")]
    assert "it did not come back from memory" in told


@live
async def test_what_came_and_went_between_two_looks_is_seen(store, queue, devices, runner):
    store.submit([shell("e", "-", min_gpus=1, gpus=1, max_gpus=3)], "me")
    await queue.begin()
    await queue.step()
    assert runs_on(store, 3)
    for wanted_back, state in ((set(NAMES), "suspended"), ({"n0/1"}, "running")):
        devices.wanted_back = wanted_back
        await queue.recall()
        assert states(store)["e"] == state
        devices.wanted_back = set()
        await queue.step()
        assert runs_on(store, 3)
    await queue.stop()


@live
async def test_parked_runs_end_with_their_jobs_and_with_the_server(store, queue, devices, runner):
    store.submit([shell(name, "-") for name in "abc"], "me")
    async with running(queue):
        await until(lambda: set(states(store).values()) == {"running"})
        devices.wanted_back = set(NAMES)
        await queue.recall()
        assert set(states(store).values()) == {"suspended"}
        assert len(runner.alive) == 3
        store.cancel("a", "me")
        await until(lambda: "a" not in runner.alive)
        runner.alive["b"] = "by another"  # which has claimed it
        with store.database.write() as transaction:
            transaction.run("UPDATE jobs SET run = 'by another' WHERE id = 'b'")
            transaction.run("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
            transaction.run("UPDATE jobs SET changed = (SELECT value FROM facts WHERE name = 'changes') WHERE id = 'b'")
        await until(lambda: [record.id for record in queue._attendant.parked.records] == ["c"])
        assert runner.alive["b"] == "by another"
    assert set(runner.alive) == {"b"}
    assert states(store) == {"a": "cancelled", "b": "suspended", "c": "suspended"}


@live
async def test_a_slow_turn_and_recalls_at_any_time(store, queue, devices, runner):
    """No job is ever left on a device that is not open, and no device has two jobs."""
    store.submit([shell(f"e{n}", "-", min_gpus=1, gpus=1, max_gpus=2) for n in range(3)], "me")
    async with running(queue):
        for turn in range(40):
            devices.wanted_back = {name for index, name in enumerate(NAMES) if turn * 7 % 8 >> index & 1}
            with suppress(TimeoutError):
                await asyncio.wait_for(queue.recall(), 5)
            held = [name for names in devices.held.values() for name in names]
            assert not set(held) & devices.wanted_back
            assert len(held) == len(set(held))
            await asyncio.sleep(0.02)
