"""Tiny models of every family, made by `transformers` itself with weights large enough that every part shows."""

from functools import lru_cache
from pathlib import Path

import torch
import transformers

VOCABULARY = 99
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
}
_BERT = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"} | {"pad_token_id": 0}


def _configs():
    t = transformers
    return {
        "llama": (t.LlamaForCausalLM, t.LlamaConfig(**_SIZES)),
        "llama3-rope": (t.LlamaForCausalLM, t.LlamaConfig(**_SIZES, rope_parameters=_LLAMA3_ROPE)),
        "llama-tied": (t.LlamaForCausalLM, t.LlamaConfig(**_SIZES, tie_word_embeddings=True)),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**_SIZES, sliding_window=20)),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**_SIZES)),
        "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**_SIZES, head_dim=16)),
        "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(**_GPT2)),
        "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(**_SIZES, num_local_experts=4)),
        "qwen3_moe": (
            t.Qwen3MoeForCausalLM,
            t.Qwen3MoeConfig(**_SIZES, **_MOE, head_dim=16, decoder_sparse_step=2, norm_topk_prob=True),
        ),
        "bert": (t.BertModel, t.BertConfig(**_BERT)),
        "bert-classifier": (t.BertForSequenceClassification, t.BertConfig(**_BERT, num_labels=3)),
    }


DECODERS = ("llama", "llama3-rope", "llama-tied", "mistral", "qwen2", "qwen3", "gpt2", "mixtral", "qwen3_moe")


@lru_cache
def reference(name):
    """The transformers model; the same weights whenever it is asked for."""
    kind, config = _configs()[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = kind(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases start as ones and zeros, which would hide a missing one
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(name, directory: Path, **options):
    """In Hugging Face layout; options go to save_pretrained (max_shard_size makes several files)."""
    path = directory / name
    if not path.exists():
        reference(name).save_pretrained(path, **options)
    return path


def reference_logits(name, tokens):
    """[tokens, vocabulary]"""
    with torch.no_grad():
        return reference(name)(torch.tensor([tokens])).logits[0].float()
