"""How fast the engine decodes and prefills on one core, against other engines with the same weights.

python -m benchmarks.engine [--tiny] [--repeats N] [--peers transformers,vllm,ctranslate2]

A random fp32 Llama of 110 million parameters. Peers are installed into environments of their own (once, under the
user's cache), run on the same core, and take turns with us within each repeat; figures are medians over repeats of
CPU seconds (the machine may be shared), decoding being what 32 more tokens cost. `bound` is what reading all weights
once per token allows at the memory bandwidth seen in the same run, and what the best matrix product allows at 32 rows.
--tiny: a small model, two repeats, and transformers alone, in this environment.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cases import emit
from benchmarks.peers import Peer, start_peer
from serving.engine import Generator, Limits, make_generator
from serving.engine.step import GenerateResult
from serving.models import make_shard, read_config
from serving.models.runner import Runner, make_runner
from serving.sampling import SamplingParams
from serving.small_models.random import make_random

CORE = 1
BATCHES = (1, 8, 32)
PROMPT = 32
OUTPUT = 32
PREFILL = 128
OVERHEAD_SEQUENCES = 32
SIZES: dict[str, Any] = {"hidden": 768, "layers": 12, "heads": 12, "ffn": 2048, "vocabulary": 32000}
TINY: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 8, "ffn": 128, "vocabulary": 512}


class Ours:
    """The engine and one shard in this process: no links, as the peers have none."""

    name = "penstock"

    def __init__(self, model: Path, precision: str = "fp32") -> None:
        config = read_config(model)
        shard = make_shard(config.sizes, 1, 1, 0)
        self._config = config
        self._runner: Runner = make_runner(model, config, shard, blocks=BLOCKS, precision=precision)  # type: ignore[arg-type]
        self._requests = 0

    def ask(self, **request: Any) -> dict[str, Any]:
        if request["op"] == "static":
            return self._continuous(request["requests"])
        random = np.random.default_rng(request["seed"])
        shape = (request["batch"], request["prompt"])
        prompts = random.integers(0, self._config.sizes.vocabulary, shape).tolist()
        engine = self._engine()
        wall, cpu = time.perf_counter(), time.process_time()
        for prompt in prompts:
            self._submit(engine, prompt, request["output"])
        self._run(engine)
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    def _continuous(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Whoever has arrived joins the next step."""
        engine = self._engine()
        random = np.random.default_rng(0)
        waiting = sorted(requests, key=lambda one: float(one["arrival"]))
        wall, cpu = time.perf_counter(), time.process_time()
        while waiting or engine.has_work():
            now = time.perf_counter() - wall
            while waiting and waiting[0]["arrival"] <= now:
                one = waiting.pop(0)
                prompt = random.integers(0, self._config.sizes.vocabulary, one["prompt"]).tolist()
                self._submit(engine, prompt, one["output"])
            if not engine.has_work():
                time.sleep(max(waiting[0]["arrival"] - now, 0))
                continue
            self._step(engine)
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    def _engine(self) -> Generator:
        sizes = self._config.sizes
        return make_generator(
            "m",
            vocabulary=sizes.vocabulary,
            max_positions=2048,
            eos_token_ids=(),
            blocks=BLOCKS,
            limits=Limits(512, 64),
        )

    def _submit(self, engine: Generator, prompt: list[int], output: int) -> None:
        self._requests += 1
        engine.submit(str(self._requests), prompt, SamplingParams(max_tokens=output, temperature=0.0))

    def _run(self, engine: Generator) -> None:
        while engine.has_work():
            self._step(engine)

    def _step(self, engine: Generator) -> None:
        result = self._runner.run(engine.begin(), None).result
        assert result is not None
        engine.complete(result)


BLOCKS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default="transformers,vllm,ctranslate2")
    options = parser.parse_args()
    core = CORE if (os.cpu_count() or 1) > CORE else 0
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    names = ["transformers"] if options.tiny else [name for name in options.peers.split(",") if name]
    repeats = 2 if options.tiny else options.repeats
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama"
        make_random(model, **(TINY if options.tiny else SIZES))
        peers = [start_peer(name, model, core, install=not options.tiny) for name in names]
        try:
            emit(measure(Ours(model), peers, repeats, options.tiny))
        finally:
            for peer in peers:
                peer.close()


def measure(ours: Ours, peers: list[Peer], repeats: int, tiny: bool) -> dict[str, Any]:
    everybody: list[Ours | Peer] = [ours, *peers]
    decode = {batch: _interleaved(everybody, repeats, partial(_decode, batch)) for batch in BATCHES}
    prefill = _interleaved(everybody, repeats, _prefill)
    report: dict[str, Any] = {
        "benchmark": "engine",
        "repeats": repeats,
        "decode_tokens_per_s": {str(batch): _summary(found) for batch, found in decode.items()},
        "prefill_128_ms": _summary({name: [1e3 * s for s in seconds] for name, seconds in prefill.items()}),
        "overhead_us": round(overhead_us(), 1),
        "bound": _bounds(tiny),
        "mixed_lengths": _mixed(ours, peers[0], 1 if tiny else 2, tiny),
    }
    report["ratio"] = {
        peer.name: {
            **{f"decode_{batch}": _ratio(found[ours.name], found[peer.name]) for batch, found in decode.items()},
            "prefill_128": _ratio(prefill[peer.name], prefill[ours.name]),
        }
        for peer in peers
    }
    return report


def _interleaved(
    everybody: list[Ours | Peer], repeats: int, once: Callable[[Ours | Peer, int], float]
) -> dict[str, list[float]]:
    for who in everybody:
        once(who, 10**6)
    found: dict[str, list[float]] = {who.name: [] for who in everybody}
    for repeat in range(repeats):
        for who in everybody:
            found[who.name].append(once(who, repeat))
        sys.stderr.write(f"\rrepeat {repeat + 1}/{repeats}   ")
    return found


def _decode(batch: int, who: Ours | Peer, seed: int) -> float:
    """Tokens per CPU second beyond the first of each sequence."""
    one = who.ask(op="generate", batch=batch, prompt=PROMPT, output=1, seed=seed)["cpu"]
    many = who.ask(op="generate", batch=batch, prompt=PROMPT, output=OUTPUT + 1, seed=seed)["cpu"]
    return float(batch * OUTPUT / (many - one))


def _prefill(who: Ours | Peer, seed: int) -> float:
    return float(who.ask(op="generate", batch=1, prompt=PREFILL, output=1, seed=seed)["cpu"])


def _mixed(ours: Ours, peer: Peer, repeats: int, tiny: bool) -> dict[str, Any]:
    """Requests of mixed lengths arriving over time: continuous batching against static batching with the peer."""
    random = np.random.default_rng(1)
    count = 8 if tiny else 40
    outputs = np.clip(random.lognormal(3.0, 0.9, count), 4, 128).astype(int)
    prompts = np.clip(random.lognormal(3.4, 0.7, count), 4, 128).astype(int)
    arrivals = np.cumsum(random.exponential(0.01 if tiny else 0.1, count))
    requests = [
        {"prompt": int(p), "output": int(o), "arrival": float(a)}
        for p, o, a in zip(prompts, outputs, arrivals, strict=True)
    ]
    found: dict[str, list[float]] = {ours.name: [], peer.name: []}
    for _ in range(repeats):
        for who in (ours, peer):
            answer = who.ask(op="static", requests=requests, max_batch=8)
            found[who.name].append(float(outputs.sum()) / answer["wall"])
    return {
        "tokens_per_s": _summary(found),
        "ratio_to_static": _ratio(found[ours.name], found[peer.name]),
        "requests": count,
    }


def overhead_us() -> float:
    """A step of 32 decoding sequences with everything but the model: median microseconds of CPU."""
    engine = make_generator("m", vocabulary=32000, max_positions=2048, eos_token_ids=(), blocks=4096)
    for index in range(OVERHEAD_SEQUENCES):
        engine.submit(str(index), [index] * 40, SamplingParams(max_tokens=2000, temperature=0.0))
    tokens = np.arange(OVERHEAD_SEQUENCES)
    failed = np.zeros(OVERHEAD_SEQUENCES, bool)
    taken = []
    for number in range(300):
        began = time.thread_time()
        step = engine.begin()
        assert step is not None
        rows = len(step.rows)
        engine.complete(GenerateResult(step.number, "m", tokens[:rows], failed[:rows]))
        if number > 20:
            taken.append(time.thread_time() - began)
    return 1e6 * statistics.median(taken)


def _bounds(tiny: bool) -> dict[str, float]:
    sizes = TINY if tiny else SIZES
    hidden, ffn = sizes["hidden"], sizes["ffn"]
    weights = sizes["layers"] * (4 * hidden**2 + 3 * hidden * ffn) + sizes["vocabulary"] * hidden
    big = torch.ones(8_000_000 if tiny else 100_000_000)
    seconds = min(_seconds(lambda: big.sum()) for _ in range(5))
    a, b = torch.ones(512, 1024), torch.ones(1024, 1024)
    flops = 2 * 512 * 1024 * 1024 / min(_seconds(lambda: a @ b) for _ in range(20))
    return {
        "decode_1": round(big.numel() / seconds / weights, 1),
        "decode_32": round(flops / (2 * weights), 1),
        "bandwidth_gb_per_s": round(4 * big.numel() / seconds / 1e9, 1),
        "gflops": round(flops / 1e9, 1),
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _summary(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"median": round(statistics.median(v), 2), "least": round(min(v), 2), "most": round(max(v), 2)}
        for name, v in found.items()
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios within each repeat."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


if __name__ == "__main__":
    main()
