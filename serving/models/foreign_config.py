"""The config.json of a model that an engine of others computes: of one that ours does not know, sizes are enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placement.errors import InputError
from placement.files import read_document
from serving.models.config import ModelConfig, parse_config, read_config

_KEPT = (
    "dtype", "eos_token_id", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "tie_word_embeddings", "torch_dtype",
    "vocab_size",
)  # fmt: skip
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def read_foreign_config(directory: Path) -> ModelConfig:
    """As ours where we know it. Else a model that generates is taken for a Llama of its sizes: what is planned with is
    measured, and these are only asked for how it can be split and what its cache takes."""
    try:
        return read_config(directory)
    except InputError as error:
        path = directory / "config.json"
        if not path.is_file():
            raise
        data = read_document(path, dict[str, Any])
        names = data.get("architectures") or [""]
        if not str(names[0]).endswith(_GENERATING):
            raise InputError(f"{error}; an engine of others may run any that generates text") from error
        sizes = data | (data.get("text_config") or {})
        known = {key: sizes[key] for key in _KEPT if key in sizes}
        known.setdefault("intermediate_size", 4 * int(sizes.get("hidden_size") or 1))
        return parse_config(known | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, str(path))
