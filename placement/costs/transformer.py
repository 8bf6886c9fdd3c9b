"""A transformer by its numbers, and how many weights it has. Knows nothing of devices or time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from placement.costs.hardware import DTYPE_BYTES, Dtype
from placement.costs.hf_config import hf_fields
from placement.errors import InputError
from placement.files import convert

Count = Annotated[int, Meta(ge=1, le=10**8)]
OptionalCount = Annotated[int, Meta(ge=0, le=10**8)]


class TransformerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The numbers of an encoder or a decoder. Norms and biases (under 0.2% of the weights) are left out."""

    layers: Count
    hidden: Count
    heads: Count
    ffn: Count
    vocabulary: Count
    architecture: Literal["encoder", "decoder"] = "decoder"
    kv_heads: OptionalCount = 0
    """Heads of keys and values; 0 stands for as many as `heads`."""
    head_size: OptionalCount = 0
    """0 stands for hidden / heads."""
    gated_ffn: bool = False
    """Three matrices (SwiGLU) instead of two."""
    tied_embeddings: bool = False
    """The vocabulary head is the embedding table again."""
    positions: OptionalCount = 0
    """Rows of a learned position table; 0 for rotary and the like."""
    experts: OptionalCount = 0
    """0 for a dense model."""
    top_k: OptionalCount = 0
    """Experts that a token visits."""
    expert_ffn: OptionalCount = 0
    """Width of one expert; 0 stands for `ffn`."""
    expert_interval: Count = 1
    """Every n-th layer has experts (the n-th, the 2n-th, ...), the others are dense."""
    dtype: Dtype = "fp16"
    sequence_length: Count = 512
    """Tokens of a request of a one-pass model; for a decoder, of a prompt run in one pass."""
    logits: Literal["auto", "all", "last", "none"] = "auto"
    """Tokens at which the vocabulary head runs; auto is last for a decoder, none for an encoder."""

    def __post_init__(self) -> None:
        if not self.head_size and self.heads > 0 and self.hidden % self.heads:
            raise InputError(f"hidden {self.hidden} is no multiple of heads {self.heads}; give head_size")
        fill = msgspec.structs.force_setattr
        fill(self, "kv_heads", self.kv_heads or self.heads)
        fill(self, "head_size", self.head_size or self.hidden // max(self.heads, 1))
        fill(self, "expert_ffn", self.expert_ffn or self.ffn)
        if self.logits == "auto":
            fill(self, "logits", "last" if self.architecture == "decoder" else "none")
        self._check()

    @classmethod
    def from_hf(cls, data: Mapping[str, Any], *, where: str = "config.json", **changes: object) -> TransformerConfig:
        """From a Hugging Face config.json; `changes` (dtype="fp16", say) replace what it says."""
        return convert({**hf_fields(data, where), **changes}, cls, where)

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def causal(self) -> bool:
        return self.architecture == "decoder"

    @property
    def has_experts(self) -> NDArray[np.bool_]:
        """[layers]"""
        if not self.experts:
            return np.zeros(self.layers, np.bool_)
        sparse: NDArray[np.bool_] = np.arange(1, self.layers + 1) % self.expert_interval == 0
        return sparse

    @property
    def expert_share(self) -> float:
        """Of the experts, the share that one token visits; 0 for a dense model."""
        return self.top_k / self.experts if self.experts else 0.0

    @property
    def table_parameters(self) -> int:
        """Of the embedding table, without positions; the vocabulary head has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, those of every expert included."""
        sparse = int(self.has_experts.sum())
        ffn = (self.layers - sparse) * self.ffn_parameters(self.ffn)
        ffn += sparse * self.experts * (self.ffn_parameters(self.expert_ffn) + self.hidden)  # + its row of the gate
        tables = 1 if self.tied_embeddings or self.logits == "none" else 2
        fixed = tables * self.table_parameters + self.positions * self.hidden
        return fixed + self.layers * self.attention_parameters() + ffn

    def attention_parameters(self, tp: int = 1) -> int:
        """Of one layer, on one of tp devices: query, key, value, output."""
        return 2 * self.hidden * self.head_size * (self.heads // tp + self.kv_heads_per_device(tp))

    def ffn_parameters(self, width: int) -> int:
        return (3 if self.gated_ffn else 2) * self.hidden * width

    def kv_heads_per_device(self, tp: int) -> int:
        """A key-value head is copied to several devices when there are more devices than heads."""
        return max(self.kv_heads // tp, 1)

    def why_not(self, tp: int, pp: int) -> str | None:
        """Why the model cannot be split tp x pp ways, in one line; None when it can."""
        if pp > self.layers:
            return f"pp {pp} exceeds its {self.layers} layers"
        if self.heads % tp:
            return f"tp {tp} does not divide its {self.heads} heads"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"tp {tp} neither divides its {self.kv_heads} kv heads nor is a multiple of them"
        for width in np.unique(np.where(self.has_experts, self.expert_ffn, self.ffn)):
            if width % tp:
                return f"tp {tp} does not divide its ffn width {width}"
        return None

    def _check(self) -> None:
        for field in ("layers", "hidden", "heads", "ffn", "vocabulary", "sequence_length", "expert_interval"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} is {getattr(self, field)}; it must be 1 or more")
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"dtype {self.dtype!r} is not known; known are {', '.join(DTYPE_BYTES)}")
        if self.heads % self.kv_heads:
            raise InputError(f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        if bool(self.experts) != bool(self.top_k):
            raise InputError(f"experts {self.experts} and top_k {self.top_k}: give both, or neither for a dense model")
        if self.top_k > self.experts:
            raise InputError(f"top_k {self.top_k} exceeds the {self.experts} experts")
        if self.expert_interval > self.layers:
            raise InputError(f"expert_interval {self.expert_interval} exceeds the {self.layers} layers")
        if self.causal and self.logits == "none":
            raise InputError("a decoder needs its vocabulary head: logits must be last or all")
