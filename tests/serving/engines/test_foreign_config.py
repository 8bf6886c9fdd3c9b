"""Models that only engines of others know."""

import json

import pytest

from placement.errors import InputError
from serving.models.foreign_config import read_foreign_config

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def write(folder, data):
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def test_sizes_are_enough(tmp_path):
    new = {"architectures": ["GemmaNextForConditionalGeneration"], "model_type": "gemma_next", "text_config": TEXT}
    config = read_foreign_config(write(tmp_path, new | {"quantization_config": {"bits": 4}}))
    assert (config.task, config.max_positions, config.sizes.vocabulary) == ("generate", 4096, 1000)
    assert config.sizes.why_not(2, 1) is None


def test_what_does_not_generate_or_has_no_sizes_is_refused(tmp_path):
    with pytest.raises(InputError, match="any that generates text"):
        read_foreign_config(write(tmp_path, {"architectures": ["NewEncoder"], **TEXT}))
    with pytest.raises(InputError, match="num_attention_heads` is missing"):
        read_foreign_config(write(tmp_path, {"architectures": ["NewForCausalLM"]}))
