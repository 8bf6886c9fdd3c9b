"""How the planner's cost grows: 64 devices and 60 models, and 1,000 devices and 500 models, against their limits.

    python -m benchmarks.planner_scale [--tiny]

Models of six sizes with the analytic profiles of a V100, power-law rates, CV 4, at about a third of the cluster's
capacity. The limits: 30 s of one core for the smaller, 10 minutes and 4 GiB for the larger. Prints one JSON line; CPU
seconds of the search, with the first compilation left out.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from loadgen.arrivals import gamma_arrivals
from loadgen.splits import power_law_split
from placement.cluster import Cluster, Node
from placement.costs.analytic import TransformerConfig, analytic_profile
from placement.planner import default_steps, make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile, Shape
from placement.search.effort import Effort
from placement.units import Bytes
from placement.workload import Workload

SHAPES = [Shape(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 16]
SIZES = ((24, 1024), (24, 2048), (32, 2560), (32, 4096), (24, 1536), (36, 2048))
LIMITS = {(64, 60): 30.0, (1000, 500): 600.0}
NODE_DEVICES = 8
MEMORY = Bytes(13 * 2**30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="8 devices and 6 models: a check that it runs")
    tiny = parser.parse_args().tiny
    worlds = {(8, 6): 30.0} if tiny else LIMITS
    make_plan(make_problem(8, 6, 5.0), effort=Effort(steps=1))  # compiles
    rows: dict[str, dict[str, Any]] = {}
    for (devices, models), limit_s in worlds.items():
        problem = make_problem(devices, models, 5.0 if tiny else 60.0)
        begin = time.process_time()
        plan = make_plan(problem, effort=Effort(steps=20 if tiny else default_steps(problem)))
        seconds = time.process_time() - begin
        rows[f"{devices} devices, {models} models"] = {
            "requests": len(problem.workload),
            "cpu_s": round(seconds, 1),
            "limit_s": limit_s,
            "ratio_to_limit": round(seconds / limit_s, 3),
            "groups": len(plan.groups),
            "attainment": round(plan.planner["attainment"], 5),
            "steps": plan.planner["steps"],
        }
        note(str(rows))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    emit(
        {
            "benchmark": "planner_scale",
            "ratio_to_limit": max(row["ratio_to_limit"] for row in rows.values()),
            "peak_memory_gib": round(peak / 2**30, 2),
            "memory_limit_gib": 4,
            "worlds": rows,
        }
    )


def make_problem(devices: int, models: int, duration_s: float) -> Problem:
    profiles = [_profile(layers, hidden) for layers, hidden in SIZES]
    entries = tuple(
        Model(f"m{index}", profile, Slo(5 * profile.shapes[0].latency()))
        for index, profile in ((index, profiles[index % len(profiles)]) for index in range(models))
    )
    alone = np.array([model.profile.shapes[0].latency() for model in entries])
    share = power_law_split(1.0, models, 0.5)
    rates = share * (devices / 3) / float((share * alone).sum())
    streams = [
        gamma_arrivals(float(rate), 4.0, duration_s, np.random.default_rng([0, index]))
        for index, rate in enumerate(rates)
    ]
    arrival = np.concatenate(streams)
    model = np.repeat(np.arange(models, dtype=np.int32), [len(stream) for stream in streams])
    order = np.argsort(arrival, kind="stable")
    nodes = tuple(
        Node(f"n{n}", min(NODE_DEVICES, devices - n * NODE_DEVICES), MEMORY, kind="v100")
        for n in range(-(-devices // NODE_DEVICES))
    )
    return Problem(Cluster(nodes), entries, Workload(arrival[order], model[order]), objective="overall")


def _profile(layers: int, hidden: int) -> Profile:
    config = TransformerConfig(
        layers=layers, hidden=hidden, heads=16, ffn=4 * hidden, vocabulary=32_000, architecture="encoder"
    )
    return analytic_profile(config, "v100", SHAPES, (1, 2, 4), node_devices=NODE_DEVICES)


if __name__ == "__main__":
    main()
