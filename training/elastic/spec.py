"""What an `lm` job trains: which model, on which text, for how long. Checked here, whoever brings it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from placement.errors import InputError
from placement.files import convert
from placement.units import Seconds, Share

MAX_STEPS = 10**9
MAX_PARTS = 4096


class LmSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step trains `batch` sequences, `micro_batch` at a time: the same ones, in the same parts, on any number of
    workers."""

    model: str
    """Directory in Hugging Face's layout: configuration, tokenizer and, unless `fresh`, the weights to begin with."""
    data: str
    """Text in UTF-8, or tokens as .npy: one dimension of whole numbers."""
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)]
    batch: Annotated[int, Meta(ge=1, le=2**16)] = 8
    """Sequences of a step."""
    micro_batch: Annotated[int, Meta(ge=1, le=2**16)] = 1
    """Sequences computed at once; a step has work for batch / micro_batch workers."""
    context: Annotated[int, Meta(ge=2, le=2**17)] = 256
    """Tokens of a sequence."""
    learning_rate: Annotated[float, Meta(gt=0, le=10)] = 1e-3
    """At its peak, for a step of `rate_batch` sequences."""
    rate_batch: Annotated[int, Meta(ge=1, le=2**16)] | None = None
    """Where `batch` is another, the rate is scaled by the square root of their ratio; `batch` when absent."""
    warmup: Share = Share(0.08)
    """Share of the steps over which the rate rises."""
    balance: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Weight of the loss that spreads tokens over experts."""
    fresh: bool = False
    """Begin with first values drawn by the seed instead of the model's weights."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    checkpoint: Seconds = Seconds(30)
    """Seconds between checkpoints."""
    keep: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Checkpoints that are kept."""

    serve_as: str | None = None
    """The served model whose place the trained one takes when it is done; it must be of the same form."""
    pace: Seconds = Seconds(0)
    """Seconds that a step takes at least: for trying things out, and to leave room for others."""

    def __post_init__(self) -> None:
        if self.batch % self.micro_batch:
            raise ValueError(f"a batch of {self.batch} cannot be cut into micro-batches of {self.micro_batch}")
        if self.parts > MAX_PARTS:
            raise ValueError(f"{self.parts} micro-batches in a step; {MAX_PARTS} is the most")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup {self.warmup:g}; expected a share between 0 and 1")
        if not 0 < self.checkpoint <= 86400:
            raise ValueError(f"checkpoint {self.checkpoint:g}; expected seconds between 0 and 86400")
        if not 0 <= self.pace <= 3600:
            raise ValueError(f"pace {self.pace:g}; expected seconds between 0 and 3600")

    @property
    def parts(self) -> int:
        """Micro-batches of a step."""
        return self.batch // self.micro_batch


def read_spec(data: dict[str, Any], where: str = "lm") -> LmSpec:
    return convert(data, LmSpec, where)


def check_readable(path: str, roots: tuple[str, ...]) -> Path:
    """The path, if it lies in one of the roots (anywhere, where there are none) and exists."""
    resolved = Path(path).resolve()
    if roots and not any(resolved.is_relative_to(Path(root).resolve()) for root in roots):
        raise InputError(f"{path}: lm jobs read files below {', '.join(roots)} alone")
    if not Path(path).is_absolute():
        raise InputError(f"{path}: relative; give it from the root")
    if not resolved.exists():
        raise InputError(f"{path}: no such file or directory")
    return resolved
