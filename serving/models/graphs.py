"""Decoding steps as recorded graphs: the kernels of a step are launched by one call instead of one by one.

A graph knows addresses, not values: it is recorded once for a number of sequences, over tensors that stay where they
are, and each step's arrays are written into them before it is replayed. A smaller step is filled up by repeating one of
its sequences, which writes into the cache what that one writes. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from serving.engine.step import Array, GenerateStep

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Sequences that a graph is recorded for. Larger steps compute for longer than their launches take."""


@dataclass(frozen=True)
class StepTensors:
    """A step's arrays (engine.step) on the device."""

    inputs: Tensor
    """Token ids [tokens], or activations [tokens, hidden] from the stage before."""
    positions: Tensor
    slots: Tensor
    tables: Tensor
    starts: Tensor
    lens: Tensor


@dataclass(frozen=True)
class Recorded:
    replay: Callable[[], None]
    output: Tensor
    """Where every replay leaves what the work returned."""


Work = Callable[[StepTensors], Tensor]
"""What a step computes: a row for each token."""
Record = Callable[[Callable[[], Tensor]], Recorded]
"""Calls the work to record it; what values it sees then must not matter."""
Recorder = Callable[[], Record]
"""Begins a set of graphs, of which one is replayed at a time."""


@dataclass(frozen=True)
class _Graph:
    tensors: StepTensors
    recorded: Recorded


class Graphs:
    """`width`: blocks of the longest sequence; `activations`: hidden size and dtype where inputs are no token ids."""

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        width: int,
        device: str,
        activations: tuple[int, torch.dtype] | None = None,
    ) -> None:
        self._work, self._recorder = work, recorder
        self._width, self._device, self._activations = width, device, activations
        self._graphs: dict[int, _Graph] = {}

    def record(self) -> None:
        """For every size, before any step: the cache's first place is written to. The largest first, since the smaller
        ones find their memory in its."""
        record = self._recorder()
        for size in reversed(SIZES):
            tensors = self._make(size)
            self._graphs[size] = _Graph(tensors, record(partial(self._work, tensors)))

    @property
    def sizes(self) -> list[int]:
        """Those that are recorded."""
        return sorted(self._graphs)

    def forget(self) -> None:
        """What they were recorded over is about to go."""
        self._graphs.clear()

    def can_run(self, step: GenerateStep) -> bool:
        """Whether every sequence decodes, and a recorded graph holds them."""
        sequences, width = step.block_tables.shape
        most = max(self._graphs, default=0)
        return len(step.tokens) == sequences <= most and bool(width <= self._width)

    def run(self, step: GenerateStep, inputs: Tensor | None) -> Tensor:
        """A row for each sequence, which the next step overwrites."""
        sequences = len(step.tokens)
        graph = self._graphs[next(size for size in SIZES if sequences <= size)]
        fill(graph.tensors, step, inputs)
        graph.recorded.replay()
        return graph.recorded.output[:sequences]

    def _make(self, size: int) -> StepTensors:
        """Of sequences with one token each, all at the cache's first place."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        hidden = self._activations
        return StepTensors(
            inputs=zeros(size) if hidden is None else zeros(size, hidden[0], dtype=hidden[1]),
            positions=zeros(size),
            slots=zeros(size, dtype=torch.int64),
            tables=zeros(size, self._width),
            starts=torch.arange(size + 1, dtype=torch.int32, device=self._device),
            lens=zeros(size) + 1,
        )


def fill(tensors: StepTensors, step: GenerateStep, inputs: Tensor | None) -> None:
    """Write a step into a graph's tensors; the sequence that costs least is repeated until they are full."""
    sequences, size = len(step.tokens), len(tensors.lens)
    shortest = int(step.context_lens.argmin())
    order = np.append(np.arange(sequences), np.full(size - sequences, shortest))

    def put(target: Tensor, array: Array) -> None:
        target.copy_(torch.from_numpy(array[order]))

    if inputs is None:
        put(tensors.inputs, step.tokens)
    else:
        tensors.inputs[:sequences].copy_(inputs)
        tensors.inputs[sequences:] = inputs[shortest]
    put(tensors.positions, step.positions)
    put(tensors.slots, step.slots)
    put(tensors.tables[:, : step.block_tables.shape[1]], step.block_tables)
    put(tensors.lens, step.context_lens)


def cuda_recorder() -> Record:
    """On the GPU, all in one pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    aside = torch.cuda.Stream()

    def record(work: Callable[[], Tensor]) -> Recorded:
        # Called once before: what is compiled or set up at a first call is no part of the graph.
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may go on meanwhile: models are loaded beside the steps of others.
        with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
            output = work()
        return Recorded(graph.replay, output)

    return record
