"""The training side without processes: who goes first on the wire, what breaks it, and how experts are packed."""

from __future__ import annotations

import queue
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.training import Costs, Packing, Stream, Wire, WireBroken, choose_packing
from moe.training.packing import layer_s, travelling
from placement.errors import InputError


class Board:
    """Rank 0's word, between threads."""

    def __init__(self, heard=None):
        self.leads = heard is None
        self.told = queue.Queue()
        self.heard = heard

    def tell(self, number):
        self.told.put(number)

    def hear(self):
        return self.heard.told.get(timeout=20)


def test_tokens_go_before_gradients_that_came_first():
    began, go_on, done = threading.Event(), threading.Event(), []

    def first():
        began.set()
        assert go_on.wait(20)
        done.append("first chunk")

    wire = Wire(Board())
    wire.submit(Stream.GRADIENTS, first)
    assert began.wait(20)
    for stream, name in (
        (Stream.EXPERT_GRADIENTS, "experts"),
        (Stream.GRADIENTS, "second chunk"),
        (Stream.TOKENS, "tokens"),
    ):
        wire.submit(stream, lambda name=name: done.append(name))
    go_on.set()
    wire.close()
    assert done == ["first chunk", "tokens", "second chunk", "experts"]


def test_others_follow_the_order_of_the_first():
    """The follower has everything at once, in another order; the leader has tokens last."""
    leader_board = Board()
    leader, done = Wire(leader_board), []
    leader.submit(Stream.GRADIENTS, lambda: None).wait()
    leader.submit(Stream.TOKENS, lambda: None).wait()
    leader.submit(Stream.GRADIENTS, lambda: None).wait()
    leader.close()
    follower = Wire(Board(leader_board))
    follower.submit(Stream.TOKENS, lambda: done.append("tokens"))
    for name in ("a", "b"):
        follower.submit(Stream.GRADIENTS, lambda name=name: done.append(name))
    follower.close()
    assert done == ["a", "tokens", "b"]


def test_who_waits_hears_of_a_failure():
    began, go_on = threading.Event(), threading.Event()

    def fails():
        began.set()
        assert go_on.wait(20)
        raise RuntimeError("peer gone")

    wire = Wire(Board())
    running = wire.submit(Stream.TOKENS, fails)
    assert began.wait(20)
    waiting = wire.submit(Stream.GRADIENTS, lambda: None)
    go_on.set()
    for ticket in (running, waiting, wire.submit(Stream.TOKENS, lambda: None)):
        with pytest.raises(WireBroken, match="peer gone"):
            ticket.wait()
    wire.close()


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_every_row_holds_every_expert_and_columns_hold_the_same(row, replicas, each):
    packing = Packing(row * replicas, row * each, replicas)
    for devices in packing.rows():
        assert sorted(expert for device in devices for expert in packing.held(device)) == list(range(packing.experts))
    for devices in packing.columns():
        assert len({packing.held(device) for device in devices}) == 1
        assert len(devices) == replicas


def costs(**changes):
    usual = {"tokens": 1000, "top_k": 2, "row_bytes": 1000, "expert_bytes": 10**6, "compute_s": 0.01, "other_s": 0.005}
    return Costs(**usual | {"bytes_per_s": 1e8} | changes)


def test_packing_pays_while_gradients_hide():
    assert choose_packing(4, 4, costs(expert_bytes=10**7)).replicas == 1
    assert choose_packing(4, 4, costs(expert_bytes=10**4)).replicas == 4
    assert choose_packing(4, 4, costs(expert_bytes=10**4, memory_bytes=2 * 10**4)).replicas == 2
    assert choose_packing(4, 4, costs(expert_bytes=10**7, other_s=1.0)).replicas == 4
    assert choose_packing(4, 4, costs(expert_bytes=10**7, other_s=1.0, other_bytes=2 * 10**8)).replicas == 1
    with pytest.raises(InputError, match="do not fit"):
        choose_packing(4, 4, costs(memory_bytes=1))
    with pytest.raises(InputError, match="must divide"):
        Packing(4, 6)


def test_what_packing_costs_by_hand():
    one, two = Packing(4, 4, 1), Packing(4, 4, 2)
    assert travelling(one, costs()) == pytest.approx(1500)  # of 3 others, each has one of two in 4: half the tokens
    assert travelling(two, costs()) == pytest.approx(1000 * 5 / 6)  # all but those with both experts at home
    assert travelling(Packing(4, 4, 4), costs()) == 0
    # There and back takes 30 ms, longer than the experts' 10 and 20 ms, of which half shows; 5 and 10 ms beside.
    assert layer_s(one, costs()) == pytest.approx(0.005 + 0.035 + 0.01 + 0.04)
    # With two replicas 16.7 ms. Gradients of 2 MB take 20 ms: 10 + 3.3 hide where the backward pass computes.
    assert layer_s(two, costs()) == pytest.approx(0.005 + 0.05 / 3 + 0.005 + 0.01 + 0.02 + 0.025 / 3 + 0.02 - 0.04 / 3)
