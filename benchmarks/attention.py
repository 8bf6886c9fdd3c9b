"""How fast does attention on a CPU core read the paged cache? Against torch's SDPA, and against the memory.

    python benchmarks/attention.py [--tiny]

One core, fp32. Decoding: a step of equal sequences whose blocks lie anywhere, in caches of many layers, so that no
cache of the processor holds them; `sdpa` has the same keys and values dense, one padded batch, nothing to look up;
`limit` is the time to add up as many bytes in order. Prefill and storing: `sdpa` with the same keys dense, `index_put`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.cases import emit, note
from serving.attention import choose, torch_paged

BLOCK_SIZE = 16
HEAD_DIM = 64
KV_HEADS = 8
ROUNDS = 15
WORKING_SET = 192e6  # bytes; several times what the processor's caches hold

ATTENTION = choose("cpu")


@dataclass(frozen=True)
class Layer:
    """One layer's cache, and the same keys and values dense: [batch, kv_heads, context, head_dim]."""

    caches: tuple[Tensor, Tensor]
    dense: tuple[Tensor, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tiny", action="store_true", help="small batches and contexts, few rounds: a check that it runs"
    )
    tiny = parser.parse_args().tiny
    torch.set_num_threads(1)
    rounds = 3 if tiny else ROUNDS
    decode = {}
    for group in (1, 4):
        for batch in (1, 2) if tiny else (1, 8, 32):
            for context in (32,) if tiny else (128, 512, 2048):
                name = f"group {group}, batch {batch}, context {context}"
                decode[name] = _decode(batch, context, group, rounds, 2e6 if tiny else WORKING_SET)
                note(f"{name}: {decode[name]}")
    prefill = {}
    for queries, cached in ((64, 0),) if tiny else ((128, 0), (512, 0), (2048, 0), (64, 448), (512, 1536)):
        prefill[f"{queries} after {cached}"] = _prefill(queries, cached, rounds)
    result = {
        "benchmark": "attention",
        "ratio_to_sdpa": _middle(decode, "ratio_to_sdpa"),
        "ratio_to_limit": _middle(decode, "ratio_to_limit"),
        "decode": decode,
        "prefill": prefill,
        "store": {str(tokens): _store(tokens, rounds) for tokens in ((8,) if tiny else (1, 32, 512))},
    }
    emit(result)


def _middle(cells: dict[str, dict[str, object]], ratio: str) -> float:
    return round(statistics.median(float(str(cell[ratio])) for cell in cells.values()), 2)


def _time(runs: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round, the runs taking turns; each is told a number that grows with every call."""
    seconds: dict[str, list[float]] = {label: [] for label in runs}
    calls = 0
    for number in range(rounds + 1):
        for label, run in runs.items():
            begin = time.perf_counter()
            run(calls)
            if number:  # the first round compiles
                seconds[label].append(time.perf_counter() - begin)
            calls += 1
    return seconds


def _decode(batch: int, context: int, group: int, rounds: int, working_set: float) -> dict[str, object]:
    """GB/s of keys and values that each way reads, and our ratios."""
    size = 2 * 4 * batch * context * KV_HEADS * HEAD_DIM
    blocks = batch * -(-context // BLOCK_SIZE)
    layers = [_layer(batch, context, blocks) for _ in range(max(2, min(48, int(working_set / size))))]
    tables = torch.randperm(blocks).view(batch, -1).int()
    starts, lens = torch.arange(batch + 1).int(), torch.full((batch,), context).int()
    query = torch.randn(batch, KV_HEADS * group, HEAD_DIM)

    def ours(call: int) -> None:
        caches = layers[call % len(layers)].caches
        ATTENTION.paged_attention(query, *caches, tables, starts, lens, scale=HEAD_DIM**-0.5)

    def sdpa(call: int) -> None:
        scaled_dot_product_attention(query[:, :, None], *layers[call % len(layers)].dense, enable_gqa=group > 1)

    def limit(call: int) -> None:
        for cache in layers[call % len(layers)].dense:
            cache.sum()

    rates = {
        label: [size / second / 1e9 for second in each]
        for label, each in _time({"ours": ours, "sdpa": sdpa, "limit": limit}, rounds).items()
    }
    middle = {label: statistics.median(each) for label, each in rates.items()}
    return {
        "gb_per_s": {label: round(value, 2) for label, value in middle.items()},
        "spread": {label: [round(min(each), 2), round(max(each), 2)] for label, each in rates.items()},
        "ratio_to_sdpa": round(middle["ours"] / middle["sdpa"], 2),
        "ratio_to_limit": round(middle["ours"] / middle["limit"], 2),
    }


def _layer(batch: int, context: int, blocks: int) -> Layer:
    cells, dense = (blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM), (batch, KV_HEADS, context, HEAD_DIM)
    return Layer((torch.randn(cells), torch.randn(cells)), (torch.randn(dense), torch.randn(dense)))


def _prefill(queries: int, cached: int, rounds: int) -> dict[str, object]:
    """Milliseconds of one chunk, four query heads to a key, paged and dense."""
    context, heads = queries + cached, 4 * KV_HEADS
    layer = _layer(1, context, -(-context // BLOCK_SIZE))
    tables = torch.randperm(len(layer.caches[0]))[None].int()
    starts, lens = torch.tensor([0, queries]).int(), torch.tensor([context]).int()
    query = torch.randn(queries, heads, HEAD_DIM)
    mask = None if cached == 0 else torch.ones(queries, context, dtype=torch.bool).tril(cached)

    def ours(_: int) -> None:
        ATTENTION.paged_attention(query, *layer.caches, tables, starts, lens, scale=HEAD_DIM**-0.5)

    def sdpa(_: int) -> None:
        dense = query.transpose(0, 1)[None]
        scaled_dot_product_attention(dense, *layer.dense, mask, is_causal=mask is None, enable_gqa=True)

    return _milliseconds({"ours": ours, "sdpa": sdpa}, rounds)


def _store(tokens: int, rounds: int) -> dict[str, object]:
    """Milliseconds of storing one step's keys and values."""
    layer = _layer(1, 8192, 512)
    key, value = torch.randn(2, tokens, KV_HEADS, HEAD_DIM)
    slots = torch.randperm(512 * BLOCK_SIZE)[:tokens]

    def ours(_: int) -> None:
        ATTENTION.store_kv(key, value, *layer.caches, slots)

    def index_put(_: int) -> None:
        torch_paged.store_kv(key, value, *layer.caches, slots)

    return _milliseconds({"ours": ours, "index_put": index_put}, rounds)


def _milliseconds(runs: dict[str, Callable[[int], object]], rounds: int) -> dict[str, object]:
    times = {label: [1e3 * second for second in each] for label, each in _time(runs, rounds).items()}
    middle = {label: statistics.median(each) for label, each in times.items()}
    peer = next(label for label in runs if label != "ours")
    return {
        "ms": {label: round(value, 3) for label, value in middle.items()},
        "spread": {label: [round(min(each), 3), round(max(each), 3)] for label, each in times.items()},
        f"ratio_to_{peer}": round(middle[peer] / middle["ours"], 2),
    }


if __name__ == "__main__":
    main()
