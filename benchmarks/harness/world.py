"""What a server is told, and what the planner and the simulator make of the same files: one configuration for both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.cases import note
from placement.cache import cache_folder
from placement.files import write_json
from placement.plan import Plan, write_plan
from placement.problem import Problem
from placement.profile import Profile, ShapeProfile
from serving.config import read_serve_config
from serving.controller.planning import make_problem, paced, read_profiles
from serving.models import read_config
from serving.profiler.cache import Cache, default_folder
from serving.profiler.effort import FULL, Effort
from serving.profiler.profile import profile_models
from serving.worker.event_loop import run

Document = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A configuration, as plain data, and the folder that it is written to."""

    folder: Path
    document: Document

    def write(self, name: str, **changes: Any) -> Path:
        """The configuration with these changes, in a folder of its own."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(self.document | changes))
        return path

    def write_plan(self, name: str, plan: Plan) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        write_plan(folder / "plan.json", plan)
        return folder / "plan.json"

    def stretched(self, factor: float) -> World:
        """With every profiled time so many times as long."""
        path = self.folder / f"profiles-{factor:.6f}.json"
        profiles = read_profiles(Path(self.document["profiles"]))
        write_json(path, {name: paced(profile, factor) for name, profile in profiles.items()})
        return World(self.folder, self.document | {"profiles": str(path.resolve())})

    def problem(self) -> Problem:
        """What a server with this configuration plans and routes by."""
        config = read_serve_config(self.write("problem"))
        assert config.profiles is not None
        configs = {model.name: read_config(Path(model.path)) for model in config.models}
        return make_problem(config, configs, read_profiles(Path(config.profiles)))


def make_world(
    folder: Path,
    models: Iterable[Document],
    devices: int,
    *,
    profiles: dict[str, Profile] | None = None,
    keeps: Callable[[ShapeProfile], ShapeProfile | None] = lambda shape: shape,
    effort: Effort = FULL,
    memory: int | str = "512MiB",
    **more: Any,
) -> World:
    """One node of CPU devices. Profiles that are not given are measured (or read from the cache); `keeps` says what of
    them may be used."""
    node = {"name": "local", "devices": devices, "kind": "cpu", "memory": memory}
    document: Document = {"cluster": {"nodes": [node]}, "models": list(models), "listen": "127.0.0.1:0"}
    document |= {"replan": {"mode": "off"}} | more
    world = World(folder, document)
    if profiles is None:
        profiles = measure(world.write("measured", workers={"kind": "real"}), effort)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "profiles.json", {name: _kept(profile, keeps) for name, profile in profiles.items()})
    return World(folder, document | {"profiles": str((folder / "profiles.json").resolve())})


def measure(config: Path, effort: Effort) -> dict[str, Profile]:
    read = read_serve_config(config)

    def tell(share: float, what: str) -> None:
        note(f"measuring models: {what}")

    return run(profile_models(read, effort=effort, cache=Cache(default_folder()), on_progress=tell)).profiles


def one_by_one(shape: ShapeProfile) -> ShapeProfile | None:
    """For `keeps`: pipelines and whole models, no batches."""
    if shape.tp > 1:
        return None
    return msgspec.structs.replace(shape, stage_latency={1: shape.stage_latency[1]})


def made_once(name: str, make: Callable[..., object], **sizes: Any) -> Path:
    """A model's directory, kept for the next time, so that its profile is kept too."""
    folder = cache_folder("benchmark-models") / name
    wanted, made = json.dumps(sizes, sort_keys=True), folder.parent / f"{name}.json"
    if not made.is_file() or made.read_text() != wanted:
        note(f"making {name}")
        make(folder, **sizes)
        made.write_text(wanted)
    return folder


def _kept(profile: Profile, keeps: Callable[[ShapeProfile], ShapeProfile | None]) -> Profile:
    shapes = [kept for shape in profile.shapes if (kept := keeps(shape)) is not None]
    return msgspec.structs.replace(profile, shapes=tuple(shapes))
