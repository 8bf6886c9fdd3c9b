"""What a model directory's config.json says, checked, in our words. Knows every family's keys; nothing of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from placement.costs.transformer import TransformerConfig
from placement.errors import InputError
from placement.files import read_document
from serving.models.rope import Rope, rope_from

Task = Literal["generate", "embed", "classify"]
Activation = Literal["silu", "gelu", "gelu_tanh"]

ARCHITECTURES: Mapping[str, tuple[str, Task]] = {
    "BertForSequenceClassification": ("bert", "classify"),
    "BertModel": ("bert", "embed"),
    "GPT2LMHeadModel": ("gpt2", "generate"),
    "LlamaForCausalLM": ("llama", "generate"),
    "MistralForCausalLM": ("mistral", "generate"),
    "MixtralForCausalLM": ("mixtral", "generate"),
    "Qwen2ForCausalLM": ("qwen2", "generate"),
    "Qwen3ForCausalLM": ("qwen3", "generate"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "generate"),
}
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class ModelConfig:
    """A model by its numbers (`sizes`) and what its family adds to them."""

    family: str
    task: Task
    sizes: TransformerConfig
    max_positions: int
    norm_eps: float
    activation: Activation
    rope: Rope | None
    """None: a learned table of positions."""
    qkv_bias: bool
    bias: bool
    """On all other linear layers; such models also have layer norms with bias instead of RMS norms."""
    qk_norm: bool
    windows: tuple[int, ...]
    """For each layer how many positions a token sees, itself included; 0 for all."""
    normalise_experts: bool
    """Whether the weights of the chosen experts are made to sum to one."""
    eos_token_ids: tuple[int, ...]
    labels: tuple[str, ...]
    """Of a classifier."""


def read_config(directory: Path) -> ModelConfig:
    """Read DIRECTORY/config.json; an InputError names what is missing, wrong or not served."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory; a model is a directory with config.json and *.safetensors")
    path = directory / "config.json"
    return parse_config(read_document(path, dict[str, Any]), str(path))


def why_no_graphs(config: ModelConfig, device: str) -> str | None:
    """Why a model's steps are not recorded as graphs on a kind of device (torch's name for it)."""
    if device == "cpu":
        return "graphs need a CUDA device, and this one is a CPU's core; leave `graphs` out"
    if config.task != "generate":
        return "graphs are of decoding steps, and it answers in one pass; leave `graphs` out"
    if any(config.sizes.has_experts):
        return "graphs of a model with experts are not recorded; leave `graphs` out"
    return None


def parse_config(data: Mapping[str, Any], where: str) -> ModelConfig:
    family, task = _architecture(data, where)
    sizes = TransformerConfig.from_hf(data, where=where, **_task_changes(task))
    layers = sizes.layers
    has_bias = family in ("gpt2", "bert")
    eps = data.get("layer_norm_epsilon", data.get("layer_norm_eps", data.get("rms_norm_eps", 1e-6)))
    return ModelConfig(
        family=family,
        task=task,
        sizes=sizes,
        max_positions=sizes.positions or int(data.get("max_position_embeddings", 2048)),
        norm_eps=float(eps),
        activation=_activation(data, where),
        rope=None if has_bias else rope_from(data, sizes.head_size, where),
        qkv_bias=has_bias or family == "qwen2" or bool(data.get("attention_bias", False)),
        bias=has_bias,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        windows=_windows(data, family, layers),
        normalise_experts=bool(data.get("norm_topk_prob", family == "mixtral")),
        eos_token_ids=_token_ids(data.get("eos_token_id")),
        labels=_labels(data) if task == "classify" else (),
    )


def _architecture(data: Mapping[str, Any], where: str) -> tuple[str, Task]:
    known = ", ".join(ARCHITECTURES)
    names = data.get("architectures") or []
    name = str(names[0]) if isinstance(names, list) and names else "none"
    if name not in ARCHITECTURES:
        raise InputError(f"{where}: architecture {name!r} is not served; served are {known}")
    family, task = ARCHITECTURES[name]
    if data.get("model_type") != family:
        raise InputError(
            f"{where}: architecture {name} with model_type {data.get('model_type')!r}; expected {family!r}"
        )
    if family == "bert" and data.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"{where}: position_embedding_type {data['position_embedding_type']!r}; only absolute is served"
        )
    for key in ("mlp_bias", "add_cross_attention", "is_decoder", "scale_attn_by_inverse_layer_idx"):
        if data.get(key):
            raise InputError(f"{where}: `{key}` is set, which is not served")
    if family == "llama" and data.get("attention_bias"):
        raise InputError(f"{where}: `attention_bias` is set, which is not served for llama")
    return family, task


def _task_changes(task: Task) -> dict[str, object]:
    return {"logits": "none"} if task != "generate" else {}


def _activation(data: Mapping[str, Any], where: str) -> Activation:
    name = data.get("hidden_act", data.get("activation_function", "silu"))
    if name not in _ACTIVATIONS:
        raise InputError(f"{where}: activation {name!r} is not served; served are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _windows(data: Mapping[str, Any], family: str, layers: int) -> tuple[int, ...]:
    """Mistral and Mixtral slide in every layer, the Qwens in those that `layer_types` names."""
    window = int(data.get("sliding_window") or 0)
    if family in ("mistral", "mixtral"):
        return (window,) * layers
    if not window or not data.get("use_sliding_window"):
        return (0,) * layers
    kinds = data.get("layer_types")
    if kinds is None:
        first = int(data.get("max_window_layers", layers))
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in (value if isinstance(value, list) else [value]))


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    names = data.get("id2label") or {str(index): f"LABEL_{index}" for index in range(int(data.get("num_labels", 2)))}
    return tuple(str(names[key]) for key in sorted(names, key=int))
