"""Laws of the pieces, over many small worlds: blocks, layouts, rings with tiny slots, sums in tiny pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.parallel import Alone, Layout, PeerLost
from serving.parallel.header import DTYPES, describe, dtype_and_shape
from serving.parallel.meeting import neighbours
from serving.parallel.shared_memory import _blocks
from tests.serving.parallel.threads import stage, together, two_ends

shapes = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_blocks_cover_a_matrix_once_and_fit(rows, columns, most):
    seen = torch.zeros(rows, columns, dtype=torch.int64)
    for across, along in _blocks(rows, columns, most):
        block = seen[across, along]
        assert 0 < block.numel() <= most
        block += 1
    assert bool((seen == 1).all())


@given(st.integers(1, 8), st.integers(1, 8))
def test_neighbours_are_mutual(tp, pp):
    layouts = [Layout(tp, pp, rank) for rank in range(tp * pp)]
    for layout in layouts:
        assert layout.rank == layout.stage * tp + layout.tp_rank
        for other in neighbours(layout):
            assert layout.rank in neighbours(layouts[other])
        if layout.next is not None:
            assert layouts[layout.next].previous == layout.rank


@pytest.mark.parametrize(("tp", "pp", "rank"), [(0, 1, 0), (1, 0, 0), (2, 2, 4), (2, 2, -1), (1000, 1, 0)])
def test_a_layout_that_cannot_be_is_refused(tp, pp, rank):
    with pytest.raises(InputError):
        Layout(tp, pp, rank)


@given(shapes, st.sampled_from(DTYPES))
def test_a_header_tells_dtype_and_shape(shape, dtype):
    assert dtype_and_shape(describe(torch.zeros(shape, dtype=dtype))) == (dtype, shape)


def test_a_header_refuses_what_it_cannot_tell():
    with pytest.raises(ValueError, match="dimensions"):
        describe(torch.zeros((1,) * 9))
    with pytest.raises(ValueError, match="complex"):
        describe(torch.zeros(1, dtype=torch.complex64))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=12), st.sampled_from([128, 256, 4096]), st.data())
def test_a_channel_is_first_in_first_out(messages, slot_bytes, data):
    """Sends and receives in any order that does not wait; tensors larger than a slot take several."""
    tensors = [torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) for shape, dtype in messages]
    pieces = [max(1, -(-each.numel() * each.itemsize // slot_bytes)) for each in tensors]
    sent = received = held = 0
    with two_ends(4, slot_bytes) as (near, far):
        while received < len(tensors):
            fits = sent < len(tensors) and sum(pieces[received:sent]) + held + pieces[sent] <= 4
            if sent == len(tensors) or (sent > received and not (fits and data.draw(st.booleans()))):
                assert torch.equal(far.receive(), tensors[received])
                held = int(pieces[received] == 1)  # one that was copied from several slots holds none
                received += 1
            elif fits:
                near.send(tensors[sent])
                sent += 1
            else:
                tensors, pieces = tensors[:sent], pieces[:sent]  # more pieces than slots: test_channel's matter


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 4), st.lists(st.tuples(shapes, st.sampled_from(DTYPES[:-1])), min_size=1, max_size=6))
def test_sums_and_rows_in_tiny_pieces(size, messages):
    """Slots of 128 bytes, so that most tensors take several steps; ranks are threads."""

    def part(rank):
        for shape, dtype in messages:
            brought = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            tensor = brought * (1 + rank.rank)
            gathered = rank.all_gather(tensor)
            assert torch.equal(gathered, torch.cat([brought * (1 + peer) for peer in range(size)], -1))
            expected = sum((brought * (1 + peer) for peer in range(1, size)), brought.clone())
            rank.all_reduce(tensor)
            assert torch.equal(tensor, expected)
        return True

    with stage(size, 128) as ranks:
        assert together(ranks, part) == [True] * size


def test_alone_changes_nothing_until_aborted():
    alone, tensor = Alone(), torch.arange(6.0).reshape(2, 3)
    alone.all_reduce(tensor)
    assert torch.equal(alone.all_gather(tensor), torch.arange(6.0).reshape(2, 3))
    gathered = alone.gather(tensor)
    assert gathered is not None
    assert torch.equal(gathered, tensor)
    alone.abort("over")
    with pytest.raises(PeerLost, match="over"):
        alone.all_reduce(tensor)
