"""The engine of one-pass models, without a device."""

from serving.engine import PassEngine
from serving.engine.one_pass import ROOM
from serving.engine.scheduler import Limits


def test_batches_wait_between_stages_that_take_unlike_times():
    """A first stage that is free takes the next: with a batch a stage at most it stood still behind a large one."""
    engine = PassEngine("m", 100, 16, 2, stages=2, limits=Limits(64, 1))
    for number in range(2 * ROOM + 1):
        engine.submit(str(number), [[1, 2]])
    assert [engine.begin() is not None for _ in range(2 * ROOM + 1)] == [True] * 2 * ROOM + [False]
    assert (engine.running, engine.waiting) == (2 * ROOM, 1)
