"""Reading a Hugging Face config.json into the fields of a TransformerConfig. Knows key names and defaults of
each model type; nothing of weights or time. Sliding windows are not modelled: attention is taken as full.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from placement.errors import InputError

_DTYPES = MappingProxyType({"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"})
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")
KNOWN_TYPES = (*_LLAMA_LIKE, "gpt2", "bert")
_USUAL_SEQUENCE = 512


def hf_fields(data: Mapping[str, Any], where: str = "config.json") -> dict[str, object]:
    """The fields that `data` states; an InputError names the key that is missing, wrong or not modelled."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: not a JSON object")
    kind = data.get("model_type")
    if kind not in KNOWN_TYPES:
        raise InputError(f"{where}: model_type {kind!r} is not known here; known are {', '.join(KNOWN_TYPES)}")
    if data.get("quantization_config"):
        raise InputError(f"{where}: quantization_config: quantised weights are not modelled; remove it and set dtype")
    keys = _Keys(data, where)
    if kind == "gpt2":
        return _gpt2(keys)
    if kind == "bert":
        return _bert(keys)
    fields = _llama_like(keys)
    if kind == "mixtral":
        fields |= {"experts": keys.count("num_local_experts"), "top_k": keys.count("num_experts_per_tok")}
    if kind == "qwen3_moe":
        fields |= _qwen3_moe(keys)
    return fields


class _Keys:
    """The keys of one config.json, read with errors that name them."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def count(self, key: str, default: int | None = None) -> int:
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            given = "missing" if value is None else repr(value)
            raise InputError(f"{self.where}: `{key}` is {given}; a whole number of 1 or more is needed")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: `{key}` is {value!r}; true or false is needed")
        return value

    def dtype(self) -> str:
        """Older files say torch_dtype; a file that says nothing has float32 weights."""
        given = self.data.get("dtype") or self.data.get("torch_dtype") or "float32"
        if given not in _DTYPES:
            raise InputError(f"{self.where}: dtype {given!r} is not modelled; known are {', '.join(_DTYPES)}")
        return _DTYPES[given]


def _llama_like(keys: _Keys) -> dict[str, object]:
    heads = keys.count("num_attention_heads")
    fields: dict[str, object] = {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": heads,
        "kv_heads": keys.count("num_key_value_heads", heads),
        "ffn": keys.count("intermediate_size"),
        "vocabulary": keys.count("vocab_size"),
        "gated_ffn": True,
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "dtype": keys.dtype(),
        "sequence_length": min(_USUAL_SEQUENCE, keys.count("max_position_embeddings", _USUAL_SEQUENCE)),
    }
    if keys.data.get("head_dim") is not None:
        fields["head_size"] = keys.count("head_dim")
    return fields


def _qwen3_moe(keys: _Keys) -> dict[str, object]:
    if keys.data.get("mlp_only_layers"):
        raise InputError(f"{keys.where}: `mlp_only_layers` is not modelled; only an even decoder_sparse_step is")
    return {
        "experts": keys.count("num_local_experts" if "num_local_experts" in keys.data else "num_experts"),
        "top_k": keys.count("num_experts_per_tok"),
        "expert_ffn": keys.count("moe_intermediate_size"),
        "expert_interval": keys.count("decoder_sparse_step", 1),
    }


def _gpt2(keys: _Keys) -> dict[str, object]:
    hidden = keys.count("n_embd")
    positions = keys.count("n_positions")
    return {
        "layers": keys.count("n_layer"),
        "hidden": hidden,
        "heads": keys.count("n_head"),
        "ffn": keys.count("n_inner", 4 * hidden),
        "vocabulary": keys.count("vocab_size"),
        "positions": positions,
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "dtype": keys.dtype(),
        "sequence_length": min(_USUAL_SEQUENCE, positions),
    }


def _bert(keys: _Keys) -> dict[str, object]:
    """As an embedder, although published files name BertForMaskedLM; `logits="all"` makes it one."""
    positions = keys.count("max_position_embeddings")
    return {
        "layers": keys.count("num_hidden_layers"),
        "hidden": keys.count("hidden_size"),
        "heads": keys.count("num_attention_heads"),
        "ffn": keys.count("intermediate_size"),
        "vocabulary": keys.count("vocab_size"),
        "positions": positions,
        "architecture": "encoder",
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "dtype": keys.dtype(),
        "sequence_length": min(_USUAL_SEQUENCE, positions),
    }
