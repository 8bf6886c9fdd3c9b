"""Sums that do not depend on who adds what, and samples that do not depend on who trains them."""

import threading

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.parallel import Layout, connect
from training.elastic.exchange import any_of, hand_state, sum_parts, take_state
from training.elastic.samples import Samples, parts_of
from training.elastic.tree_sum import Block, TreeSum, blocks_of


def values(parts):
    return torch.randn(parts, 7, generator=torch.Generator().manual_seed(parts)) * 1000


def blocks(parts, numbers):
    total = TreeSum()
    for part in numbers:
        total.add(Block(part, 1), values(parts)[part].clone())
    return total.sums


@given(st.integers(1, 40), st.integers(1, 12))
def test_any_number_of_workers_adds_up_to_the_same_bits(parts, workers):
    alone = TreeSum()
    for part in range(parts):
        alone.add(Block(part, 1), values(parts)[part].clone())
    together = TreeSum()
    for rank in range(workers):
        own = parts_of(rank, workers, parts)
        for block, value in zip(blocks_of(own), blocks(parts, own), strict=True):
            together.add(block, value)
    whole = alone.total()
    assert torch.equal(together.total(), whole)
    assert torch.allclose(whole, values(parts).sum(0), rtol=1e-3, atol=0.1)


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_part_has_one_worker(parts, workers):
    owned = [part for rank in range(workers) for part in parts_of(rank, workers, parts)]
    assert owned == list(range(parts))
    assert max(len(parts_of(rank, workers, parts)) for rank in range(workers)) == -(-parts // workers)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 2**62))
def test_every_sample_comes_once_before_any_comes_again(count, batch, seed):
    steps = 2 * count // batch + 2
    drawn = np.concatenate([Samples(count, batch, seed).of_step(step) for step in range(steps)])
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_workers_exchange_sums_and_state(tmp_path):
    parts, workers = 5, 3
    found = {}

    def work(rank):
        group = connect(Layout(workers, 1, rank), tmp_path).tensor
        total = sum_parts(group, blocks(parts, parts_of(rank, workers, parts)), parts, 7)
        told = any_of(group, rank == 2), any_of(group, False)
        state = hand_state(group, b"state of one", (0, 2)) if rank == 1 else take_state(group)
        found[rank] = total, told, state
        group.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone = TreeSum()
    for part in range(parts):
        alone.add(Block(part, 1), values(parts)[part].clone())
    whole = alone.total()
    assert all(torch.equal(found[rank][0], whole) for rank in range(workers))
    assert [found[rank][1] for rank in range(workers)] == [(True, False)] * workers
    assert [found[rank][2] for rank in range(workers)] == [b"state of one", None, b"state of one"]
