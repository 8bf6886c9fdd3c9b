"""What tests with vLLM's CPU build share: models that its kernels know, and servers that are asked alike."""

import json
import time
import urllib.request

from benchmarks.harness.server import write_config as write_server_config
from benchmarks.harness.server import write_plan
from benchmarks.peers.environment import peer_python
from placement.files import write_json
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from serving.small_models.random import make_random

GIGABYTE = 2**30
PROMPT = "def main(items):"


def make_models(folder):
    """Two models with random weights, of head sizes that vLLM's CPU kernels know."""
    for seed, name in enumerate(("one", "two")):
        make_random(folder / name, hidden=128, layers=2, heads=4, kv_heads=2, ffn=256, vocabulary=512, seed=seed)
    return folder


def write(folder, models, entries, groups, devices=2):
    generation = Generation((StepCost(fixed=0.02),), (2048.0,))
    profile = Profile((ShapeProfile(1, 1, (Bytes(2**20),), generation=generation, wake=0.25),))
    write_json(folder / "profiles.json", {entry["name"]: profile for entry in entries})
    if groups:
        write_plan(folder / "plan.json", [{"tp": 1, "pp": 1} | group for group in groups])
    named = [{"path": str(models / "one"), "slo": {"ttft": "60s", "tpot": "10s"}} | entry for entry in entries]
    node = {"name": "local", "devices": devices, "kind": "cpu", "memory": 4 * GIGABYTE, "host_memory": 8 * GIGABYTE}
    cluster = {"nodes": [node]}
    return write_server_config(folder / "config.yaml", devices, named, profiles="profiles.json", cluster=cluster)


def engine():
    return {"kind": "vllm", "python": str(peer_python("vllm")), "arguments": ["--enforce-eager"]}


def complete(server, model, tokens=24, **more):
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more
    return server.ask("/v1/completions", body)


def open_stream(server, model, tokens):
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body | {"stream": True}).encode(),
        {"content-type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=60)


def read_stream(server, model, tokens):
    """(moment, event) of each."""
    with open_stream(server, model, tokens) as answer:
        return [(time.monotonic(), json.loads(line[5:])) for line in answer if line.startswith(b"data: {")]
