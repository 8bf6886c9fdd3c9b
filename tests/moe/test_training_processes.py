"""Training with experts over real processes (gloo): the gradients of plain data-parallel training, for any packing,
and on no rank ever tokens and gradients under way at the same time."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from moe.experts import Experts
from moe.gate import Gate
from moe.layer import ExpertLayer
from moe.training import ExpertParallel, Packing, ParallelExperts, Wire, connect
from tests.moe.worlds import make_experts
from tests.serving.parallel.processes import Rank, Ranks

HIDDEN, FFN, EXPERTS, LAYERS, RANKS, STEPS = 16, 12, 4, 3, 4, 2
TOKENS = (70, 33, 0, 50)
"""Of each rank; one has none."""
WAYS = [(1, 1), (1, 3), (2, 2), (4, 2)]
"""Replicas of an expert, micro-batches."""


class Block(nn.Module):
    def __init__(self, experts, router):
        super().__init__()
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.layer = ExpertLayer(router, Gate(2), experts)

    def forward(self, x):
        x = x + torch.tanh(self.first(x))
        return x + self.layer(F.rms_norm(x, (HIDDEN,)))


def whole_model():
    """All experts in one place; some are hardly chosen, one never."""
    random = torch.Generator().manual_seed(7)
    torch.manual_seed(3)
    blocks = []
    for _ in range(LAYERS):
        router = nn.Linear(HIDDEN, EXPERTS)
        with torch.no_grad():
            router.bias.copy_(torch.tensor([1.0, 0.5, 0.0, -50.0]))
        blocks.append(Block(make_experts(EXPERTS, HIDDEN, FFN, random=random), router))
    return nn.Sequential(*blocks)


def batch(rank, step):
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(TOKENS[rank], HIDDEN, generator=random)


def learn(model):
    """One step of plain descent; torch's optimizers take seconds to import in each process."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad


def loss_of(model, x):
    return (model(x) ** 2).sum() / 400


def parallel_model(packing, groups, wire, micro_batches):
    model = whole_model()
    for block in model:
        whole = block.layer.experts
        held = packing.held(dist.get_rank())
        part = Experts(packing.each, HIDDEN, FFN)
        with torch.no_grad():
            part.up.copy_(whole.up[held.start : held.stop])
            part.down.copy_(whole.down[held.start : held.stop])
        block.layer.experts = ParallelExperts(part, packing, groups.row, wire, micro_batches)
    return model


class Watched:
    """A group that notes what is under way, and is slow enough for two things to meet."""

    def __init__(self, group, log):
        self._group, self._log = group, log
        self.rank, self.size = group.rank, group.size

    def __getattr__(self, name):
        operation = getattr(self._group, name)

        def noted(*arguments):
            self._log.append((threading.get_ident(), name, "begins"))
            time.sleep(0.001)
            found = operation(*arguments)
            self._log.append((threading.get_ident(), name, "ends"))
            return found

        return noted


def trained(store: str, rank: Rank) -> list[dict[str, object]]:
    """Of each way to train: the gradients of each step, and what was under way."""
    dist.init_process_group("gloo", init_method=store, rank=rank.layout.rank, world_size=RANKS)
    found = [train(Packing(RANKS, EXPERTS, replicas), micro_batches) for replicas, micro_batches in WAYS]
    dist.destroy_process_group()
    return found


def train(packing, micro_batches):
    groups, log = connect(packing), []
    world, row, column = (Watched(group, log) for group in (groups.world, groups.row, groups.column))
    groups = replace(groups, world=world, row=row, column=column)
    wire = Wire(groups.orders)
    model = parallel_model(packing, groups, wire, micro_batches)
    parallel = ExpertParallel(model, groups, wire, chunk_bytes=1000)
    gradients = []
    for step in range(STEPS):
        parallel.backward(loss_of(model, batch(dist.get_rank(), step)))
        gradients.append({name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()})
        learn(model)
    wire.close()
    return {"gradients": gradients, "log": log}


def plain_gradients():
    """One process, the whole model: the mean over ranks of the gradients of their losses."""
    model = whole_model()
    gradients = []
    for step in range(STEPS):
        model.zero_grad()
        sum(loss_of(model, batch(rank, step)) for rank in range(RANKS)).div(RANKS).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        learn(model)
    return gradients


@pytest.fixture(scope="module")
def heard():
    """What each rank says, [rank][way]."""
    with tempfile.TemporaryDirectory() as place:
        part = partial(trained, f"file://{place}/training")
        with Ranks(part, 1, RANKS, f"file://{place}/group", "gloo") as ranks:
            return ranks.hear_all()


@pytest.mark.parametrize("way", range(len(WAYS)), ids=str)
def test_gradients_are_those_of_plain_data_parallel_training(heard, way):
    expected, (replicas, _) = plain_gradients(), WAYS[way]
    for device, told in enumerate(heard):
        held = Packing(RANKS, EXPERTS, replicas).held(device)
        for wanted, found in zip(expected, told[way]["gradients"], strict=True):
            for name, gradient in found.items():
                whole = wanted[name.replace("experts.experts.", "experts.")]
                assert whole.isfinite().all()
                part = whole[held.start : held.stop] if "experts" in name else whole
                np.testing.assert_allclose(gradient, part, atol=1e-5, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=str)
def test_one_thing_at_a_time_is_under_way(heard, way):
    replicas, _ = WAYS[way]
    for told in heard:
        check_one_at_a_time(told[way]["log"], replicas)


def check_one_at_a_time(log, replicas):
    assert len({thread for thread, _, _ in log}) == 1
    kinds = [(name, what) for _, name, what in log]
    assert all(
        began == (ended[0], "begins") and ended[1] == "ends"
        for began, ended in zip(kinds[::2], kinds[1::2], strict=True)
    )
    names = [name for name, _ in kinds[::2]]
    shared = LAYERS * (HIDDEN**2 + HIDDEN + EXPERTS * HIDDEN + EXPERTS)
    own = LAYERS * replicas * 3 * FFN * HIDDEN if replicas > 1 else 0
    assert names.count("all_reduce") == STEPS * (-(-shared // 250) + -(-own // 250))
    assert ("all_to_all" in names) == (replicas < RANKS)
    if replicas < RANKS:  # gradients go while the backward pass still sends tokens
        assert names.index("all_reduce") < len(names) - 1 - names[::-1].index("all_to_all")
