"""The smallest server there is, and closed-loop load for it: one tiny encoder, `noop`, alone on each device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.encoder import make_random_encoder
from benchmarks.harness.fidelity_worlds import TINY_ENCODER
from benchmarks.harness.world import World, make_world
from placement.plan import Group, Plan
from placement.profile import Profile, ShapeProfile
from placement.units import Bytes

LOAD = Path(__file__).parents[1] / "peers" / "http_load.py"
SIZES = (1, 2, 4, 8, 16)
"""Of batches."""


def small_world(folder: Path, devices: int, pass_s: float, **more: Any) -> tuple[World, Plan]:
    """A pass takes `pass_s` by its profile, whatever the batch; `more` is what else the configuration says."""
    make_random_encoder(folder / "noop", **TINY_ENCODER)
    latency: dict[int, tuple[float, ...]] = dict.fromkeys(SIZES, (pass_s,))
    profiles = {"noop": Profile((ShapeProfile(1, 1, (Bytes(2**20),), latency),))}
    entries = [{"name": "noop", "path": str(folder / "noop"), "slo": 5.0}]
    world = make_world(folder, entries, devices, profiles=profiles, **more)
    return world, Plan(tuple(Group((f"local/{number}",), 1, 1, ("noop",)) for number in range(devices)))


def ask(port: int, connections: int, seconds: float, cores: Sequence[int]) -> list[dict[str, float]]:
    """A process on each of the cores asks over so many connections; what each saw (peers/http_load.py)."""
    asking = [
        subprocess.Popen(
            [sys.executable, str(LOAD), str(port), str(connections), str(seconds), str(core)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in cores
    ]
    return [json.loads(one.communicate(timeout=seconds + 60)[0]) for one in asking]


def own_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
