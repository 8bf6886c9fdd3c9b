"""A group of shards inside one process: tensor-parallel devices are threads that meet at a barrier."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from serving.engine import make_generator
from serving.engine.scheduler import Limits
from serving.models import make_shard, read_config
from serving.models.runner import make_runner


class ThreadCollectives:
    def __init__(self, rank, board):
        self.rank, self.size, self._board = rank, board.parties, board

    def _exchange(self, tensor):
        return self._board.exchange(self.rank, tensor.clone())

    def all_reduce(self, tensor):
        tensor.copy_(sum(self._exchange(tensor)))

    def all_gather(self, tensor):
        return torch.cat(self._exchange(tensor), dim=-1)

    def gather(self, tensor):
        gathered = self.all_gather(tensor)
        return gathered if self.rank == 0 else None


class Board:
    def __init__(self, parties):
        self.parties = parties
        self._barrier = threading.Barrier(parties, timeout=30)
        self._tensors = [None] * parties

    def exchange(self, rank, tensor):
        self._tensors[rank] = tensor
        self._barrier.wait()
        everything = list(self._tensors)
        self._barrier.wait()
        return everything


class ThreadGroup:
    """Runs a step through all shards; `logits` holds what the last one computed for the step's rows."""

    def __init__(self, path, tp, pp, blocks=64, precision="fp32", experts=None):
        self.config = read_config(path)
        self.tp, self.pp = tp, pp
        self.logits = None
        boards = [Board(tp) for _ in range(pp)]
        self._runners = []
        for rank in range(tp * pp):
            shard = make_shard(self.config.sizes, tp, pp, rank, experts)
            tensor = None if tp == 1 else ThreadCollectives(shard.tp_rank, boards[shard.stage])
            runner = make_runner(path, self.config, shard, blocks=blocks, tensor=tensor, precision=precision)
            self._runners.append(runner)
        self._pool = ThreadPoolExecutor(tp)
        if self.config.task == "generate":
            self._listen(self._runners[(pp - 1) * tp].model)

    def run(self, step):
        inputs = [None] * self.tp
        for stage in range(self.pp):
            runners = self._runners[stage * self.tp : (stage + 1) * self.tp]
            ran = list(self._pool.map(lambda pair: pair[0].run(step, pair[1]), zip(runners, inputs, strict=True)))
            inputs = [one.activations for one in ran]
        return ran[0].result

    def _listen(self, model):
        compute = model.logits

        def logits(hidden):
            self.logits = compute(hidden)
            return self.logits

        model.logits = logits

    def engine(self, *, blocks=64, step_tokens=512, sequences=256):
        sizes = self.config.sizes
        return make_generator(
            "m",
            vocabulary=sizes.vocabulary,
            max_positions=self.config.max_positions,
            eos_token_ids=self.config.eos_token_ids,
            blocks=blocks,
            lanes=self.pp,
            limits=Limits(step_tokens, sequences),
        )
