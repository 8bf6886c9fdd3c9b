"""One engine step as arrays: what the leader sends to every shard of the group, and what the last stage sends back.

Carries all that a shard needs, so shards keep nothing about sequences but the cache itself. No torch here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving.engine.scheduler import Chunk
from serving.sampling import SamplingRows, TokenLogprobs, build_rows

Array = NDArray[Any]


class GenerateStep(msgspec.Struct, frozen=True, tag="generate"):
    """Chunks of several sequences side by side; tokens of a sequence lie together, in order."""

    number: int
    model: str
    tokens: np.ndarray
    """int32 [tokens]"""
    positions: np.ndarray
    """int32 [tokens]"""
    slots: np.ndarray
    """int64 [tokens]: block x block_tokens + place in it, where each token's key and value go."""
    block_tables: np.ndarray
    """int32 [sequences, blocks], garbage beyond what a sequence uses."""
    query_starts: np.ndarray
    """int32 [sequences + 1]"""
    context_lens: np.ndarray
    """int32 [sequences], with this step's tokens."""
    rows: np.ndarray
    """int64 [sampled]: the tokens after which one is sampled."""
    sampling: SamplingRows | None
    """None when nothing is sampled."""


class PassStep(msgspec.Struct, frozen=True, tag="pass"):
    """Whole inputs of a one-pass model side by side."""

    number: int
    model: str
    tokens: np.ndarray
    """int32 [tokens]"""
    positions: np.ndarray
    """int32 [tokens]"""
    kinds: np.ndarray
    """int32 [tokens]: 1 for those of a second sentence."""
    starts: np.ndarray
    """int32 [inputs + 1]"""


class GenerateResult(msgspec.Struct, frozen=True, tag="generate"):
    """A token for each of the step's `rows`."""

    number: int
    model: str
    tokens: np.ndarray
    failed: np.ndarray
    """bool [sampled]: no token could be chosen."""
    logprobs: tuple[TokenLogprobs | None, ...] | None = None


class PassResult(msgspec.Struct, frozen=True, tag="pass"):
    """A row of numbers for each input."""

    number: int
    model: str
    values: np.ndarray
    """float32 [inputs, width]"""


Step = GenerateStep | PassStep
Result = GenerateResult | PassResult

_NOTHING = np.zeros(0, np.int64)


def build_generate_step(
    number: int, model: str, chunks: list[Chunk], block_tokens: int, eos_token_ids: tuple[int, ...]
) -> GenerateStep:
    """Decoding sequences, the common case, cost a handful of array operations for all of them."""
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    context = starts + counts
    query_starts = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    owner = np.repeat(np.arange(len(chunks)), counts)
    positions = np.arange(len(owner), dtype=np.int32) - query_starts[owner] + starts[owner]
    tables = _tables(chunks, -(-int(context.max()) // block_tokens))
    slots = tables[owner, positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens
    sampled = [index for index, chunk in enumerate(chunks) if chunk.samples]
    rows = query_starts[1:][sampled].astype(np.int64) - 1 if sampled else _NOTHING
    sequences = [chunks[index].sequence for index in sampled]
    return GenerateStep(
        number=number,
        model=model,
        tokens=_tokens(chunks, len(owner)),
        positions=positions,
        slots=slots,
        block_tables=tables,
        query_starts=query_starts,
        context_lens=context,
        rows=rows,
        sampling=build_rows(sequences, eos_token_ids) if sequences else None,
    )


def build_pass_step(number: int, model: str, inputs: list[list[int]], kinds: list[list[int]]) -> PassStep:
    starts = np.zeros(len(inputs) + 1, np.int32)
    np.cumsum([len(tokens) for tokens in inputs], out=starts[1:])
    return PassStep(
        number=number,
        model=model,
        tokens=np.array([token for tokens in inputs for token in tokens], np.int32),
        positions=np.concatenate([np.arange(len(tokens), dtype=np.int32) for tokens in inputs]),
        kinds=np.array([kind for row in kinds for kind in row], np.int32),
        starts=starts,
    )


def encode_array(value: Any) -> Any:
    """For msgspec: an array as its dtype, shape and bytes."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def decode_array(kind: type, value: Any) -> Any:
    """The other way; np.frombuffer refuses what is not plain numbers."""
    if kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)
    raise NotImplementedError(f"{kind} cannot be received")


def _tables(chunks: list[Chunk], width: int) -> NDArray[np.int32]:
    tables = np.full((len(chunks), width), -1, np.int32)
    for row, chunk in enumerate(chunks):
        known = chunk.sequence.table[:width]
        tables[row, : len(known)] = known
    return tables


def _tokens(chunks: list[Chunk], total: int) -> NDArray[np.int32]:
    if total == len(chunks):
        return np.array([chunk.sequence.tokens[chunk.start] for chunk in chunks], np.int32)
    parts = [chunk.sequence.tokens[chunk.start : chunk.start + chunk.count] for chunk in chunks]
    return np.array([token for part in parts for token in part], np.int32)
