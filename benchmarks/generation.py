"""How fast generating models are simulated, in engine steps a second, and whether what comes out is sane.

python -m benchmarks.generation [--tiny]

Llama-2-7B (computed profile) on four A100-80GB, the conversation trace of Azure 2023 at several rates. Peers,
in the same run: the plain Python reference on the trace's first requests, and the request rate that the
devices' compute allows when every fixed cost is shared by infinitely many. One JSON line on stdout. The trace
is read from $PENSTOCK_DATA (default: ../shared beside the checkout); --tiny needs none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.traces import read_azure
from placement.analytic import TransformerConfig, analytic_profile
from placement.cluster import Cluster
from placement.files import convert
from placement.generation import serve, simulate_generation
from placement.generation_reference import Reference
from placement.plan import Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.simulator import RULES
from placement.tables import Catalogue
from placement.workload import Workload

TARGET_STEPS_PER_S = 300_000
TRACE = "data/azure_llm_2023/azure2023_conv.csv.gz"
KIND = "a100-80gb"
DEVICES = 4
KV_BYTES = 55_000_000_000
LLAMA_2_7B = TransformerConfig(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000, gated_ffn=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="generated requests, a few seconds")
    tiny = parser.parse_args().tiny
    path = Path(os.environ.get("PENSTOCK_DATA", Path(__file__).parents[2] / "shared")) / TRACE
    if tiny:
        report = measure(_generated(300), rates=(1.0, 4.0), peer_requests=40)
    elif path.exists():
        trace = read_azure(path)
        workload = Workload(trace.arrival, trace.model, trace.prompt_tokens, trace.output_tokens)
        report = measure(workload, rates=(1.0, 2.0, 3.0, 4.0), peer_requests=200)
    else:
        report = {"skipped": f"no {path}; set PENSTOCK_DATA to the folder that holds {TRACE}"}
    sys.stdout.write(json.dumps({"benchmark": "generation", **report}) + "\n")


def measure(workload: Workload, rates: tuple[float, ...], peer_requests: int) -> dict[str, Any]:
    """Steps a second over all rates and both rules, attainment at each, and the peers."""
    profile = analytic_profile(LLAMA_2_7B, KIND, [(1, 1)], batches=())
    problem, plan = _world(profile, workload)
    catalogue = Catalogue(problem)
    serve(plan, workload.select(np.arange(10)), "deadline", 1, catalogue)  # compiled, or read from disk
    speeds, attainment = [], {}
    for rate in rates:
        faster = workload.faster(rate)
        for rule in RULES:
            began = time.perf_counter()
            served = serve(plan, faster, rule, 1, catalogue)
            speeds.append((served.steps, time.perf_counter() - began))
            outcome = simulate_generation(problem, plan, faster, rule, 1, catalogue)
            attainment[f"{rule} x{rate:g}"] = round(outcome.attainment, 4)
    steps_per_s = sum(steps for steps, _ in speeds) / sum(seconds for _, seconds in speeds)
    peer = _peer_steps_per_s(problem, plan, workload.select(np.arange(peer_requests)))
    finish = np.nanmax(serve(plan, workload.faster(1e6), "shortest-queue", 1, catalogue).answers.finish)
    return {
        "steps_per_s": round(steps_per_s),
        "slowest_steps_per_s": round(min(steps / seconds for steps, seconds in speeds)),
        "ratio": round(steps_per_s / TARGET_STEPS_PER_S, 4),
        "python_reference_steps_per_s": round(peer),
        "times_the_reference": round(steps_per_s / peer, 1),
        "steps": sum(steps for steps, _ in speeds),
        "requests_per_s": round(len(workload) / workload.duration, 3),
        "attainment": attainment,
        "saturated_requests_per_s": round(len(workload) / finish, 3),
        "share_of_compute_limit": round(len(workload) / finish / _limit_per_s(profile, workload), 4),
    }


def _world(profile: Profile, workload: Workload) -> tuple[Problem, Plan]:
    nodes = [{"name": "n", "devices": DEVICES, "kind": KIND, "memory": 76_000_000_000}]
    cluster = convert({"nodes": nodes}, Cluster, "benchmark")
    problem = Problem(cluster, (Model("chat", profile, Slo(ttft=1.0, tpot=0.1)),), workload)
    groups = [
        {"devices": [f"n/{i}"], "tp": 1, "pp": 1, "models": ["chat"], "kv_bytes": {"chat": KV_BYTES}}
        for i in range(DEVICES)
    ]
    return problem, convert({"groups": groups}, Plan, "benchmark")


def _peer_steps_per_s(problem: Problem, plan: Plan, workload: Workload) -> float:
    reference = Reference(problem, plan, workload, "deadline", 1)
    began = time.perf_counter()
    reference.serve()
    return reference.steps / (time.perf_counter() - began)


def _limit_per_s(profile: Profile, workload: Workload) -> float:
    """Requests a second if steps cost only what grows with their tokens."""
    generation = profile.shapes[0].generation
    assert generation is not None
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None
    (cost,) = generation.stages
    prompt, output = workload.prompt_tokens.astype(float), workload.output_tokens.astype(float)
    prefill_s = prompt * cost.prefill_token + cost.prefill_context * np.maximum(prompt - 512, 0) * prompt / 2
    decode_s = (output - 1) * (cost.sequence + cost.cached_token * (prompt + output / 2))
    return float(DEVICES / (prefill_s + decode_s).mean())


def _generated(count: int) -> Workload:
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(0.1, count))
    prompt, output = (
        rng.lognormal(6, 1, count).astype(np.int32) + 1,
        rng.geometric(1 / 60, count).astype(np.int32),
    )
    return Workload(arrival, np.zeros(count, np.int32), np.minimum(prompt, 4000), output)


if __name__ == "__main__":
    main()
