"""Where each parameter of a shard lies in the files: tensor names of every family, and which slice is this device's.

A parameter is one or several pieces laid on top of each other (query, key and value become one matrix). The same
table read backwards writes a model (`checkpoint.write_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from placement.costs.transformer import TransformerConfig
from serving.models.config import ModelConfig
from serving.models.shard import Shard


@dataclass(frozen=True)
class Piece:
    """A range [start, stop) of one dimension of a stored tensor; all of it where `dim` is None."""

    name: str
    shape: tuple[int, ...]
    """Of the whole stored tensor."""
    dim: int | None = None
    start: int = 0
    stop: int = 0
    transpose: bool = False
    """Stored as [inputs, outputs]."""


@dataclass(frozen=True)
class Source:
    """The pieces of one parameter, top to bottom, and how many rows of zeros follow them."""

    pieces: tuple[Piece, ...]
    padding: int = 0


@dataclass(frozen=True)
class _Names:
    """What one family calls its tensors; `{}` is the layer."""

    embedding: str
    layer: str
    query: str
    key: str
    value: str
    output: str
    gate: str
    up: str
    down: str
    first_norm: str
    second_norm: str
    norm: str
    head: str


_LLAMA = _Names(
    embedding="model.embed_tokens",
    layer="model.layers.{}.",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    first_norm="input_layernorm",
    second_norm="post_attention_layernorm",
    norm="model.norm",
    head="lm_head",
)
_EXPERT_PARTS: Mapping[str, tuple[str, str, str]] = {
    "mixtral": ("w1", "w3", "w2"),
    "qwen3_moe": ("gate_proj", "up_proj", "down_proj"),
}


def decoder_sources(config: ModelConfig, shard: Shard) -> dict[str, Source]:
    """For each parameter of this shard of a Decoder, by its name there."""
    return _gpt2(config, shard) if config.family == "gpt2" else _llama_like(config, shard)


def _llama_like(config: ModelConfig, shard: Shard) -> dict[str, Source]:
    sizes, names = config.sizes, _LLAMA
    cut = _Cut(sizes, shard)
    found: dict[str, Source] = {}
    if shard.is_first:
        found["embedding.weight"] = cut.vocabulary(f"{names.embedding}.weight")
    for index, layer in enumerate(shard.layers):
        ours, theirs = f"layers.{index}.", names.layer.format(layer)
        parts = (theirs + names.query, theirs + names.key, theirs + names.value)
        found[ours + "attention.qkv.weight"] = Source(cut.qkv(*(f"{part}.weight" for part in parts)))
        if config.qkv_bias:
            found[ours + "attention.qkv.bias"] = Source(cut.qkv(*(f"{part}.bias" for part in parts), bias=True))
        found[ours + "attention.output.weight"] = cut.heads_in(f"{theirs}{names.output}.weight")
        if config.qk_norm:
            for norm in ("q_norm", "k_norm"):
                found[f"{ours}attention.{norm}.weight"] = whole(f"{theirs}self_attn.{norm}.weight", sizes.head_size)
        found[ours + "first_norm.weight"] = whole(f"{theirs}{names.first_norm}.weight", sizes.hidden)
        found[ours + "second_norm.weight"] = whole(f"{theirs}{names.second_norm}.weight", sizes.hidden)
        if sizes.has_experts[layer]:
            found |= _experts(config, shard, layer, ours + "feedforward.")
        else:
            parts = (theirs + names.gate, theirs + names.up, theirs + names.down)
            found |= cut.gated(ours + "feedforward.", parts, sizes.ffn)
    if shard.is_last:
        found["norm.weight"] = whole(f"{names.norm}.weight", sizes.hidden)
        head = names.embedding if sizes.tied_embeddings else names.head
        found["head.weight"] = cut.vocabulary(f"{head}.weight")
    return found


def _experts(config: ModelConfig, shard: Shard, layer: int, ours: str) -> dict[str, Source]:
    """The matrices of all experts that this device has, on top of each other."""
    sizes = config.sizes
    held = [expert_sources(config, shard, layer, expert) for expert in shard.held_experts(sizes, layer)]
    found = {f"{ours}router.weight": whole(f"{_expert_block(config, layer)}gate.weight", sizes.experts, sizes.hidden)}
    for part in ("up", "down"):
        found[f"{ours}experts.{part}"] = Source(tuple(piece for one in held for piece in one[part].pieces))
    return found


def expert_sources(config: ModelConfig, shard: Shard, layer: int, expert: int) -> dict[str, Source]:
    """`up`, with the gate on top, and `down` of one expert: this device's slice, or all of it where experts are
    placed."""
    stored = f"{_expert_block(config, layer)}experts.{expert}."
    gate, up, down = (stored + part for part in _EXPERT_PARTS[config.family])
    cut = _Cut(config.sizes, shard if shard.experts is None else replace(shard, tp=1, tp_rank=0, experts=None))
    found = cut.gated("", (gate, up, down), config.sizes.expert_ffn)
    return {part: found[f"{part}.weight"] for part in ("up", "down")}


def _expert_block(config: ModelConfig, layer: int) -> str:
    return _LLAMA.layer.format(layer) + ("block_sparse_moe." if config.family == "mixtral" else "mlp.")


def _gpt2(config: ModelConfig, shard: Shard) -> dict[str, Source]:
    """Linear weights are stored as [inputs, outputs]; query, key and value are one tensor already."""
    sizes, cut = config.sizes, _Cut(config.sizes, shard)
    hidden, ffn = sizes.hidden, sizes.ffn
    found: dict[str, Source] = {}
    if shard.is_first:
        found["embedding.weight"] = cut.vocabulary("transformer.wte.weight")
        found["positions.weight"] = whole("transformer.wpe.weight", sizes.positions, hidden)
    for index, layer in enumerate(shard.layers):
        ours, theirs = f"layers.{index}.", f"transformer.h.{layer}."
        start, stop = (edge * sizes.head_size for edge in shard.share(sizes.heads))
        ranges = [(part * hidden + start, part * hidden + stop) for part in range(3)]
        for kind, shape in (("weight", (hidden, 3 * hidden)), ("bias", (3 * hidden,))):
            name, matrix = f"{theirs}attn.c_attn.{kind}", kind == "weight"
            pieces = tuple(Piece(name, shape, int(matrix), low, high, transpose=matrix) for low, high in ranges)
            found[f"{ours}attention.qkv.{kind}"] = Source(pieces)
        found[ours + "attention.output.weight"] = _stored_transposed(
            f"{theirs}attn.c_proj.weight", (hidden, hidden), 0, (start, stop)
        )
        width = shard.share(ffn)
        up = f"{theirs}mlp.c_fc."
        found[ours + "feedforward.up.weight"] = _stored_transposed(f"{up}weight", (hidden, ffn), 1, width)
        found[ours + "feedforward.up.bias"] = Source((Piece(f"{up}bias", (ffn,), 0, *width),))
        down = f"{theirs}mlp.c_proj."
        found[ours + "feedforward.down.weight"] = _stored_transposed(f"{down}weight", (ffn, hidden), 0, width)
        if shard.tp_rank == 0:
            found[ours + "attention.output.bias"] = whole(f"{theirs}attn.c_proj.bias", hidden)
            found[ours + "feedforward.down.bias"] = whole(f"{down}bias", hidden)
        for norm, stored in (("first_norm", "ln_1"), ("second_norm", "ln_2")):
            found |= _layer_norm(ours + norm, theirs + stored, hidden)
    if shard.is_last:
        found |= _layer_norm("norm", "transformer.ln_f", hidden)
        found["head.weight"] = cut.vocabulary("transformer.wte.weight" if sizes.tied_embeddings else "lm_head.weight")
    return found


def encoder_sources(config: ModelConfig, shard: Shard) -> dict[str, Source]:
    """For each parameter of this shard of an Encoder, by its name there."""
    sizes, cut = config.sizes, _Cut(config.sizes, shard)
    hidden, prefix = sizes.hidden, "bert." if config.task == "classify" else ""
    found: dict[str, Source] = {}
    if shard.is_first:
        stored = f"{prefix}embeddings."
        found["embedding.weight"] = cut.vocabulary(f"{stored}word_embeddings.weight")
        found["positions.weight"] = whole(f"{stored}position_embeddings.weight", sizes.positions, hidden)
        found["kinds.weight"] = Source((Piece(f"{stored}token_type_embeddings.weight", (2, hidden)),))
        found |= _layer_norm("embedding_norm", f"{stored}LayerNorm", hidden)
    for index, layer in enumerate(shard.layers):
        ours, theirs = f"layers.{index}.", f"{prefix}encoder.layer.{layer}."
        parts = [f"{theirs}attention.self.{part}" for part in ("query", "key", "value")]
        for kind in ("weight", "bias"):
            pieces = cut.qkv(*(f"{part}.{kind}" for part in parts), bias=kind == "bias")
            found[f"{ours}attention.qkv.{kind}"] = Source(pieces)
        output, up, down = (f"{theirs}{part}.dense." for part in ("attention.output", "intermediate", "output"))
        found[ours + "attention.output.weight"] = cut.heads_in(f"{output}weight")
        width = shard.share(sizes.ffn)
        found[ours + "feedforward.up.weight"] = Source((Piece(f"{up}weight", (sizes.ffn, hidden), 0, *width),))
        found[ours + "feedforward.up.bias"] = Source((Piece(f"{up}bias", (sizes.ffn,), 0, *width),))
        found[ours + "feedforward.down.weight"] = Source((Piece(f"{down}weight", (hidden, sizes.ffn), 1, *width),))
        if shard.tp_rank == 0:
            found[ours + "attention.output.bias"] = whole(f"{output}bias", hidden)
            found[ours + "feedforward.down.bias"] = whole(f"{down}bias", hidden)
        found |= _layer_norm(ours + "first_norm", f"{theirs}attention.output.LayerNorm", hidden)
        found |= _layer_norm(ours + "second_norm", f"{theirs}output.LayerNorm", hidden)
    if shard.is_last and config.task == "classify":
        found["pooler.weight"] = whole(f"{prefix}pooler.dense.weight", hidden, hidden)
        found["pooler.bias"] = whole(f"{prefix}pooler.dense.bias", hidden)
        found["classifier.weight"] = whole("classifier.weight", len(config.labels), hidden)
        found["classifier.bias"] = whole("classifier.bias", len(config.labels))
    return found


def whole(name: str, *shape: int) -> Source:
    return Source((Piece(name, shape),))


def _layer_norm(ours: str, theirs: str, hidden: int) -> dict[str, Source]:
    return {f"{ours}.{kind}": whole(f"{theirs}.{kind}", hidden) for kind in ("weight", "bias")}


def _stored_transposed(name: str, shape: tuple[int, int], dim: int, part: tuple[int, int]) -> Source:
    return Source((Piece(name, shape, dim, *part, transpose=True),))


@dataclass(frozen=True)
class _Cut:
    """The slices of one device for tensors stored as [outputs, inputs]."""

    sizes: TransformerConfig
    shard: Shard

    def vocabulary(self, name: str) -> Source:
        """Rows of the table, padded so that all devices have as many."""
        rows = self.sizes.vocabulary
        start, stop = self.shard.share(rows)
        padding = -(-rows // self.shard.tp) - (stop - start)
        return Source((Piece(name, (rows, self.sizes.hidden), 0, start, stop),), padding)

    def qkv(self, query: str, key: str, value: str, *, bias: bool = False) -> tuple[Piece, ...]:
        sizes, shard = self.sizes, self.shard
        shares = (shard.share(sizes.heads), shard.kv_share(sizes.kv_heads), shard.kv_share(sizes.kv_heads))
        heads = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        pieces = []
        for name, count, (start, stop) in zip((query, key, value), heads, shares, strict=True):
            rows = count * sizes.head_size
            shape = (rows,) if bias else (rows, sizes.hidden)
            pieces.append(Piece(name, shape, 0, start * sizes.head_size, stop * sizes.head_size))
        return tuple(pieces)

    def heads_in(self, name: str) -> Source:
        """Columns of the attention's output matrix: those of this device's heads."""
        width = self.sizes.head_size
        start, stop = self.shard.share(self.sizes.heads)
        shape = (self.sizes.hidden, self.sizes.heads * width)
        return Source((Piece(name, shape, 1, start * width, stop * width),))

    def gated(self, ours: str, parts: tuple[str, str, str], ffn: int) -> dict[str, Source]:
        """Gate and up as one matrix, and down."""
        gate, up, down = (f"{part}.weight" for part in parts)
        width, hidden = self.shard.share(ffn), self.sizes.hidden
        tops = tuple(Piece(name, (ffn, hidden), 0, *width) for name in (gate, up))
        return {
            f"{ours}up.weight": Source(tops),
            f"{ours}down.weight": Source((Piece(down, (hidden, ffn), 1, *width),)),
        }
