"""A worker beside an actor, as its handle tells of it; the actor is a stand-in, and Ray is not needed."""

import asyncio
import signal
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from serving.machines import ray_launcher
from serving.machines.ray_launcher import RayHandle, RayLauncher, Spot, first_line


class Actor:
    """Answers `follow` when told what to say; notes what else it is asked."""

    def __init__(self):
        self.asked, self._waiting = [], None
        self.follow = SimpleNamespace(remote=self._follow)
        for name in ("see_end", "terminate", "kill"):
            setattr(self, name, SimpleNamespace(remote=lambda *given, name=name: self.asked.append((name, *given))))

    def _follow(self):
        self._waiting = Future()
        return SimpleNamespace(future=lambda: self._waiting)

    async def say(self, *lines, exit=None, error=None):
        await asyncio.sleep(0.01)
        if error is not None:
            self._waiting.set_exception(error)
        else:
            self._waiting.set_result((list(lines), exit))
        await asyncio.sleep(0.01)


@pytest.fixture
def heard():
    return []


def follow(scenario, heard):
    async def run():
        actor = Actor()
        handle = RayHandle("g0/1", "n2", 77, actor, lambda *what: heard.append(what))
        return await asyncio.wait_for(scenario(actor, handle), 5)

    return asyncio.run(run())


def test_lines_come_with_their_node_and_the_end_with_its_reason(heard):
    async def scenario(actor, handle):
        await actor.say("one", "two")
        await actor.say("three", exit={"name": "g0/1", "code": 3, "signal": None, "lines": ["three"]})
        return await handle.wait()

    ended = follow(scenario, heard)
    assert heard == [("g0/1", "n2", line) for line in ("one", "two", "three")]
    assert ended.reason == "g0/1: exit code 3: three"


def test_an_actor_that_is_lost_is_a_worker_that_was_killed(heard):
    async def scenario(actor, handle):
        await actor.say(error=RuntimeError("the actor died\nbecause its node did"))
        return await handle.wait()

    ended = follow(scenario, heard)
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert "node n2: the actor died" in ended.reason


@pytest.mark.parametrize("way", ["kill", "terminate"])
def test_a_silent_node_does_not_keep_anybody_waiting(way, heard, monkeypatch):
    monkeypatch.setattr(ray_launcher, "END_S", 0.05)

    async def scenario(actor, handle):
        if way == "kill":
            handle.kill()
        else:
            await handle.terminate(0.01)
        return await handle.wait(), actor.asked

    ended, asked = follow(scenario, heard)
    assert "does not answer" in ended.reason
    assert asked[0] == ("see_end",)
    assert asked[1][0] == way


def test_a_placement_group_that_nobody_waits_for_any_more_is_removed():
    asked, may_answer, removed = threading.Event(), threading.Event(), []

    def placement_group(bundles, **options):
        asked.set()
        may_answer.wait(5)
        return "the group"

    async def scenario():
        util = SimpleNamespace(placement_group=placement_group, remove_placement_group=removed.append)
        launcher = RayLauncher(SimpleNamespace(ray=SimpleNamespace(util=util)))
        placing = asyncio.create_task(launcher.place("g", [Spot(node="n1", resource="CPU")]))
        await asyncio.to_thread(asked.wait, 5)
        placing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await placing
        may_answer.set()
        await asyncio.wait(launcher._endings, timeout=5)

    asyncio.run(scenario())
    assert removed == ["the group"]


def test_the_cause_of_an_error_is_told():
    error = RuntimeError("ray::WorkerHost.prepare() (pid=1)\n  File ...")
    error.cause = OSError("no space left")
    assert first_line(error) == "no space left"
