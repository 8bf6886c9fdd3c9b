"""The models of one device: loads, runs, suspends and unloads their shards. The same on every rank of a group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from placement.errors import InputError
from serving.engine.step import Step
from serving.models import ModelConfig, make_shard, read_config
from serving.models.runner import Ran, Runner, make_runner
from serving.parallel import Parallel
from serving.worker.document import WorkerDocument
from serving.worker.messages import ModelSpec

if TYPE_CHECKING:
    from serving.models.linear import Precision


@dataclass
class DeviceRunner:
    """Runs this device's part of each step: activations in from the stage before, out to the next."""

    document: WorkerDocument
    parallel: Parallel

    def __post_init__(self) -> None:
        self._runners: dict[str, Runner] = {}

    def load(self, spec: ModelSpec, blocks: int) -> None:
        config = read_config(Path(spec.path))
        layout = self.document.layout
        shard = make_shard(config.sizes, layout.tp, layout.pp, layout.rank)
        self._runners[spec.name] = make_runner(
            Path(spec.path),
            config,
            shard,
            blocks=blocks,
            tensor=self.parallel.tensor,
            device=self.document.torch_device,
            precision=check_precision(spec.precision),
        )

    def unload(self, model: str) -> None:
        self._runners.pop(model, None)

    def suspend(self, model: str) -> None:
        self._runners[model].suspend()

    def resume(self, model: str) -> None:
        self._runners[model].resume()

    def run(self, step: Step) -> Ran:
        previous, following = self.parallel.previous, self.parallel.next
        inputs = None if previous is None else previous.receive()
        began, used = time.perf_counter(), time.thread_time()
        ran = self._runners[step.model].run(step, inputs)
        if self.document.pace > 1:
            _pace(began, time.thread_time() - used, self.document.pace)
        if following is not None:
            assert ran.activations is not None
            following.send(ran.activations)
        return ran


def check_precision(name: str) -> Precision:
    if name not in ("fp32", "fp16", "bf16", "int8"):
        raise InputError(f"precision {name!r} is not served; served are fp32, fp16, bf16, int8")
    return cast("Precision", name)


def cache_block_bytes(config: ModelConfig, tp: int, layers: int, value_bytes: int, block_tokens: int) -> int:
    """Of one block on one device of a stage with so many layers."""
    sizes = config.sizes
    return 2 * layers * sizes.kv_heads_per_device(tp) * sizes.head_size * value_bytes * block_tokens


def _pace(began: float, used_s: float, pace: float) -> None:
    """Sleep until the step has taken `pace` times what it computed; what others did on this core does not count."""
    time.sleep(max(began + pace * used_s - time.perf_counter(), 0.0))
