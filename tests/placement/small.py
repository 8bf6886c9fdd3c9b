"""A small problem for tests of planning: models alike, of which two fit on a device, and bursty traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placement.cluster import Cluster
from placement.files import convert
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.vary import gamma_workload

GIB = 2**30


def small_problem(models: int = 4, devices: int = 4, rate: float = 3.0, names: tuple[str, ...] = ()) -> Problem:
    """Half a minute; `names` stand in for the first models' own."""
    shapes = [
        {"tp": 1, "pp": 1, "stage_latency": {"1": [0.1]}, "stage_memory": [GIB]},
        {"tp": 1, "pp": 2, "stage_latency": {"1": [0.052] * 2}, "stage_memory": [GIB // 2] * 2},
        {"tp": 2, "pp": 1, "stage_latency": {"1": [0.06]}, "stage_memory": [GIB // 2]},
        {"tp": 1, "pp": 4, "stage_latency": {"1": [0.028] * 4}, "stage_memory": [GIB // 4] * 4},
    ]
    profile = convert({"shapes": shapes}, Profile, "small")
    half = devices // 2
    nodes = [{"name": "n0", "devices": devices - half, "memory": 2 * GIB}]
    nodes += [{"name": "n1", "devices": half, "memory": 2 * GIB}] if half else []
    cluster = convert({"nodes": nodes}, Cluster, "small")
    own = [*names, *(f"m{number}" for number in range(len(names), models))]
    workload = gamma_workload(dict.fromkeys(own, rate), 2.0, 30.0, seed=7)
    return Problem(cluster, tuple(Model(name, profile, Slo(0.5)) for name in own), workload)


def chat_problem() -> Problem:
    """Two generating models on two devices, ten seconds."""
    cost = {"fixed": 0.005, "weights": 0.01, "prefill_token": 1e-4, "sequence": 1e-4, "cached_token": 1e-7}
    generation = {"stages": [cost], "kv_bytes_per_token": [1024]}
    profile = convert(
        {"shapes": [{"tp": 1, "pp": 1, "stage_memory": [GIB], "generation": generation}]}, Profile, "small"
    )
    cluster = convert({"nodes": [{"name": "n", "devices": 2, "memory": 4 * GIB}]}, Cluster, "small")
    models = tuple(Model(name, profile, Slo(ttft=0.5, tpot=0.05)) for name in ("chat", "code"))
    workload = gamma_workload({model.name: 2.0 for model in models}, 1.0, 10.0, seed=3)
    tokens = np.full(len(workload), 20, np.int32)
    return Problem(cluster, models, replace(workload, prompt_tokens=tokens, output_tokens=tokens))
