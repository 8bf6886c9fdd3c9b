"""The models of one device: loads, runs, suspends and unloads their shards. The same on every rank of a group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from moe.expert_placement import ExpertPlacement
from placement.errors import InputError
from serving.engine.step import Result, Step
from serving.models import ModelConfig, make_shard, read_config
from serving.models.runner import GenerateRunner, Runner, make_runner
from serving.parallel import Collectives, Parallel
from serving.worker.document import WorkerDocument
from serving.worker.messages import ModelSpec
from serving.worker.pacer import PacedCollectives, Pacer

if TYPE_CHECKING:
    from serving.models.expert_move import ExpertMove
    from serving.models.linear import Precision


@dataclass(frozen=True)
class Worked:
    """A step through this device: its result, on the last stage's first device, and how long it took here."""

    result: Result | None
    seconds: float


@dataclass
class DeviceRunner:
    """Runs this device's part of each step: activations in from the stage before, out to the next."""

    document: WorkerDocument
    parallel: Parallel

    def __post_init__(self) -> None:
        self._runners: dict[str, Runner] = {}
        self._pacer = Pacer(self.document.pace) if self.document.pace > 1 else None
        self._tensor: Collectives = self.parallel.tensor
        if self._pacer is not None and self._tensor.size > 1:
            self._tensor = PacedCollectives(self._tensor, self._pacer)
        self._specs: dict[str, ModelSpec] = {}
        self._moves: dict[str, ExpertMove] = {}

    def load(self, spec: ModelSpec, blocks: int) -> None:
        """May run beside `run` on a thread of its own: a model is there once it is whole."""
        config = read_config(Path(spec.path))
        layout = self.document.layout
        experts = None if spec.experts is None else ExpertPlacement.of_lists(spec.experts)
        shard = make_shard(config.sizes, layout.tp, layout.pp, layout.rank, experts)
        runner = make_runner(
            Path(spec.path),
            config,
            shard,
            blocks=blocks,
            tensor=self._tensor,
            device=self.document.torch_device,
            precision=check_precision(spec.precision),
            graphs=spec.graphs,
        )
        runner.warm()
        self._runners[spec.name] = runner
        self._specs[spec.name] = spec

    def unload(self, model: str) -> None:
        self._runners.pop(model, None)
        self._moves.pop(model, None)

    def graph_sizes(self, model: str) -> list[int]:
        """Of a loaded model's decoding steps that are recorded."""
        runner = self._runners.get(model)
        return runner.graph_sizes if isinstance(runner, GenerateRunner) else []

    def prepare_experts(self, model: str, experts: list[list[list[int]]]) -> dict[str, Any]:
        """Read the experts that this device lacks; like `load`, beside `run`. What they are, for all to compare."""
        from serving.models.expert_move import ExpertMove

        runner, spec = self._runners.get(model), self._specs.get(model)
        if not isinstance(runner, GenerateRunner) or spec is None:
            raise InputError(f"model {model!r} has no experts")
        precision = check_precision(spec.precision)
        move = ExpertMove(runner.model, Path(spec.path), precision, ExpertPlacement.of_lists(experts))
        self._moves[model] = move
        return {"read": move.read, "digests": [[*place, digest] for place, digest in move.digests.items()]}

    def take_routes(self, model: str) -> dict[str, Any]:
        """Counts of this device's layers with experts, by layer; all devices of a stage have the same, so that the
        first alone tells those of single steps."""
        runner = self._runners.get(model)
        if not isinstance(runner, GenerateRunner):
            return {}
        facts = {"counts": [[layer, each] for layer, each in runner.take_routes().items()]}
        steps = runner.take_route_steps()
        if runner.model.shard.tp_rank == 0:
            facts["steps"] = [[layer, each] for layer, each in steps.items()]
        return facts

    def switch_experts(self, model: str, go: bool) -> None:
        """Between two steps: use what was prepared, or forget it."""
        move = self._moves.pop(model, None)
        if go and move is not None:
            move.switch()

    def suspend(self, model: str) -> None:
        self._runners[model].suspend()
        torch.cuda.empty_cache()  # what torch keeps at hand is not free for a trainer

    def resume(self, model: str) -> None:
        self._runners[model].resume()

    def run(self, step: Step) -> Worked:
        previous, following = self.parallel.previous, self.parallel.next
        inputs = None if previous is None else previous.receive()
        began = time.perf_counter()
        if self._pacer is not None:
            self._pacer.begin()
        ran = self._runners[step.model].run(step, inputs)
        if self._pacer is not None:
            self._pacer.keep()
        if following is not None:
            assert ran.activations is not None
            following.send(ran.activations)
        return Worked(ran.result, time.perf_counter() - began)


def check_precision(name: str) -> Precision:
    if name not in ("fp32", "fp16", "bf16", "int8"):
        raise InputError(f"precision {name!r} is not served; served are fp32, fp16, bf16, int8")
    return cast("Precision", name)


def cache_block_bytes(config: ModelConfig, tp: int, layers: int, value_bytes: int, block_tokens: int) -> int:
    """Of one block on one device of a stage with so many layers."""
    sizes = config.sizes
    return 2 * layers * sizes.kv_heads_per_device(tp) * sizes.head_size * value_bytes * block_tokens
