"""The model of an `lm` job and its optimizer: gradients of some parts of a step, and the step itself. Knows nothing of
other workers; every one that has made the same steps has the same bits.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from placement.errors import InputError
from placement.files import read_document
from serving.models.checkpoint import Checkpoint
from serving.models.decoder import Decoder
from serving.models.load import shard_sources
from serving.small_models.balance import RouterWatch, watch_routers
from serving.small_models.folder import put_folder
from serving.small_models.language import next_token_loss
from serving.small_models.made import model_files, new_model
from serving.small_models.training import Schedule
from training.elastic.messages import Squared
from training.elastic.samples import Samples
from training.elastic.spec import LmSpec
from training.elastic.state import State
from training.elastic.tokens import open_tokens
from training.elastic.tree_sum import Block, TreeSum
from training.goodput import learning_rate_scale

WEIGHT_DECAY = 0.1
LONGEST_GRADIENT = 1.0
BETAS = (0.9, 0.99)
MEASURES = 3
"""Behind the gradient: the loss, the sequences it is of, and the squared length of the gradient itself."""
COPIED = (
    *("chat_template.jinja", "generation_config.json", "merges.txt", "special_tokens_map.json", "tokenizer.json"),
    *("tokenizer.model", "tokenizer_config.json", "vocab.json"),
)
"""What a model has beside its configuration and weights."""


class Learner:
    """`step` steps are done; -1: it has no values yet."""

    def __init__(self, spec: LmSpec, tokens: Path) -> None:
        self.spec, self.step = spec, -1
        self._config = read_document(Path(spec.model) / "config.json", dict[str, Any])
        made = new_model(self._config, torch.Generator().manual_seed(spec.seed))
        if not isinstance(made, Decoder):
            raise InputError(f"{spec.model}: not a language model; lm jobs train those alone")
        self.model = made
        _check(made, spec)
        self._tokens = open_tokens(tokens, made.config.sizes.vocabulary, spec.context)
        self._samples = Samples((len(self._tokens) - 1) // spec.context, spec.batch, spec.seed)
        self._named = dict(made.named_parameters())
        self._gradient = torch.zeros(sum(parameter.numel() for parameter in self._named.values()))
        self._give_gradients()
        self._optimizer = torch.optim.AdamW(self._groups(), lr=spec.learning_rate, betas=BETAS, fused=True)
        scale = learning_rate_scale(spec.batch, spec.rate_batch or spec.batch, 0.0, "sqrt")
        self._schedule = Schedule(spec.steps, spec.learning_rate * scale, spec.warmup)
        self.squared = Squared(0.0, 0.0)
        """Of the last step."""
        self._watched = ExitStack()
        self._watch = self._watched.enter_context(watch_routers(made)) if spec.balance else None

    @property
    def is_done(self) -> bool:
        return self.step >= self.spec.steps

    @property
    def size(self) -> int:
        """Numbers that workers exchange in a step."""
        return len(self._gradient) + MEASURES

    def warm_up(self) -> None:
        """Load what the first gradient would have to load; changes nothing."""
        self._part([0] * self.spec.micro_batch)

    def begin(self) -> None:
        """With the values that a job begins with."""
        if not self.spec.fresh:
            _fill(self.model, Path(self.spec.model))
        self.step = 0

    def gradients(self, parts: range) -> list[Tensor]:
        """Of these parts of the next step, as blocks of a TreeSum: gradient and measures, each [size]."""
        chosen = self._samples.of_step(self.step)
        size = self.spec.micro_batch
        total = TreeSum()
        for part in parts:
            total.add(Block(part, 1), self._part(chosen[part * size : (part + 1) * size].tolist()))
        return total.sums

    def take(self, total: Tensor) -> float:
        """Make the step whose gradients over all parts sum to this; its loss."""
        loss, sequences, squared = total[-MEASURES:].tolist()
        assert sequences == self.spec.batch, f"{sequences} sequences in a step of {self.spec.batch}"
        torch.div(total[:-MEASURES], self.spec.parts, out=self._gradient)
        length = float(torch.linalg.vector_norm(self._gradient))
        self.squared = Squared(squared / self.spec.parts, length**2)
        if length > LONGEST_GRADIENT:
            self._gradient.mul_(LONGEST_GRADIENT / length)
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate(self.step)
        self._optimizer.step()
        self.step += 1
        return float(loss) / self.spec.parts

    def state(self) -> State:
        tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in self._named.items()}
        for name, parameter in self._named.items():
            for part, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{part}.{name}"] = value
        return State(self.step, tensors)

    def load(self, state: State) -> None:
        """An InputError: it is another model's."""
        named = {f"model.{name}": parameter for name, parameter in self._named.items()}
        ours = {name: tensor for name, tensor in state.tensors.items() if name.startswith("model.")}
        if {name: tensor.shape for name, tensor in ours.items()} != {name: p.shape for name, p in named.items()}:
            raise InputError("the checkpoint is of another model")
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(ours[name])
        self._optimizer.state.clear()
        for name, tensor in state.tensors.items():
            if not name.startswith("model."):
                _, part, parameter_name = name.split(".", 2)
                self._optimizer.state[self._named[parameter_name]][part] = tensor.clone()
        self.step = state.step

    def export(self, folder: Path) -> None:
        """The model as it is now, in Hugging Face's layout."""
        config = {key: value for key, value in self._config.items() if key != "torch_dtype"} | {"dtype": "float32"}
        files = model_files(config, self.model)
        for name in COPIED:
            if (path := Path(self.spec.model) / name).is_file():
                files[name] = path.read_bytes()
        put_folder(folder, files)

    def _part(self, windows: list[int]) -> Tensor:
        context = self.spec.context
        rows = [torch.from_numpy(self._tokens[n * context : (n + 1) * context + 1].astype("int64")) for n in windows]
        sequences = torch.stack(rows)
        self._gradient.zero_()
        loss = _loss(self.model, sequences, self.spec.balance, self._watch)
        loss.backward()
        squared = float(torch.dot(self._gradient, self._gradient))
        return torch.cat((self._gradient, torch.tensor([loss.item(), float(len(rows)), squared])))

    def _give_gradients(self) -> None:
        """All gradients lie in one tensor, in the order of names."""
        start = 0
        for parameter in self._named.values():
            stop = start + parameter.numel()
            parameter.grad = self._gradient[start:stop].view(parameter.shape)
            start = stop

    def _groups(self) -> list[dict[str, Any]]:
        """Only matrices decay."""
        matrices = [parameter for parameter in self._named.values() if parameter.dim() > 1]
        others = [parameter for parameter in self._named.values() if parameter.dim() <= 1]
        return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]


def _loss(model: Decoder, sequences: Tensor, balance: float, watch: RouterWatch | None) -> Tensor:
    loss = next_token_loss(model, sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous())
    return loss if watch is None else loss + balance * watch.balance_loss()


def _check(model: Decoder, spec: LmSpec) -> None:
    config = model.config
    if spec.context > config.max_positions:
        raise InputError(f"a context of {spec.context}; {spec.model} has {config.max_positions} positions")
    if any(0 < window < spec.context for window in config.windows):
        raise InputError(
            f"{spec.model}: attends in sliding windows of less than {spec.context}; give a shorter context"
        )
    if spec.balance and not config.sizes.experts:
        raise InputError(f"{spec.model}: has no experts to balance")


def _fill(model: Decoder, directory: Path) -> None:
    checkpoint, named = Checkpoint(directory), dict(model.named_parameters())
    with torch.no_grad():
        for name, source in shard_sources(model.config, model.shard).items():
            if name in named:  # a tied head is the embedding
                named[name].copy_(checkpoint.read(source, torch.float32).view(named[name].shape))
