"""Paced devices wait before they exchange anything, so that the slowest of a layer is waited for in that layer."""

import time

import pytest
import torch

from serving.parallel import Alone
from serving.worker import pacer as pacer_module
from serving.worker.pacer import CoreSpeed, PacedCollectives, Pacer

PACE, MOST_NOISE = 5.0, 3.0


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Slow(Alone):
    """Exchanges that wait for others, and say when they began."""

    def all_reduce(self, tensor):
        self.began_s = time.perf_counter()
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "gather"])
def test_what_was_computed_takes_its_time_before_an_exchange_and_the_exchange_does_not(name):
    pacer = Pacer(PACE)
    paced = PacedCollectives(Alone(), pacer)
    pacer.begin()
    began = time.perf_counter()
    compute(0.01)
    getattr(paced, name)(torch.ones(3))
    assert time.perf_counter() - began >= PACE * 0.01 / MOST_NOISE


def test_waiting_for_others_is_not_slowed_down():
    pacer, slow = Pacer(PACE), Slow()
    paced = PacedCollectives(slow, pacer)
    pacer.begin()
    began = time.perf_counter()
    compute(0.01)
    paced.all_reduce(torch.ones(3))
    assert slow.began_s - began >= PACE * 0.01 / MOST_NOISE
    pauses = []
    for _ in range(8):  # others may have the core for a while
        exchanged = time.perf_counter()
        pacer.keep()
        pauses.append(time.perf_counter() - exchanged)
        pacer.begin()
    assert min(pauses) < 0.03, "nothing was computed since"


def test_a_core_that_others_slow_down_is_found_out(monkeypatch):
    speed = CoreSpeed()
    least_s = speed._least_s
    monkeypatch.setattr(pacer_module, "LOOK_S", 0.0)
    for taken, expected in ((2.0, 2.0), (1.0, 1.0), (1.1, 1.1), (0.95, 1.0), (1.9, 2.0), (0.5, 1.0), (1.0, 2.0)):
        monkeypatch.setattr(speed, "_product_s", lambda taken=taken: taken * least_s)
        for _ in range(30):
            speed.look()
        assert speed.slowness == pytest.approx(expected, rel=0.01)


def test_rows_go_to_their_ranks():
    paced = PacedCollectives(Alone(), Pacer(PACE))
    received = paced.all_to_all(torch.arange(4.0), [4])
    assert received.counts == [4]
    assert received.rows.tolist() == [0, 1, 2, 3]
    assert (paced.rank, paced.size) == (0, 1)
