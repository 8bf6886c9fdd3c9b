"""What each small model is: its sizes and how it is trained. The digest of these tells an old model from a new one."""

from __future__ import annotations

import hashlib

import msgspec

from serving.small_models.names import Name

RECIPE = 1
"""Counts up when code changes so that the same settings make another model."""


class LanguageSettings(msgspec.Struct, frozen=True, kw_only=True, tag="language"):
    """A causal language model: a Llama, or with experts a Qwen3-MoE."""

    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 384
    """Of each expert, where there are experts."""
    experts: int = 0
    top_k: int = 0
    balance: float = 0.0
    """Weight of the loss that spreads tokens over experts."""
    tied: bool = False
    """Whether the head is the embedding; a model trained for a minute learns much faster with two tables."""
    max_positions: int = 2048
    context: int = 256
    """Tokens of a window trained on."""
    batch: int = 2
    steps: int = 1
    learning_rate: float = 5e-3


class BertSettings(msgspec.Struct, frozen=True, kw_only=True, tag="bert"):
    """An encoder: an embedder or a classifier."""

    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    ffn: int = 384
    max_positions: int = 512
    context: int = 32
    """Tokens a text is cut to while training."""
    batch: int = 32
    """Texts, or pairs of texts, of one step."""
    steps: int = 1
    learning_rate: float = 1e-3


Settings = LanguageSettings | BertSettings

SETTINGS: dict[Name, Settings] = {
    "chat": LanguageSettings(steps=1200),
    "moe-chat": LanguageSettings(ffn=192, experts=16, top_k=2, balance=0.002, steps=900),
    "embed": BertSettings(steps=100),
    "classify": BertSettings(steps=60),
}


def digest(settings: Settings, seed: int) -> str:
    """Of everything that decides what a model becomes, apart from the versions of Python and torch."""
    whole = msgspec.json.encode([RECIPE, seed, settings], order="sorted")
    return hashlib.sha256(whole).hexdigest()[:16]
