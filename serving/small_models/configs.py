"""The config.json of each architecture for given sizes. Knows Hugging Face's keys; nothing of weights or training."""

from __future__ import annotations

from typing import Any

from serving.small_models.settings import BertSettings, LanguageSettings

ROPE_THETA = 10000.0


def language_config(settings: LanguageSettings, vocabulary: int, end: tuple[int, ...], pad: int) -> dict[str, Any]:
    """A Llama, or with experts a Qwen3-MoE; `end` are the tokens that end an answer."""
    has_experts = settings.experts > 0
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if has_experts else "LlamaForCausalLM"],
        "model_type": "qwen3_moe" if has_experts else "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": list(end),
        "head_dim": settings.hidden // settings.heads,
        "hidden_act": "silu",
        "hidden_size": settings.hidden,
        "intermediate_size": settings.ffn,
        "max_position_embeddings": settings.max_positions,
        "num_attention_heads": settings.heads,
        "num_hidden_layers": settings.layers,
        "num_key_value_heads": settings.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": settings.tied,
        "use_cache": True,
        "vocab_size": vocabulary,
    }
    if has_experts:
        config |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": settings.ffn,
            "norm_topk_prob": True,
            "num_experts": settings.experts,
            "num_experts_per_tok": settings.top_k,
            "router_aux_loss_coef": settings.balance,
        }
    return config


def generation_config(end: tuple[int, ...], pad: int) -> dict[str, Any]:
    return {"do_sample": True, "eos_token_id": list(end), "pad_token_id": pad, "temperature": 0.7}


def bert_config(settings: BertSettings, vocabulary: int, pad: int, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    """An embedder, or with labels a classifier."""
    config: dict[str, Any] = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.0,
        "dtype": "float32",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": settings.hidden,
        "intermediate_size": settings.ffn,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": settings.max_positions,
        "num_attention_heads": settings.heads,
        "num_hidden_layers": settings.layers,
        "pad_token_id": pad,
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
    }
    if labels:
        config["id2label"] = {str(place): label for place, label in enumerate(labels)}
        config["label2id"] = {label: place for place, label in enumerate(labels)}
        config["problem_type"] = "single_label_classification"
    return config
