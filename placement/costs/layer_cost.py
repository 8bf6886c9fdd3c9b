"""What each layer of a transformer costs on one of the tp devices that share it: a roofline with fixed costs.

Knows neither stages nor batches: its numbers are per layer and per token. Assumes fused attention, tensor
parallelism as in Megatron-LM (two all-reduces a layer, by ring), and tokens spread evenly over experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placement.costs.hardware import DeviceKind, Link
from placement.costs.slicing import Floats
from placement.costs.transformer import TransformerConfig
from placement.profile import touched_share

# Kernels of one layer: 2 norms, qkv, rotary, attention, output, 2 residuals, 2 of the ffn.
_KERNELS_DENSE = 10
# Gate, top-k, sort and un-sort of the tokens, weighted sum.
_KERNELS_EXPERTS = 5
# Reads and writes of a token's hidden vector, and of its ffn vector, by what is not a matmul.
_HIDDEN_PASSES = 10
_FFN_PASSES = 3
_ALL_REDUCES = 2
# Logits are reduced to answers in pieces of so many tokens, so that a long batch does not hold them all.
_LOGIT_PIECE_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Arrays [layers], of one device. The embedding belongs to the first layer, the vocabulary head to the
    last.

    A step over T tokens, O of them with logits, takes each layer
    fixed_s + max(dense_read_s, token_s * T + output_s * O) + experts_s(T) + pair_s * (pairs of attending tokens).
    """

    fixed_s: Floats
    token_s: Floats
    """Matmuls outside experts, elementwise work, all-reduce bytes."""
    expert_token_s: Floats
    """Matmuls of the experts that a token visits."""
    output_s: Floats
    pair_s: Floats
    cached_token_s: Floats
    """Attention of a new token to one cached token: reading its keys and values."""
    dense_read_s: Floats
    """Weights that every step reads."""
    experts_read_s: Floats
    """Weights of all experts."""
    memory_bytes: Floats
    kv_bytes: Floats
    """Keys and values of one token."""
    expert_share: float
    """Share of the experts that one token visits; 0 without experts."""

    def experts_s(self, tokens: float) -> Floats:
        """Reading the experts that `tokens` tokens touch, or computing, whichever takes longer."""
        read_s = self.experts_read_s * touched_share(self.expert_share, tokens)
        return np.maximum(read_s, self.expert_token_s * tokens)

    def beyond_reading_s(self, tokens: float) -> Floats:
        """What each of `tokens` tokens adds where computing their experts takes longer than reading these."""
        read_s = self.experts_read_s * touched_share(self.expert_share, tokens)
        return (self.experts_s(tokens) - read_s) / tokens

    def step_s(self, tokens: float, outputs: float, pairs: float) -> Floats:
        dense_s = np.maximum(self.dense_read_s, self.token_s * tokens + self.output_s * outputs)
        return self.fixed_s + dense_s + self.experts_s(tokens) + self.pair_s * pairs


def layer_costs(config: TransformerConfig, kind: DeviceKind, tp: int, link: Link, *, head_copy: bool) -> LayerCosts:
    """The costs with tp devices joined by `link`; head_copy: the head stands on another device than the
    embedding, so tied weights are there twice.
    """
    assumed, size = kind.assumed, config.dtype_bytes
    matmul_per_s = kind.peak_flops_per_s(config.dtype) * assumed.matmul_efficiency
    attention_per_s = kind.peak_flops_per_s(config.dtype) * assumed.attention_efficiency
    read_per_s = kind.memory_bytes_per_s * assumed.memory_efficiency
    link_per_s = link.bytes_per_s * assumed.link_efficiency

    sparse = config.has_experts
    first = np.arange(config.layers) == 0
    last = (np.arange(config.layers) == config.layers - 1) & (config.logits != "none")
    gate = config.hidden * config.experts
    expert = config.ffn_parameters(config.expert_ffn) / tp
    dense = config.attention_parameters(tp) + np.where(sparse, gate, config.ffn_parameters(config.ffn) / tp)
    all_experts = np.where(sparse, config.experts * expert, 0.0)
    visited = np.where(sparse, config.top_k * expert, 0.0)
    width = np.where(sparse, config.top_k * config.expert_ffn, config.ffn) / tp
    # Tables are padded to a multiple of tp.
    table = -(-config.vocabulary // tp) * config.hidden
    embedding = first * (table + config.positions * config.hidden)
    head = last * table
    stored_head = head if head_copy or not config.tied_embeddings else 0

    heads, kv_heads = config.heads // tp, config.kv_heads_per_device(tp)
    kv_bytes = 2 * kv_heads * config.head_size * size
    pair_s = 4 * heads * config.head_size / attention_per_s
    elementwise = (_HIDDEN_PASSES * config.hidden + _FFN_PASSES * width) * size / read_per_s

    # A ring all-reduce sends 2 (tp - 1) / tp of the bytes in 2 (tp - 1) steps; an all-gather half of both.
    reduces = _ALL_REDUCES + first
    reduced_s = reduces * 2 * (tp - 1) / tp * config.hidden * size / link_per_s
    gathered_s = last * (tp - 1) / tp * config.vocabulary * size / link_per_s
    steps = (2 * reduces + last) * (tp - 1)
    kernels = _KERNELS_DENSE + _KERNELS_EXPERTS * sparse + 1 * first + 2 * last
    return LayerCosts(
        fixed_s=kernels * assumed.kernel_s + steps * link.latency_s,
        token_s=2 * dense / matmul_per_s + elementwise + reduced_s,
        expert_token_s=2 * visited / matmul_per_s,
        output_s=2 * head / matmul_per_s + gathered_s,
        pair_s=np.full(config.layers, pair_s),
        cached_token_s=np.full(config.layers, max(kv_bytes / read_per_s, pair_s)),
        dense_read_s=(dense + head) * size / read_per_s,
        experts_read_s=all_experts * size / read_per_s,
        memory_bytes=(dense + all_experts + embedding + stored_head) * size,
        kv_bytes=np.full(config.layers, float(kv_bytes)),
        expert_share=config.expert_share,
    )


def workspace_bytes(config: TransformerConfig, tp: int, tokens: int, outputs: int) -> tuple[float, float]:
    """Activations that live at once on one device: on any stage, and what the last one needs besides."""
    widest = int(np.where(config.has_experts, config.top_k * config.expert_ffn, config.ffn).max())
    ffn = (2 if config.gated_ffn else 1) * widest // tp
    qkv = config.head_size * (config.heads // tp + 2 * config.kv_heads_per_device(tp))
    vectors = 2 * config.hidden + max(qkv + config.hidden, ffn)
    logits = 4 * -(-config.vocabulary // tp) * min(outputs, _LOGIT_PIECE_TOKENS)
    return float(tokens * vectors * config.dtype_bytes), float(logits)
