"""One stage's shard, alone on its device (or devices, where it is split by tensor), and how long its steps take.

A step is timed as a worker runs it: the first stage's device also is the leader's, so that scheduling and reporting
count there; later stages decode the step they are sent. Activations are random, in the place of another stage's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from placement.costs.layer_cost import workspace_bytes
from serving.engine import Generator, PassEngine
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.step import GenerateResult, GenerateStep, PassResult, Result, Step
from serving.models import ModelConfig, Shard, make_shard, read_config
from serving.models.graphs import SIZES
from serving.models.linear import Linear, Precision
from serving.models.load import compute_dtype, make_model
from serving.models.runner import GenerateRunner, make_runner
from serving.parallel import Parallel
from serving.profiler.messages import Loaded, LoadStage
from serving.profiler.points import STEP_TOKENS, Point, StepPoint
from serving.profiler.scene import MODEL, stage_batch, stage_generator
from serving.worker.device_runner import cache_block_bytes, check_precision
from serving.worker.member import decode_step, encode
from serving.worker.messages import ModelState, Outputs

MOST_OUTPUTS = 256
"""Tokens of a step after which one is sampled."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class StagePlan:
    """A shard before it is read: what it will take of its device."""

    path: Path
    config: ModelConfig
    shard: Shard
    precision: Precision
    device: str
    """torch's name for it."""
    dtype: torch.dtype
    blocks: int
    loaded: Loaded
    graphs: bool = False


def plan_stage(order: LoadStage, rank: int, device: str) -> StagePlan:
    """With as much cache as the steps need and the memory leaves."""
    path = Path(order.path)
    config = read_config(path)
    shard = make_shard(config.sizes, order.tp, order.pp, order.stage * order.tp + rank)
    precision = check_precision(order.precision)
    dtype = compute_dtype(precision, device)
    weights, workspace = (
        weight_bytes(config, shard, precision, dtype),
        _workspace_bytes(config, shard, order.most_tokens, order.graphs),
    )
    left, blocks, kv_bytes = order.memory_bytes - weights - workspace, 0, 0
    fits = left >= 0
    if config.task == "generate":
        each = cache_block_bytes(config, order.tp, len(shard.layers), dtype.itemsize, BLOCK_TOKENS)
        blocks = max(min(left // each, -(-order.most_tokens // BLOCK_TOKENS)), 0)
        kv_bytes = each // BLOCK_TOKENS
        fits = blocks > 0
    loaded = Loaded(fits, weights, workspace, kv_bytes, blocks * BLOCK_TOKENS)
    return StagePlan(path, config, shard, precision, device, dtype, blocks, loaded, order.graphs)


class Stage:
    """A loaded shard."""

    def __init__(self, plan: StagePlan, parallel: Parallel) -> None:
        self.plan, self.shard = plan, plan.shard
        self._parallel = parallel
        self._runner = make_runner(
            plan.path,
            plan.config,
            plan.shard,
            blocks=plan.blocks,
            tensor=parallel.tensor,
            device=plan.device,
            precision=plan.precision,
            graphs=plan.graphs,
        )
        self._runner.warm()
        if isinstance(self._runner, GenerateRunner) and self._runner._cache is not None:
            self._runner._cache.normal_()  # fresh memory is one page of zeros, which no real step would read
        self._random = np.random.default_rng(0)
        self._activations = torch.zeros(0)
        self._clock = _clock(plan.device)

    def prepare(self, point: Point) -> tuple[Generator | PassEngine, Step | None]:
        """Not timed. In later stages also the step itself: the leader has made it elsewhere."""
        engine: Generator | PassEngine
        if isinstance(point, StepPoint):
            engine = stage_generator(self.plan.config, self.plan.blocks, point, self._random)
        else:
            engine = stage_batch(self.plan.config, point, self._random)
        return engine, None if self.shard.is_first else _begin(engine)

    def time(self, engine: Generator | PassEngine, step: Step | None, send: Callable[[bytes], None]) -> float:
        """Seconds of one step; `send` gets it for the other devices of the stage, and of the group."""
        if step is not None:
            data = encode(step)
            send(data)
            self.meet()
            began = self._clock()
            result = self.run(decode_step(data))
            if result is not None:
                encode(result)
            return self._clock() - began
        self.meet()
        began = self._clock()
        step = _begin(engine)
        if self.shard.tp * self.shard.pp > 1:
            send(encode(step))
        result = self.run(step) or _made_up(step, engine)
        outputs = engine.complete(result)
        _encoder.encode(Outputs(MODEL, outputs, ModelState(engine.running, engine.waiting)))
        return self._clock() - began

    def run(self, step: Step) -> Result | None:
        return self._runner.run(step, None if self.shard.is_first else self._inputs(len(step.tokens))).result

    def end(self) -> None:
        """After the last step: let the others, who wait at the start of one, see that there is none."""
        if self.shard.is_first:
            self.meet()

    def meet(self) -> None:
        """Let the devices of the stage begin together."""
        if self.shard.tp > 1:
            self._parallel.tensor.all_reduce(torch.zeros(1, device=self.plan.device))

    def _inputs(self, tokens: int) -> Tensor:
        if len(self._activations) < tokens:
            self._activations = torch.randn(
                tokens, self.plan.config.sizes.hidden, device=self.plan.device, dtype=self.plan.dtype
            )
        return self._activations[:tokens]


def weight_bytes(config: ModelConfig, shard: Shard, precision: Precision, dtype: torch.dtype) -> int:
    """Of one device's shard: its parameters as they are held."""
    with torch.device("meta"):
        model = make_model(config, shard)
    total = 0
    for name, module in model.named_modules():
        is_int8 = precision == "int8" and isinstance(module, Linear) and not name.endswith(".router")
        for part, value in module.named_parameters(recurse=False):
            total += value.numel() if is_int8 and part == "weight" else value.numel() * dtype.itemsize
        if is_int8:
            assert isinstance(module, Linear)
            total += 4 * module.outputs
    return total


def _workspace_bytes(config: ModelConfig, shard: Shard, batch_tokens: int, graphs: bool) -> int:
    """Activations of the largest step or batch, computed: a CPU does not tell what it has used. Graphs keep theirs."""
    sizes = msgspec.structs.replace(config.sizes, dtype="fp32")
    tokens, outputs = (STEP_TOKENS, MOST_OUTPUTS) if config.task == "generate" else (batch_tokens, 0)
    if graphs:
        tokens, outputs = tokens + sum(SIZES), outputs + sum(SIZES)
    each, last = workspace_bytes(sizes, shard.tp, tokens, outputs)
    return int(each + (last if shard.is_last else 0))


def _begin(engine: Generator | PassEngine) -> Step:
    step = engine.begin()
    assert step is not None
    return step


def _made_up(step: Step, engine: Generator | PassEngine) -> Result:
    """What the last stage would send back."""
    if isinstance(step, GenerateStep):
        nothing = np.zeros(len(step.rows), np.int64)
        return GenerateResult(step.number, step.model, nothing, nothing.astype(bool))
    assert isinstance(engine, PassEngine)
    return PassResult(step.number, step.model, np.zeros((len(step.starts) - 1, engine.width), np.float32))


def _clock(device: str) -> Callable[[], float]:
    """A core may be used by others too: only the time that this thread had it counts, with what it spins while it waits
    for the other devices of its stage. A GPU is waited for.
    """
    if device == "cpu":
        return time.thread_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised
