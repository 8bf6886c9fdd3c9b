"""Collectives between real processes, of shared memory and of gloo: right, in step, never hanging on a dead peer."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
import torch

from serving.parallel import PeerLost
from tests.serving.parallel.processes import Rank, Ranks

SHAPES = [(1,), (7,), (3, 5), (1, 1024), (2, 3, 17), (0, 4), (257, 1023), (64, 1024), (5, 70_001)]
SOON_S = 5.0
"""Far more than the milliseconds it takes, on a machine with other things to do."""


def everything(rank: Rank) -> int:
    """Each operation on each shape and dtype, against torch's own sum and cat."""
    tensor = rank.parallel.tensor
    checked = 0
    for seed, shape in enumerate(SHAPES):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.float64):
            each = [rank.tensor(peer, shape, dtype, seed) for peer in range(tensor.size)]
            mine = each[tensor.rank]
            summed, gathered = sum(each[1:], each[0].clone()), torch.cat(each, -1)
            reduced = mine.clone()
            tensor.all_reduce(reduced)
            assert torch.equal(reduced, summed), (shape, dtype)
            assert torch.equal(tensor.all_gather(mine), gathered), (shape, dtype)
            first = tensor.gather(mine)
            assert (first is None) == (tensor.rank > 0)
            assert first is None or torch.equal(first, gathered), (shape, dtype)
            checked += 1
    turned = rank.tensor(tensor.rank, (33, 21), torch.float32, 99).T
    tensor.all_reduce(turned)
    assert torch.equal(turned, sum(rank.tensor(peer, (33, 21), torch.float32, 99).T for peer in range(tensor.size)))
    return checked


@pytest.mark.parametrize(("backend", "size"), [("shared", 2), ("shared", 4), ("shared", 3), ("gloo", 2)])
def test_every_operation_is_torchs(backend, size, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(everything, size, 1, rendezvous, backend) as ranks:
        assert ranks.hear_all() == [len(SHAPES) * 5] * size


def many(rank: Rank, rounds: int) -> int:
    """Back to back, in sizes that change, with ranks that are late by turns: a race would give a wrong sum."""
    tensor = rank.parallel.tensor
    same, own = random.Random(1), random.Random(rank.layout.rank)
    for n in range(rounds):
        count = same.choice([1, 31, 1024, 4096, 10_000, 70_000])
        mine = torch.full((count,), float(n % 1000 + tensor.rank))
        if own.random() < 0.02:
            time.sleep(own.random() * 0.002)
        expected = tensor.size * (n % 1000) + tensor.size * (tensor.size - 1) // 2
        if same.random() < 0.1:
            first = tensor.gather(mine[:64])
            assert first is None or float(first.sum()) == expected * min(count, 64)
        tensor.all_reduce(mine)
        assert float(mine.min()) == float(mine.max()) == expected, n
    return rounds


def many_of_two(rank: Rank) -> int:
    return many(rank, 5000)


def many_of_four(rank: Rank) -> int:
    return many(rank, 1000)


@pytest.mark.parametrize(("part", "size", "rounds"), [(many_of_two, 2, 5000), (many_of_four, 4, 1000)])
def test_thousands_in_a_row_stay_right(part, size, rounds, meeting_place):
    with Ranks(part, size, 1, meeting_place) as ranks:
        assert ranks.hear_all() == [rounds] * size


def bits(rank: Rank) -> list[bytes]:
    torch.manual_seed(rank.layout.rank)
    results = []
    for count in (100, 4097, 300_000):
        mine = torch.randn(count) * 1e3
        rank.parallel.tensor.all_reduce(mine)
        results.append(mine.numpy().tobytes())
    return results


def test_every_rank_gets_the_same_bits(meeting_place):
    with Ranks(bits, 4, 1, meeting_place) as ranks:
        first, *others = ranks.hear_all()
        assert all(other == first for other in others)


def wait_for_a_dead_peer(rank: Rank) -> tuple[float, str]:
    rank.parallel.tensor.all_reduce(torch.ones(8))
    rank.say(os.getpid())
    if rank.layout.rank == 1:
        time.sleep(600)
    try:
        rank.parallel.tensor.all_reduce(torch.ones(8))
    except PeerLost as lost:
        return time.time(), str(lost)
    raise AssertionError("the sum of a dead rank")


@pytest.mark.parametrize(("backend", "size"), [("shared", 2), ("shared", 4), ("gloo", 2)])
def test_a_killed_peer_is_noticed(backend, size, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(wait_for_a_dead_peer, size, 1, rendezvous, backend) as ranks:
        ranks.hear_all()
        time.sleep(0.05)  # the others wait, some of them asleep
        killed = time.time()
        ranks.kill(1)
        for rank in set(range(size)) - {1}:
            when, why = ranks.hear(rank)
            assert when - killed < SOON_S
            assert "gone" in why or "gave up" in why


def give_up(rank: Rank) -> tuple[float, str]:
    """Rank 0 waits for rank 1, which is alive, until another of its threads gives up."""
    tensor = rank.parallel.tensor
    tensor.all_reduce(torch.ones(8))
    if rank.layout.rank == 1:
        rank.say("idle")
        time.sleep(600)
    begin = time.monotonic()
    threading.Timer(0.2, rank.parallel.abort, ["the leader hung up"]).start()
    with pytest.raises(PeerLost, match="the leader hung up"):
        tensor.gather(torch.ones(8))
    waited = time.monotonic() - begin
    with pytest.raises(PeerLost, match="the leader hung up") as later:
        tensor.all_reduce(torch.ones(8))
    return waited, str(later.value)


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_abort_ends_a_wait(backend, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(give_up, 2, 1, rendezvous, backend) as ranks:
        waited, why = ranks.hear(0)
        assert 0.2 <= waited < 0.2 + SOON_S
        assert why == "the leader hung up"


def give_up_and_leave(rank: Rank) -> str:
    if rank.layout.rank == 0:
        give_up(rank)
        return "left"
    rank.parallel.tensor.all_reduce(torch.ones(8))
    time.sleep(1)
    return "left"


def test_a_process_exits_cleanly_after_a_gloo_operation_that_never_ended(meeting_place):
    with Ranks(give_up_and_leave, 2, 1, f"file://{meeting_place}/store", "gloo") as ranks:
        assert ranks.hear_all() == ["left", "left"]
        assert ranks.exit_codes() == [0, 0]


def disagree(rank: Rank) -> str:
    try:
        rank.parallel.tensor.all_reduce(torch.ones(8 + rank.layout.rank))
    except (ValueError, PeerLost) as error:
        return str(error)
    raise AssertionError("summed tensors of different size")


def test_ranks_that_disagree_are_told(meeting_place):
    with Ranks(disagree, 2, 1, meeting_place) as ranks:
        for said in ranks.hear_all():
            assert "different" in said or "gave up" in said
