"""The built-in problem of `penstock compare`: sixteen models of three sizes on a node of eight devices, in bursts.

Any one of them fits on one device, but a burst of one needs more than one device's speed, and there is not
memory for all of them everywhere: what parallel groups are for. Profiles are computed, nothing is measured.
The numbers were chosen, out of some sixteen settings, to show that: an illustration, no evidence of who is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.spec import traffic_from_spec
from placement.cluster import Cluster, Node
from placement.costs.analytic import TransformerConfig, analytic_profile
from placement.files import write_json
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, Shape, ShapeProfile, StepCost
from placement.units import Bytes
from placement.workload import Workload

KIND = "v100"
DEVICES = 8
MEMORY = Bytes(13 * 2**30)
SHAPES = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2))
OVERHEAD_S = 0.005
DURATION_S = 120.0
CV = 4.0
SLO_SCALE = 6.0
"""SLOs are this many times the latency on one idle device."""


@dataclass(frozen=True)
class Size:
    """So many models of one size, each with `rate` requests per second."""

    name: str
    count: int
    rate: float
    config: TransformerConfig


def _encoder(layers: int, hidden: int) -> TransformerConfig:
    return TransformerConfig(
        layers=layers,
        hidden=hidden,
        heads=32,
        ffn=4 * hidden,
        vocabulary=50_000,
        architecture="encoder",
        sequence_length=1024,
    )


SIZES = (
    Size("small", 7, 2.25, _encoder(24, 2048)),  # 1.3 billion weights
    Size("medium", 6, 1.125, _encoder(32, 2560)),  # 2.6 billion
    Size("large", 3, 0.45, _encoder(24, 4096)),  # 5.0 billion
)


def example_problem(seed: int = 0) -> Problem:
    """The problem with one draw of its traffic; another seed is another draw."""
    profiles = _profiles()
    models = tuple(
        Model(name, profiles[size.name], Slo(_slo_s(profiles[size.name]))) for size in SIZES for name in _names(size)
    )
    traffic = traffic_from_spec(_traffic(seed), [model.name for model in models])
    return Problem(_cluster(), models, Workload(traffic.arrival, traffic.model), OVERHEAD_S)


def write_example(folder: Path, seed: int = 0) -> Path:
    """The same as files, for the commands that read a problem; returns the problem's."""
    profiles = _profiles()
    models = [
        {"name": name, "profile": size.name, "slo": _slo_s(profiles[size.name])}
        for size in SIZES
        for name in _names(size)
    ]
    write_json(folder / "profiles.json", profiles)
    document = {
        "cluster": _cluster(),
        "models": models,
        "profiles": "profiles.json",
        "workload": _traffic(seed),
        "overhead": OVERHEAD_S,
    }
    write_json(folder / "problem.json", document)
    return folder / "problem.json"


def tiny_problem(generates: bool) -> Problem:
    """One model, one device, a few requests: enough to have everything compile that planning calls."""
    if generates:
        shape = ShapeProfile(1, 1, (Bytes(1),), generation=Generation((StepCost(fixed=0.1),), (1.0,)))
        slo = Slo(ttft=3.0, tpot=1.0)
    else:
        shape = ShapeProfile(1, 1, (Bytes(1),), {1: (1.0,), 2: (1.5,)})
        slo = Slo(3.0)
    arrival, model = np.arange(4.0), np.zeros(4, np.int32)
    tokens = np.full(4, 2, np.int32) if generates else None
    cluster = Cluster((Node("n", 1, Bytes(2**20)),))
    models = (Model("m", Profile((shape,)), slo),)
    return Problem(cluster, models, Workload(arrival, model, tokens, tokens))


def _profiles() -> dict[str, Profile]:
    return {
        size.name: analytic_profile(size.config, KIND, SHAPES, node_devices=DEVICES, memory_bytes=int(MEMORY))
        for size in SIZES
    }


def _cluster() -> Cluster:
    return Cluster((Node("n0", DEVICES, MEMORY, KIND),))


def _names(size: Size) -> list[str]:
    return [f"{size.name}-{index}" for index in range(size.count)]


def _slo_s(profile: Profile) -> float:
    alone = profile.find(Shape(1, 1), KIND, "node")
    assert alone is not None
    return round(SLO_SCALE * alone.latency(), 3)


def _traffic(seed: int) -> dict[str, Any]:
    rates = {name: size.rate for size in SIZES for name in _names(size)}
    return {"kind": "gamma", "duration": DURATION_S, "seed": seed, "rates": rates, "cv": CV}
