"""The leader's main thread and its mail's: what the last stage has made is told while the first computes."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from serving.engine import PassEngine
from serving.engine.scheduler import Limits
from serving.engine.step import PassResult
from serving.parallel.layout import Layout
from serving.worker.book import Held
from serving.worker.device_runner import Worked
from serving.worker.front import FromController, FromMember
from serving.worker.leader import Leader
from serving.worker.member import encode
from serving.worker.messages import Infer, StageDone, Stop

WAIT_S = 10.0
STEP_S = 0.25


class FirstStage:
    """Computes a step until it is let go; the last stage, elsewhere, makes the results."""

    def __init__(self):
        self.computes, self.may_go = queue.SimpleQueue(), threading.Semaphore(0)

    def run(self, step):
        self.computes.put(step)
        assert self.may_go.acquire(timeout=WAIT_S)
        return Worked(None, STEP_S)


@pytest.fixture
def world():
    told = queue.SimpleQueue()
    front = SimpleNamespace(
        mail=SimpleNamespace(inbox=queue.SimpleQueue()),
        report=lambda message, at_once=False: told.put(message),
        command=lambda message: None,
        fail=lambda reason: None,
    )
    stage = FirstStage()
    leader = Leader(SimpleNamespace(group="g", layout=Layout(tp=1, pp=3, rank=0)), front, stage)
    engine = PassEngine("m", 100, 16, 2, stages=2, limits=Limits(64, 1))
    leader._book.expect("m")
    leader._book.add("m", Held(engine, engine.begin))
    thread = threading.Thread(target=leader.run)
    thread.start()
    yield SimpleNamespace(front=front, stage=stage, told=told, inbox=front.mail.inbox)
    front.mail.inbox.put(FromController(Stop()))
    for _ in range(4):
        stage.may_go.release()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def made(step):
    result = PassResult(step.number, "m", np.zeros((1, 2), np.float32))
    return StageDone("m", 2, 3 * STEP_S, encode(result))


def test_a_result_is_told_while_the_first_stage_computes_the_next_step(world):
    for request in ("a", "b"):
        world.inbox.put(FromController(Infer(request, "m", [[1, 2, 3]])))
    first = world.stage.computes.get(timeout=WAIT_S)
    world.stage.may_go.release()
    second = world.stage.computes.get(timeout=WAIT_S)
    assert world.front.on_stage(made(first))  # the stage still computes
    assert [one.request for one in world.told.get(timeout=WAIT_S).outputs] == ["a"]
    assert world.front.on_stage(made(second))
    assert [one.request for one in world.told.get(timeout=WAIT_S).outputs] == ["b"]


def test_every_stage_says_how_long_it_computed(world):
    world.inbox.put(FromController(Infer("a", "m", [[1, 2, 3]])))
    step = world.stage.computes.get(timeout=WAIT_S)
    world.inbox.put(FromMember(1, StageDone("m", 1, 2 * STEP_S)))
    world.inbox.put(FromMember(2, made(step)))
    world.stage.may_go.release()
    assert world.told.get(timeout=WAIT_S).state.busy_s == (STEP_S, 2 * STEP_S, 3 * STEP_S)


def test_a_result_waits_its_turn_behind_what_came_before(world):
    world.inbox.put(FromController(Infer("a", "m", [[1, 2, 3]])))
    step = world.stage.computes.get(timeout=WAIT_S)
    world.inbox.put(FromController(Infer("b", "m", [[1, 2, 3]])))
    assert not world.front.on_stage(made(step)), "something has come before it"
    world.stage.may_go.release()
    world.stage.computes.get(timeout=WAIT_S)
    assert world.front.on_stage(made(step))
    assert [one.request for one in world.told.get(timeout=WAIT_S).outputs] == ["a"]
