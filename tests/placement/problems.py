"""Planning problems for tests: a factory of small ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.arrivals import gamma_arrivals
from placement.cluster import Cluster, Node
from placement.problem import Model, Objective, Problem, Slo
from placement.profile import Profile, ShapeProfile
from placement.units import Bytes
from placement.workload import Workload

GB = 10**9


def profile(
    seconds: float, memory: int, shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 2), (2, 1), (1, 4))
) -> Profile:
    """Time and memory divided over the devices of a shape, at a cost of 5% a doubling; batches of 2 cost 1.8."""
    entries = []
    for tp, pp in shapes:
        stage = seconds / (tp * pp) * 1.05 ** np.log2(tp * pp)
        entries.append(
            ShapeProfile(
                tp=tp,
                pp=pp,
                stage_memory=(Bytes(memory // (tp * pp)),) * pp,
                stage_latency={1: (stage,) * pp, 2: (1.8 * stage,) * pp},
            )
        )
    return Profile(tuple(entries))


def make_problem(
    models: int = 6,
    nodes: Sequence[Node] = (Node("n0", 4, Bytes(4 * GB)),),
    *,
    rate: float = 2.0,
    cv: float = 3.0,
    duration: float = 60.0,
    slo: float = 0.8,
    memory: int = GB,
    seconds: float = 0.1,
    objective: Objective = "overall",
    seed: int = 0,
) -> Problem:
    """`models` alike, each with bursty traffic of its own."""
    same = profile(seconds, memory)
    streams = [gamma_arrivals(rate, cv, duration, np.random.default_rng([seed, m])) for m in range(models)]
    arrival = np.concatenate(streams)
    model = np.repeat(np.arange(models, dtype=np.int32), [len(stream) for stream in streams])
    order = np.argsort(arrival, kind="stable")
    return Problem(
        Cluster(tuple(nodes)),
        tuple(Model(f"m{m}", same, Slo(slo)) for m in range(models)),
        Workload(arrival[order], model[order]),
        objective=objective,
    )
