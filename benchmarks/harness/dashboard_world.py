"""A pool of emulated devices with many models, for looking at it: some groups are pipelines, all models answer in one
pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness.encoder import make_random_encoder
from benchmarks.harness.fidelity_worlds import PASS_S, TINY_ENCODER, one_pass_profile
from benchmarks.harness.world import World, make_world
from placement.plan import Group, Plan

STAGES = 4
EACH = 8
"""Models on a group, at most."""


def pool_world(folder: Path, devices: int, models: int, **more: Any) -> World:
    """All models are of one directory: what they answer does not matter here."""
    path = folder / "models" / "encoder"
    make_random_encoder(path, **TINY_ENCODER)
    names = model_names(models)
    entries = [{"name": name, "path": str(path), "slo": 5 * PASS_S[name.partition("-")[0]]} for name in names]
    profiles = {name: one_pass_profile(name) for name in names}
    return make_world(folder, entries, devices, profiles=profiles, workers={"kind": "emulated"}, **more)


def pool_plan(devices: int, models: int) -> Plan:
    """Half of the devices are pipelines of four, as far as they go; models are dealt to the groups in turn."""
    names, held = [f"local/{number}" for number in range(devices)], model_names(models)
    piped = devices // 2 // STAGES * STAGES
    cuts = [names[at : at + STAGES] for at in range(0, piped, STAGES)] + [[name] for name in names[piped:]]
    each = max(min(EACH, models), -(-models // len(cuts)))
    return Plan(
        tuple(
            Group(tuple(cut), 1, len(cut), tuple(dict.fromkeys(held[(place * each + n) % models] for n in range(each))))
            for place, cut in enumerate(cuts)
        )
    )


def model_names(models: int) -> list[str]:
    sizes = list(PASS_S)
    return [f"{sizes[number % len(sizes)]}-{number // len(sizes)}" for number in range(models)]
