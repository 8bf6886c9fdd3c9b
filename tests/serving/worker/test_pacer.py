"""Paced devices wait before they exchange anything, so that the slowest of a layer is waited for in that layer."""

import time

import pytest
import torch

from placement.files import read_document, write_json
from serving.parallel import Alone
from serving.worker import pacer as pacer_module
from serving.worker.pacer import CoreSpeed, FreeCore, PacedCollectives, Pacer

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


def test_a_core_that_others_slow_down_is_found_out(monkeypatch, tmp_path):
    speed = CoreSpeed(tmp_path / "core.json")
    free_s = speed._free_s
    monkeypatch.setattr(pacer_module, "LOOK_S", 0.0)
    for taken in (2.0, 1.0, 1.1, 0.95, 2.0):
        monkeypatch.setattr(speed, "_product_s", lambda taken=taken: taken * free_s)
        for _ in range(30):
            speed.look()
        assert speed.slowness == pytest.approx(taken, rel=0.01), "shorter ones do not change what a free core takes"


def test_all_workers_of_a_machine_agree_on_what_a_free_core_takes(monkeypatch, tmp_path):
    kept = tmp_path / "cores" / "here.json"
    first = CoreSpeed(kept)._free_s
    monkeypatch.setattr(CoreSpeed, "_product_s", lambda self: 10 * first)
    assert CoreSpeed(kept)._free_s == first
    assert [path.name for path in kept.parent.iterdir()] == ["here.json"]
    for damaged in ("{", '{"version": 1, "product_s": 0}'):
        kept.write_text(damaged)
        assert CoreSpeed(kept)._free_s == read_document(kept, FreeCore).product_s == 10 * first, "it is replaced"
    assert CoreSpeed(kept / "no folder")._free_s == 10 * first


def test_who_is_second_to_keep_it_takes_what_the_first_has_kept(monkeypatch, tmp_path):
    kept = tmp_path / "core.json"
    taken = iter([2.0] * pacer_module.PRODUCTS)

    def product_s(self):
        """Another worker is done in the meantime."""
        if not kept.exists():
            write_json(kept, FreeCore(1.0))
        return next(taken)

    monkeypatch.setattr(CoreSpeed, "_product_s", product_s)
    assert CoreSpeed(kept)._free_s == 1.0


def test_rows_go_to_their_ranks():
    paced = PacedCollectives(Alone(), Pacer(PACE))
    received = paced.all_to_all(torch.arange(4.0), [4])
    assert received.counts == [4]
    assert received.rows.tolist() == [0, 1, 2, 3]
    assert (paced.rank, paced.size) == (0, 1)
