"""Training steps with experts over processes joined by an EMULATED slow link: ours against plain overlap.

    python -m benchmarks.moe_training [--tiny] [--rounds N]

Real processes, gloo, autograd and computation; only the link is emulated (benchmarks/harness/slow_link.py): every
rank's bytes take the time that they would take on a link of the speed given, shared evenly by what is under way.
`plain` is what data-parallel training does: a layer's gradients are summed as soon as they are there, beside the
tokens of the next layer, and experts wait for all their tokens. `yielding` sums them in small chunks when no tokens
want the link; `micro-batches` also computes one part of the tokens while another travels; `packed`, where
`choose_packing` says so from times measured before, also keeps more experts on a device. `ours` is the last of them.
All take turns; a figure is in seconds, the median over rounds with its quartiles; `seconds_without_link` is a step on
a link that takes no time. Prints one JSON line; `ratio` is plain over ours with two processes and the slower link.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import emit, note
from benchmarks.harness.ranks import run_ranks
from benchmarks.harness.slow_link import PlainCarrier, SlowGroup, SlowLink
from moe.experts import Experts
from moe.gate import Gate
from moe.layer import ExpertLayer
from moe.training import Costs, ExpertParallel, Packing, ParallelExperts, Wire, choose_packing, connect

dist: Any = torch.distributed
LIMIT_S = 280
HEADS, SEQUENCE = 8, 128
LEARNING_RATE = 1e-4
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
"""Else whoever has no micro-batches pays for fresh pages in every step."""
Samples = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    processes: int
    experts: int
    ffn: int
    bytes_per_s: float
    tokens: int = 1024
    layers: int = 4
    hidden: int = 256
    top_k: int = 2
    micro_batches: int = 4
    chunk_bytes: int = 1 << 17

    @property
    def layer_bytes(self) -> int:
        """Of what is not experts: attention and router."""
        return 4 * (4 * self.hidden**2 + self.hidden * self.experts)

    @property
    def expert_bytes(self) -> int:
        return 4 * 3 * self.hidden * self.ffn


CELLS = {
    "2 processes, 20 MB/s": Cell(2, 8, 1024, 20e6, tokens=4096),
    "2 processes, 30 MB/s": Cell(2, 8, 1024, 30e6, tokens=4096),
    "2 processes, few tokens, 20 MB/s": Cell(2, 8, 1024, 20e6),
    "4 processes, small experts, 30 MB/s": Cell(4, 4, 256, 30e6, micro_batches=2, chunk_bytes=1 << 19),
}
TINY = {"2 processes, 20 MB/s": Cell(2, 4, 32, 20e6, tokens=128, layers=2, hidden=32, micro_batches=2)}
HEADLINE = "2 processes, 20 MB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    cells, rounds = (TINY, 2) if given.tiny else (CELLS, given.rounds)
    if given.rank is not None:
        samples = run_rank(given.rank, given.place, cells[given.cell], rounds)
        if given.rank == 0:
            emit(samples)
        return
    found = {}
    for name, cell in cells.items():
        found[name] = summary(start(name, cell, sys.argv[1:]), cell)
        note(f"{name}: {found[name]}")
    emit(
        {
            "benchmark": "moe_training",
            "link": "emulated",
            "ratio": found[HEADLINE]["ratio"],
            "ratio_means": f"step of plain overlap / ours, {HEADLINE}, EMULATED link (goal 1.3)",
            "cells": found,
            "rounds": rounds,
        }
    )


def start(name: str, cell: Cell, arguments: list[str]) -> Samples:
    told = [*arguments, "--cell", name]
    samples: Samples = run_ranks("benchmarks.moe_training", told, cell.processes, LIMIT_S, KEEP_MEMORY)
    return samples


def summary(samples: Samples, cell: Cell) -> dict[str, Any]:
    seconds: dict[str, list[float]] = samples["seconds"]
    ours = list(seconds)[-1]
    ratios = [plain / best for plain, best in zip(seconds["plain"], seconds[ours], strict=True)]
    return {
        "ratio": round(quartiles(ratios)[1], 3),
        "ratio_quartiles": [round(value, 3) for value in quartiles(ratios)],
        "seconds": {name: [round(value, 4) for value in quartiles(each)] for name, each in seconds.items()},
        "seconds_without_link": {name: round(quartiles(each)[1], 4) for name, each in samples["free_s"].items()},
        "link_busy_s": samples["busy_s"],
        "replicas_of_an_expert": samples["replicas"],
        "cell": asdict(cell),
    }


def quartiles(values: list[float]) -> list[float]:
    return [float(torch.tensor(values).quantile(q)) for q in (0.25, 0.5, 0.75)]


def run_rank(rank: int, place: Path, cell: Cell, rounds: int) -> Samples:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=cell.processes)
    packing = choose(cell)
    plain = Packing(cell.processes, cell.experts)
    runs = {
        "plain": Run(cell, plain, is_plain=True, micro_batches=1, chunk_bytes=cell.layer_bytes),
        "yielding": Run(cell, plain, is_plain=False, micro_batches=1, chunk_bytes=cell.chunk_bytes),
        "micro-batches": Run(cell, plain, False, cell.micro_batches, cell.chunk_bytes),
    }
    if packing != plain:
        runs["packed"] = Run(cell, packing, False, cell.micro_batches, cell.chunk_bytes)
    first = {name: run.step() for name, run in runs.items()}
    for gradient in first.values():
        torch.testing.assert_close(gradient, first["plain"], atol=1e-6, rtol=1e-3)
    seconds = take_turns(runs, rounds)
    busy = {name: {kind: round(s, 4) for kind, s in run.link.busy_s.items()} for name, run in runs.items()}
    for run in runs.values():
        run.link.bytes_per_s = math.inf
    free = take_turns(runs, rounds)
    for run in runs.values():
        run.carrier.close()
    dist.barrier()
    dist.destroy_process_group()
    return {"seconds": seconds, "free_s": free, "busy_s": busy, "replicas": packing.replicas}


def take_turns(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            dist.barrier()
            run.link.busy_s.clear()
            begin = time.perf_counter()
            run.step()
            dist.barrier()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


class Run:
    """One way to train, with a model of its own; all begin with the same weights."""

    def __init__(self, cell: Cell, packing: Packing, is_plain: bool, micro_batches: int, chunk_bytes: int) -> None:
        groups = connect(packing)
        self.link = SlowLink(cell.bytes_per_s)
        world, row, column = (SlowGroup(group, self.link) for group in (groups.world, groups.row, groups.column))
        groups = replace(groups, world=world, row=row, column=column)
        self.carrier = PlainCarrier() if is_plain else Wire(groups.orders)
        held = packing.held(dist.get_rank())
        blocks = []
        for layer in range(cell.layers):
            experts = made_experts(cell, layer, held)
            blocks.append(Block(cell, layer, ParallelExperts(experts, packing, row, self.carrier, micro_batches)))
        self.model, self._router = nn.Sequential(*blocks), blocks[0].router
        self._parallel = ExpertParallel(self.model, groups, self.carrier, chunk_bytes)
        random = torch.Generator().manual_seed(dist.get_rank())
        self._x = torch.randn(cell.tokens, cell.hidden, generator=random)

    def step(self) -> Tensor:
        """The gradient of the first layer's router."""
        self._parallel.backward(self.model(self._x).square().mean())
        with torch.no_grad():  # plain descent
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
        gradient = self._router.weight.grad
        assert gradient is not None
        return gradient.clone()


class Block(nn.Module):
    """Attention and experts."""

    def __init__(self, cell: Cell, layer: int, experts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(layer)
        self.qkv = nn.Linear(cell.hidden, 3 * cell.hidden, bias=False)
        self.output = nn.Linear(cell.hidden, cell.hidden, bias=False)
        self.router = nn.Linear(cell.hidden, cell.experts, bias=False)
        self.layer = ExpertLayer(self.router, Gate(cell.top_k), experts)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(F.rms_norm(x, x.shape[-1:]))
        y: Tensor = x + self.layer(F.rms_norm(x, x.shape[-1:]))
        return y

    def attend(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).view(-1, min(SEQUENCE, len(x)), 3, HEADS, x.shape[1] // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        y: Tensor = self.output(seen.transpose(1, 2).reshape(x.shape))
        return y


def made_experts(cell: Cell, layer: int, held: range) -> Experts:
    """The same expert wherever it lives."""
    experts = Experts(len(held), cell.hidden, cell.ffn)
    with torch.no_grad():
        for slot, expert in enumerate(held):
            random = torch.Generator().manual_seed(1000 * layer + expert)
            for weight in (experts.up, experts.down):
                weight[slot].normal_(0.0, weight.shape[-1] ** -0.5, generator=random)
    return experts


def choose(cell: Cell) -> Packing:
    """By times measured without any exchange; rank 0's word counts."""
    held = range(cell.experts // cell.processes)
    experts, block = made_experts(cell, 0, held), Block(cell, 0, nn.Identity())
    x = torch.randn(cell.tokens, cell.hidden, requires_grad=True)
    places, weights = torch.randint(0, len(held), (cell.tokens, cell.top_k)), torch.ones(cell.tokens, cell.top_k)
    dist.barrier()
    costs = Costs(
        tokens=cell.tokens,
        top_k=cell.top_k,
        row_bytes=4 * (cell.hidden + 2 * cell.top_k),
        expert_bytes=cell.expert_bytes,
        compute_s=least_s(lambda: experts(x, places, weights)),
        other_s=least_s(lambda: block.attend(x)),
        bytes_per_s=cell.bytes_per_s,
        other_bytes=cell.layer_bytes,
        micro_batches=cell.micro_batches,
    )
    said = [choose_packing(cell.processes, cell.experts, costs).replicas]
    dist.broadcast_object_list(said)
    return Packing(cell.processes, cell.experts, said[0])


def least_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    main()
