"""The configured models as requests, workers and probes see them, from what their directories say."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from placement.errors import InputError
from placement.plan import Group, replica_profile
from placement.problem import Problem
from placement.rules import Rule
from serving.config import ModelEntry, ServeConfig
from serving.controller.expert_files import ExpertModel, read_places
from serving.controller.probe import Probe
from serving.http import ServedModel
from serving.models import ModelConfig, read_config, why_no_graphs
from serving.models.foreign_config import read_foreign_config
from serving.text import Tokenizer
from serving.text.model_files import read_object
from serving.worker.messages import MAX_SEQUENCES, ModelSpec

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PROBE_TOKENS = 4


@dataclass(frozen=True)
class ModelFiles:
    """One configured model and what its directory says."""

    entry: ModelEntry
    config: ModelConfig
    tokenizer: Tokenizer

    def spec(self, group: Group, problem: Problem, rule: Rule = "deadline") -> ModelSpec:
        """How a group's workers load it: with the plan's cache, and steps that keep the pace its goal asks for. Under
        a rule that knows no batches, what waits there for a one-pass model is not taken together."""
        entry, tpot_s = replica_profile(group, self.entry.name, problem), self.entry.goal.tpot
        pace = entry.generation if entry is not None and math.isfinite(tpot_s) else None
        alone = rule == "shortest-queue" and self.config.task != "generate"
        return ModelSpec(
            name=self.entry.name,
            path=self.entry.path,
            precision=self.entry.precision,
            graphs=self.entry.graphs,
            kv_bytes=group.kv_bytes.get(self.entry.name, 0),
            tpot_s=None if pace is None else tpot_s,
            step_costs=() if pace is None else pace.stages,
            max_sequences=1 if alone else MAX_SEQUENCES,
            experts=read_places(group, self.entry.name, self.config.sizes),
            engine=self.entry.foreign,
        )

    @property
    def experts(self) -> ExpertModel:
        return ExpertModel(self.config, self.entry.precision, Path(self.entry.path))

    @property
    def probe(self) -> Probe:
        count = min(_PROBE_TOKENS, self.config.max_positions - 1)
        return Probe("generate" if self.config.task == "generate" else "infer", list(range(count)))

    def served(self, state: Callable[[], str]) -> ServedModel:
        config = self.config
        return ServedModel(
            name=self.entry.name,
            kind=config.task,
            tokenizer=self.tokenizer,
            max_positions=config.max_positions,
            vocabulary=config.sizes.vocabulary,
            created=int(os.stat(Path(self.entry.path) / "config.json").st_mtime),
            state=state,
            defaults=_defaults(Path(self.entry.path)),
            width=-1 if config.task == "generate" else len(config.labels) or config.sizes.hidden,
            labels=config.labels,
        )


def read_models(config: ServeConfig) -> dict[str, ModelFiles]:
    """Every model's directory, looked into; an InputError names the model and the file that is wrong."""
    return {entry.name: _read(entry) for entry in config.models}


def check_graphs(files: Mapping[str, ModelFiles], devices: Mapping[str, str]) -> None:
    """`devices`: as workers call them. An InputError names a model whose steps cannot be recorded on all of them."""
    for name, one in files.items():
        for device in dict.fromkeys(device.partition(":")[0] for device in devices.values()):
            reason = why_no_graphs(one.config, device) if one.entry.graphs else None
            if reason is not None:
                raise InputError(f"models ({name}): {reason}")


def replaced(files: ModelFiles, directory: Path) -> ModelFiles:
    """The model with the weights of another directory; an InputError if that is of another form, since its profile, its
    place in the plan and what clients know of it would be wrong."""
    fresh = _read(msgspec.structs.replace(files.entry, path=str(directory)))
    if fresh.config.sizes != files.config.sizes or fresh.config.task != files.config.task:
        raise InputError(f"{directory}: of another form than the model {files.entry.name!r} that is served")
    return fresh


def _read(entry: ModelEntry) -> ModelFiles:
    path = Path(entry.path)
    try:
        config = read_config(path) if entry.foreign is None else read_foreign_config(path)
        if config.task == "generate" and not isinstance(entry.slo, dict):
            raise InputError("slo is one time, but it answers token by token; give {ttft, tpot}")
        if config.task != "generate" and isinstance(entry.slo, dict):
            raise InputError(f"slo has {sorted(entry.slo)}, but it answers in one pass; give one time")
        if config.task == "classify" and entry.foreign is not None:
            raise InputError("engine: a classifier runs on our own engine alone; leave `engine` out")
        return ModelFiles(entry, config, Tokenizer.from_directory(path))
    except InputError as error:
        raise InputError(f"models ({entry.name}): {error}") from error


def _defaults(directory: Path) -> Mapping[str, float]:
    """What generation_config.json asks for where a request does not."""
    given: dict[str, Any] = read_object(directory / "generation_config.json")
    if given.get("do_sample") is False:
        return {"temperature": 0.0}
    return {name: given[name] for name in _DEFAULTS if isinstance(given.get(name), int | float)}
