"""What int8 weights cost in accuracy and give in speed, beside fp32 in the same run, on one core.

python -m benchmarks.int8 [--tiny] [--repeats N] [--models DIR]

Accuracy: perplexity on held-out text of the small trained causal LMs (made by `penstock models make` in DIR, or in a
temporary folder). Speed: decoding a random Llama of 110 million parameters, in CPU seconds, interleaved. The limit is
four: int8 weights are a quarter of the bytes. --tiny: models trained for a few steps, and a small Llama.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import emit
from benchmarks.engine import BATCHES, CORE, OUTPUT, PROMPT, SIZES, TINY, Ours
from serving.models import make_shard, read_config
from serving.models.decoder import Decoder
from serving.models.linear import Precision
from serving.models.load import load_shard
from serving.small_models.language import perplexity
from serving.small_models.make import make_models
from serving.small_models.material import held_out_tokens
from serving.small_models.names import Name
from serving.small_models.random import make_random

MODELS: tuple[Name, ...] = ("chat", "moe-chat")
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", type=Path, default=None, help="where `penstock models make` wrote the small models")
    options = parser.parse_args()
    os.sched_setaffinity(0, {CORE if (os.cpu_count() or 1) > CORE else 0})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trained = options.models or Path(folder)
        names = MODELS[:1] if options.tiny else MODELS
        make_models(trained, names, steps=2 if options.tiny else None)
        report: dict[str, Any] = {"benchmark": "int8", "perplexity": {name: _losses(trained / name) for name in names}}
        large = Path(folder) / "random"
        make_random(large, **(TINY if options.tiny else SIZES))
        report |= _speeds(large, 2 if options.tiny else options.repeats)
    emit(report)


def _losses(path: Path) -> dict[str, float]:
    tokens = held_out_tokens(path)
    found = {precision: round(perplexity(_load(path, precision), tokens), 4) for precision in PRECISIONS}
    return found | {"ratio": round(found["int8"] / found["fp32"], 5)}


def _load(path: Path, precision: Precision) -> Decoder:
    config = read_config(path)
    model = load_shard(path, config, make_shard(config.sizes, 1, 1, 0), precision=precision)
    assert isinstance(model, Decoder)
    return model


def _speeds(path: Path, repeats: int) -> dict[str, Any]:
    engines = {precision: Ours(path, precision) for precision in PRECISIONS}
    found: dict[str, dict[str, list[float]]] = {str(b): {p: [] for p in PRECISIONS} for b in BATCHES}
    for repeat in range(repeats + 1):
        for batch in BATCHES:
            for precision, engine in engines.items():
                one = engine.ask(op="generate", batch=batch, prompt=PROMPT, output=1, seed=repeat)["cpu"]
                many = engine.ask(op="generate", batch=batch, prompt=PROMPT, output=OUTPUT + 1, seed=repeat)["cpu"]
                if repeat:  # the first warms up
                    found[str(batch)][precision].append(batch * OUTPUT / (many - one))
    speeds = {batch: {p: round(statistics.median(v), 1) for p, v in by.items()} for batch, by in found.items()}
    ratios = {
        batch: round(statistics.median(a / b for a, b in zip(by["int8"], by["fp32"], strict=True)), 3)
        for batch, by in found.items()
    }
    return {"decode_tokens_per_s": speeds, "ratio": ratios, "limit": 4.0, "repeats": repeats}


if __name__ == "__main__":
    main()
