"""Making the small models of a directory: those that are there already stay as they are."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from placement.errors import InputError
from serving.small_models.encoder_model import make_classifier, make_embedder
from serving.small_models.folder import check_replaceable, is_empty, put_folder
from serving.small_models.language_model import make_language_model
from serving.small_models.made import Made
from serving.small_models.manifest import MANIFEST, Manifest, checksum, manifest_bytes, read_manifest, why_not_done
from serving.small_models.material import Material
from serving.small_models.names import Name
from serving.small_models.readme import readme
from serving.small_models.settings import SETTINGS, BertSettings, LanguageSettings, Settings, digest
from serving.small_models.training import OnStep, one_thread

OnProgress = Callable[[str, float, str], None]
"""(model, share done, note)"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one model; `seconds` is 0 where it was there already."""

    name: str
    path: str
    made: bool
    seconds: float
    cpu_seconds: float
    manifest: Manifest


def make_models(
    directory: Path,
    names: Sequence[Name] = tuple(SETTINGS),
    *,
    seed: int = 0,
    steps: int | None = None,
    force: bool = False,
    settings: dict[Name, Settings] | None = None,
    library: Path | None = None,
    on_progress: OnProgress = lambda name, share, note: None,
) -> list[Outcome]:
    """Make DIRECTORY/NAME for each name. An InputError says what stands in the way, before anything is made.

    `steps` and `settings` replace the usual ones; `library` is where the text is read from.
    """
    chosen = {name: _with_steps((settings or SETTINGS)[name], steps) for name in names}
    done = {name: _is_done(directory / name, digest(chosen[name], seed), force) for name in chosen}
    material = Material(library)
    outcomes = []
    with one_thread():
        for name, own in chosen.items():
            started, started_cpu = time.perf_counter(), time.process_time()
            if not done[name]:
                put_folder(directory / name, _files(name, own, seed, material, on_progress))
            outcomes.append(
                Outcome(
                    name=name,
                    path=str(directory / name),
                    made=not done[name],
                    seconds=0.0 if done[name] else time.perf_counter() - started,
                    cpu_seconds=0.0 if done[name] else time.process_time() - started_cpu,
                    manifest=read_manifest(directory / name),
                )
            )
    return outcomes


def _with_steps(settings: Settings, steps: int | None) -> Settings:
    return settings if steps is None else msgspec.structs.replace(settings, steps=steps)


def _is_done(folder: Path, settings: str, force: bool) -> bool:
    if is_empty(folder):
        return False
    reason = why_not_done(folder, settings)
    if reason is None and not force:
        return True
    if not force:
        raise InputError(f"{folder}: {reason}; --force replaces it")
    check_replaceable(folder)
    return False


def _files(name: Name, settings: Settings, seed: int, material: Material, on_progress: OnProgress) -> dict[str, bytes]:
    """All files of a model, its manifest last."""
    on_progress(name, 0.0, "reading")

    def on_step(step: int, steps: int, loss: float) -> None:
        on_progress(name, step / steps, f"loss {loss:.3f}")

    made = _train(name, settings, seed, material, on_step)
    files = dict(sorted(made.files.items())) | {"README.md": readme(name, settings, seed, made)}
    manifest = Manifest(
        name=name,
        seed=seed,
        steps=settings.steps,
        settings=digest(settings, seed),
        python=platform.python_version(),
        torch=str(torch.__version__),
        parameters=made.parameters,
        measures=made.measures,
        files={file: checksum(content) for file, content in files.items()},
    )
    return files | {MANIFEST: manifest_bytes(manifest)}


def _train(name: Name, settings: Settings, seed: int, material: Material, on_step: OnStep) -> Made:
    if isinstance(settings, LanguageSettings):
        return make_language_model(material, settings, seed, on_step)
    assert isinstance(settings, BertSettings)
    maker = make_classifier if name == "classify" else make_embedder
    return maker(material, settings, seed, on_step)
