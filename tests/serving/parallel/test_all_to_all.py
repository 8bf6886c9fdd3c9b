"""Rows from every rank to every other, in any numbers: of shared memory, of gloo, and alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.parallel import Alone, PeerLost
from serving.parallel.header import DTYPES
from tests.serving.parallel.processes import Rank, Ranks
from tests.serving.parallel.threads import stage, together

COUNTS = [[[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 3, 1], [2, 0, 0], [5, 1, 4]], [[0, 900, 0], [1, 0, 70], [0, 0, 0]]]
"""[from, to]"""
WIDTHS: list[tuple[int, ...]] = [(), (7,), (2, 300)]


def sent(source: int, target: int, count: int, width: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What one rank sends to another: every rank can make it."""
    made = torch.Generator().manual_seed(100 * source + target)
    return torch.randint(0, 2, (count, *width), generator=made).to(dtype)


def check(collectives, counts, width, dtype) -> None:
    rank, ranks = collectives.rank, range(collectives.size)
    rows = torch.cat([sent(rank, peer, counts[rank][peer], width, dtype) for peer in ranks])
    received = collectives.all_to_all(rows, [counts[rank][peer] for peer in ranks])
    expected = [sent(peer, rank, counts[peer][rank], width, dtype) for peer in ranks]
    assert received.counts == [len(part) for part in expected]
    assert torch.equal(received.rows, torch.cat(expected))


def everything(rank: Rank) -> int:
    """With sums between, so that slots change hands between operations."""
    tensor, checked = rank.parallel.tensor, 0
    for width in WIDTHS:
        for counts in COUNTS:
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
                check(tensor, counts, width, dtype)
                one = torch.ones(3)
                tensor.all_reduce(one)
                assert one.tolist() == [tensor.size] * 3
                checked += 1
    return checked


@pytest.mark.parametrize(("backend", "size"), [("shared", 2), ("shared", 3), ("gloo", 2), ("gloo", 3)])
def test_rows_arrive_between_processes(backend, size, meeting_place):
    rendezvous = meeting_place if backend == "shared" else f"file://{meeting_place}/store"
    with Ranks(everything, size, 1, rendezvous, backend) as ranks:
        assert ranks.hear_all() == [len(WIDTHS) * len(COUNTS) * 4] * size


@settings(deadline=None, max_examples=30)
@given(st.data(), st.integers(2, 4), st.sampled_from([(), (3,), (2, 5)]), st.sampled_from(DTYPES))
def test_any_counts_in_tiny_pieces(data, size, width, dtype):
    """Slots of 128 bytes, so that most rows take several steps; ranks are threads."""
    count = st.one_of(st.just(0), st.integers(0, 12))
    each = data.draw(
        st.lists(st.lists(count, min_size=size, max_size=size), min_size=size, max_size=size), label="from, to"
    )

    def part(rank):
        check(rank, each, width, dtype)
        return True

    with stage(size, 128) as ranks:
        assert together(ranks, part) == [True] * size


def wait_for_nobody(rank: Rank) -> str:
    if rank.layout.rank == 1:
        return "gone"
    with pytest.raises(PeerLost) as lost:
        rank.parallel.tensor.all_to_all(torch.ones(2, 1), [1, 1])
    return str(lost.value)


def test_who_is_gone_is_not_waited_for(meeting_place):
    with Ranks(wait_for_nobody, 2, 1, meeting_place) as ranks:
        assert ranks.hear_all() == ["rank 1 of the stage is gone", "gone"]


def test_rows_of_another_width_are_refused():
    def part(rank):
        with pytest.raises((ValueError, PeerLost)):
            rank.all_to_all(torch.ones(2, 1 + rank.rank), [1, 1])
        return True

    with stage(2, 128) as ranks:
        assert together(ranks, part) == [True, True]


def test_alone_keeps_its_rows():
    rows = torch.arange(6.0).view(3, 2)
    received = Alone().all_to_all(rows, [3])
    assert received.counts == [3]
    assert torch.equal(received.rows, rows)
