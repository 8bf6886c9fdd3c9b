"""What an emulated worker knows of a model: its profile, and the few numbers that its answers need. No weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from placement.errors import InputError
from placement.files import read_document
from placement.profile import Profile, Shape, ShapeProfile
from placement.units import Seconds
from serving.engine.blocks import BLOCK_TOKENS
from serving.models import read_config

FILE_NAME = "emulated.json"


class EmulatedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in emulated.json, where a real worker would look for weights."""

    profile: Profile
    vocabulary: Annotated[int, Meta(ge=2, le=10**8)] = 32_000
    max_positions: Annotated[int, Meta(ge=1, le=10**8)] = 4096
    eos_token_ids: tuple[int, ...] = ()
    width: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """Numbers of a one-pass answer; 0 for a model that generates."""
    load_s: Seconds = Seconds(0)
    """How long reading it takes; steps of other models go on meanwhile."""
    resume_s: Seconds = Seconds(0)
    """How long the group is busy with suspending it, and with resuming it."""

    @property
    def generates(self) -> bool:
        return self.width == 0

    def costs(self, shape: Shape, kind: str | None, span: str) -> ShapeProfile:
        """The profile's entry for a group; without a kind there must be only one for its shape and span."""
        entries = [entry for entry in self.profile.shapes if entry.shape == shape and entry.span in (None, span)]
        if kind is not None:
            found = self.profile.find(shape, kind, span)
            entries = [] if found is None else [found]
        kinds = {entry.kind for entry in entries}
        if not entries:
            of_kind = "" if kind is None else f" on devices of kind {kind}"
            known = ", ".join(sorted({str(entry.shape) for entry in self.profile.shapes}))
            raise InputError(f"the profile has no {shape}{of_kind}; it has {known}")
        if len(kinds) > 1:
            raise InputError(f"the profile has {shape} for {len(kinds)} kinds of device; say which is emulated")
        entry = max(entries, key=lambda entry: entry.span is not None)
        if self.generates and entry.generation is None:
            raise InputError(f"{shape} has no generation costs; a model with width 0 generates")
        if not self.generates and not entry.stage_latency:
            raise InputError(f"{shape} has no stage_latency; a model with a width answers in one pass")
        return entry


def cache_blocks(entry: ShapeProfile, kv_bytes: int) -> int:
    """Cache blocks that fit on every stage's devices; an InputError when not even one does."""
    assert entry.generation is not None
    each = max(entry.generation.kv_bytes_per_token) * BLOCK_TOKENS
    blocks = int(kv_bytes // each)
    if blocks < 1:
        raise InputError(f"kv_bytes is {kv_bytes}; a block of its cache takes {each:.0f}")
    return blocks


def read_emulated_model(path: Path) -> EmulatedModel:
    """From a file, or from emulated.json in a model's directory."""
    return read_document(path / FILE_NAME if path.is_dir() else path, EmulatedModel)


def emulate_directory(directory: Path, profile: Profile) -> EmulatedModel:
    """The emulated twin of a real model: the numbers of its config.json, the times of its profile."""
    config = read_config(directory)
    return EmulatedModel(
        profile=profile,
        vocabulary=config.sizes.vocabulary,
        max_positions=config.max_positions,
        eos_token_ids=config.eos_token_ids,
        width=0 if config.task == "generate" else len(config.labels) or config.sizes.hidden,
    )
