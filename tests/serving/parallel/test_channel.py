"""Channels between stages: bounded, woken from sleep, ended by a dead peer or by abort()."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from serving.parallel import PeerLost
from tests.serving.parallel.processes import Rank, Ranks
from tests.serving.parallel.threads import two_ends

SOON_S = 5.0


def echo(rank: Rank) -> int:
    """Stage 0 sends, stage 1 answers twice the number; some larger than a slot, some after a pause that sleeps."""
    sizes = [1, 1000, 65_536, 0, 3, 1_500_000, 17, 2_000_000]
    dtypes = [torch.float32, torch.bfloat16, torch.int64]
    for n, count in enumerate(sizes * 3):
        dtype = dtypes[n % 3]
        if rank.parallel.next is not None:
            time.sleep(0.002 * (n % 4))
            rank.parallel.next.send(torch.full((2, count), n, dtype=dtype))
            answer = rank.parallel.next.receive()
            assert answer.shape == (2, count)
            assert answer.dtype == dtype
            assert torch.equal(answer, torch.full((2, count), 2 * n, dtype=dtype))
        if rank.parallel.previous is not None:
            rank.parallel.previous.send(rank.parallel.previous.receive() * 2)
    return len(sizes)


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_what_is_sent_is_received(backend, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(echo, 1, 2, rendezvous, backend) as ranks:
        assert ranks.hear_all() == [8, 8]


def flood(rank: Rank) -> int:
    """Thousands one way, the receiver late by turns: no tensor may change while it is read."""
    for n in range(4000):
        if rank.parallel.next is not None:
            rank.parallel.next.send(torch.full((1 + n % 300,), n, dtype=torch.int32))
        if rank.parallel.previous is not None:
            got = rank.parallel.previous.receive()
            if n % 500 == 0:
                time.sleep(0.003)
            assert got.tolist() == [n] * (1 + n % 300)
    return 4000


def test_a_late_receiver_misses_nothing(meeting_place):
    with Ranks(flood, 1, 2, meeting_place) as ranks:
        assert ranks.hear_all() == [4000, 4000]


def test_a_sender_waits_when_all_slots_are_full():
    with two_ends(slots=4) as (near, far):
        sent = []

        def send_all():
            for n in range(6):
                near.send(torch.tensor([n]))
                sent.append(n)

        sender = threading.Thread(target=send_all)
        sender.start()
        deadline = time.monotonic() + 10
        while len(sent) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.1)
        assert sent == [0, 1, 2, 3]
        first = far.receive()
        time.sleep(0.1)
        assert sent == [0, 1, 2, 3], "the first slot is still being read"
        assert first.item() == 0
        assert [far.receive().item() for _ in range(5)] == [1, 2, 3, 4, 5]
        sender.join(10)
        assert not sender.is_alive()


def test_a_tensor_received_lies_in_shared_memory_and_can_be_written():
    with two_ends() as (near, far):
        near.send(torch.ones(4))
        got = far.receive()
        got += 1
    del near, far
    gc.collect()
    assert got.tolist() == [2, 2, 2, 2], "a tensor outlives its channel"


def test_what_was_sent_before_hanging_up_is_received():
    with two_ends() as (near, far):
        near.send(torch.tensor([1]))
        near.send(torch.tensor([2]))
        near.close()
        assert far.receive().item() == 1
        assert far.receive().item() == 2
        with pytest.raises(PeerLost, match="gone"):
            far.receive()


@pytest.mark.parametrize("full", [False, True])
def test_abort_wakes_who_sleeps_on_either_side(full):
    """A receiver of nothing, or a sender to a full ring; the peer finds the channel ended too."""
    with two_ends() as (near, far):
        for n in range(4 if full else 0):
            near.send(torch.tensor([n]))
        begin = time.monotonic()
        threading.Timer(0.1, near.abort, ["the router gave up"]).start()
        with pytest.raises(PeerLost, match="the router gave up"):
            near.send(torch.tensor([4])) if full else near.receive()
        assert 0.1 <= time.monotonic() - begin < SOON_S
        for _ in range(4 if full else 0):
            far.receive()
        with pytest.raises(PeerLost, match="gone"):
            far.receive()


def test_an_idle_receiver_leaves_the_core_to_others():
    with two_ends() as (near, far):
        spent = []

        def receive():
            begin = time.thread_time()
            far.receive()
            spent.append(time.thread_time() - begin)

        receiver = threading.Thread(target=receive)
        receiver.start()
        time.sleep(0.5)
        near.send(torch.ones(1))
        receiver.join(10)
        assert spent[0] < 0.05


def wait_for_a_dead_stage(rank: Rank) -> tuple[float, str]:
    """Rank 1 dies; rank 0 fills the ring, rank 2 waits for it to send."""
    rank.say("ready")
    if rank.layout.rank == 1:
        time.sleep(600)
    try:
        while True:
            if rank.parallel.next is not None:
                rank.parallel.next.send(torch.ones(10_000))
            if rank.parallel.previous is not None:
                rank.parallel.previous.receive()
    except PeerLost as lost:
        return time.time(), str(lost)


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_a_killed_stage_is_noticed_on_both_sides(backend, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(wait_for_a_dead_stage, 1, 3, rendezvous, backend) as ranks:
        ranks.hear_all()
        time.sleep(0.05)
        killed = time.time()
        ranks.kill(1)
        for rank in (0, 2):
            when, why = ranks.hear(rank)
            assert when - killed < SOON_S
            assert "gone" in why
