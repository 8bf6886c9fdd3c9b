"""The worlds of benchmarks.fidelity: models, goals, placements, and the traffic that is tried on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness.encoder import make_random_encoder
from benchmarks.harness.world import World, made_once, make_world, one_by_one
from placement.plan import Group, Plan
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.rules import Rule
from placement.units import Bytes
from serving.profiler.effort import FULL, QUICK
from serving.small_models.random import make_random

Sizes = dict[str, Any]
ENCODER: Sizes = {"hidden": 384, "layers": 8, "heads": 6, "ffn": 1536}
CHAT: Sizes = {"hidden": 384, "layers": 8, "heads": 6, "ffn": 1024, "vocabulary": 1024}
TINY_ENCODER: Sizes = {"hidden": 64, "layers": 2, "heads": 2, "ffn": 128}
TINY_CHAT: Sizes = {"hidden": 64, "layers": 2, "heads": 2, "ffn": 128, "vocabulary": 512}
CACHE_BYTES = 32 << 20
MEGABYTE = Bytes(2**20)
PASS_S = {"small": 0.1, "large": 0.2}
"""Of the emulated one-pass models."""
STAGE_LOSS = 1.08
"""How much longer the stages of an emulated pipeline take than the whole on one device."""


@dataclass(frozen=True)
class Load:
    """`rate` in shares of what the placement can do at cv 1."""

    rate: float
    cv: float


@dataclass(frozen=True)
class Setting:
    """A world with its placements and what is sent to it."""

    name: str
    make: Callable[[Path], World]
    placements: dict[str, Plan]
    loads: tuple[Load, ...]
    traffic: dict[str, Any] = field(default_factory=dict)
    rule: Rule = "deadline"

    def shortened(self, placement: str, loads: tuple[Load, ...]) -> Setting:
        """One placement with other loads."""
        return replace(self, placements={placement: self.placements[placement]}, loads=loads)

    def points(self) -> Iterator[tuple[str, Load]]:
        return product(self.placements, self.loads)


# Real workers: two devices


def real_settings(workers: dict[str, Any], tiny: bool) -> list[Setting]:
    effort = QUICK if tiny else FULL
    devices = ("local/0", "local/1")
    two = ("left", "right")

    def encoders(batches: bool, tokens: int, goals: tuple[str, str]) -> Callable[[Path], World]:
        def make(folder: Path) -> World:
            models = []
            for seed, (name, goal) in enumerate(zip(two, goals, strict=True)):
                sizes = TINY_ENCODER if tiny else ENCODER
                known = f"encoder-{name}{'-tiny' if tiny else ''}"
                path = made_once(known, partial(make_random_encoder, seed=seed), **sizes)
                traffic = {"rate": 1, "prompt_tokens": tokens}
                models.append({"name": name, "path": str(path), "slo": goal, "traffic": traffic})
            keeps = whole_batches if batches else one_by_one
            return make_world(folder, models, 2, keeps=keeps, effort=effort, workers=workers)

        return make

    def chat(folder: Path) -> World:
        sizes = TINY_CHAT if tiny else CHAT
        path = made_once(f"chat{'-tiny' if tiny else ''}", make_random, **sizes)
        model = {"name": "chat", "path": str(path), "slo": {"ttft": "600ms", "tpot": "120ms"}}
        return make_world(folder, [model], 2, effort=effort, workers=workers)

    apart = Plan(tuple(Group((device,), 1, 1, (model,)) for device, model in zip(devices, two, strict=True)))
    both = Plan(tuple(Group((device,), 1, 1, two) for device in devices))
    pipeline = Plan((Group(devices, 1, 2, two),))
    cache = {"chat": CACHE_BYTES}
    engines = Plan(tuple(Group((device,), 1, 1, ("chat",), cache) for device in devices))
    lanes = Plan((Group(devices, 1, 2, ("chat",), cache),))
    loads = (Load(0.7, 1), Load(1.0, 1), Load(0.6, 3))
    return [
        Setting(
            "one pass, one by one",
            encoders(False, 64, ("500ms", "500ms")),
            {"apart": apart, "pipeline": pipeline},
            loads,
            {"prompt_tokens": "64"},
        ),
        Setting(
            "one pass, shortest queue",
            encoders(False, 64, ("500ms", "500ms")),
            {"both": both, "pipeline": pipeline},
            loads,
            {"prompt_tokens": "64"},
            "shortest-queue",
        ),
        Setting(
            "one pass, batches, two goals",
            encoders(True, 16, ("150ms", "400ms")),
            {"both": both, "pipeline": pipeline},
            loads,
            {"prompt_tokens": "16"},
        ),
        Setting(
            "generating",
            chat,
            {"engines": engines, "lanes": lanes},
            loads,
            {"prompt_tokens": "48~0.5:8-128", "output_tokens": "16~0.5:2-48"},
        ),
    ]


# Emulated workers: 16 to 64 devices


def emulated_settings(devices: tuple[int, ...] = (16, 32, 64)) -> list[Setting]:
    settings = []
    for count in devices:
        names = [f"local/{number}" for number in range(count)]
        models = tuple(f"{size}-{number}" for number in range(2) for size in PASS_S)
        halves = (models[:2], models[2:])
        replicas = Plan(tuple(Group((name,), 1, 1, halves[place % 2]) for place, name in enumerate(names)))
        pipelines = Plan(tuple(Group(tuple(names[at : at + 4]), 1, 4, models) for at in range(0, count, 4)))
        settings.append(
            Setting(
                f"one pass on {count}",
                _emulated(models, count, one_pass_profile),
                {"replicas": replicas, "pipelines": pipelines},
                (Load(0.7, 1), Load(1.0, 1), Load(0.6, 3), Load(0.9, 3)),
                {"prompt_tokens": "16"},
            )
        )
        settings.append(
            Setting(
                f"one pass on {count}, shortest queue",
                _emulated(models, count, one_pass_profile),
                {"replicas": replicas, "pipelines": pipelines},
                (Load(1.0, 1), Load(0.6, 3)),
                {"prompt_tokens": "16"},
                "shortest-queue",
            )
        )
        cache = {"chat": 1000 * 1200}
        engines = Plan(tuple(Group((name,), 1, 1, ("chat",), cache) for name in names))
        settings.append(
            Setting(
                f"generating on {count}",
                _emulated(("chat",), count, lambda _: generating_profile()),
                {"engines": engines},
                (Load(0.8, 1), Load(0.6, 3)),
                {"prompt_tokens": "64~0.5:8-256", "output_tokens": "16~0.5:2-64"},
            )
        )
    return settings


def _emulated(models: tuple[str, ...], devices: int, profile_of: Callable[[str], Profile]) -> Callable[[Path], World]:
    def make(folder: Path) -> World:
        entries: list[dict[str, Any]] = []
        for name in models:
            path = folder / "models" / name
            if name == "chat":
                make_random(path, **TINY_CHAT)
            else:
                make_random_encoder(path, **TINY_ENCODER)
            goal = {"ttft": 1.5, "tpot": 0.3} if name == "chat" else 5 * PASS_S[name.partition("-")[0]]
            entries.append({"name": name, "path": str(path), "slo": goal})
        profiles = {name: profile_of(name) for name in models}
        return make_world(folder, entries, devices, profiles=profiles, workers={"kind": "emulated"})

    return make


def one_pass_profile(name: str) -> Profile:
    """Whole, or as four stages; twice as many inputs take 1.8 times as long."""
    whole = PASS_S[name.partition("-")[0]]
    growth = {1: 1.0, 2: 1.8, 4: 3.24}
    shapes = []
    for pp in (1, 4):
        stage = whole / pp * (STAGE_LOSS if pp > 1 else 1.0)
        latency = {size: (grown * stage,) * pp for size, grown in growth.items()}
        shapes.append(ShapeProfile(1, pp, (MEGABYTE,) * pp, latency))
    return Profile(tuple(shapes))


def generating_profile() -> Profile:
    step = StepCost(fixed=0.04, weights=0.06, prefill_token=5e-4, sequence=0.01, cached_token=1e-5)
    return Profile((ShapeProfile(1, 1, (MEGABYTE,), generation=Generation((step,), (1000.0,))),))


def whole_batches(shape: ShapeProfile) -> ShapeProfile | None:
    return shape if shape.tp == 1 else None
