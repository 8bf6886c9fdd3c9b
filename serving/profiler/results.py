"""What measuring a model has given: values, kept in the cache and told to the user."""

from __future__ import annotations

from typing import Literal

import msgspec

from placement.profile import Profile, ShapeProfile
from serving.profiler.fit import FitError

Source = Literal["measured", "scaled"]


class MeasuredShape(msgspec.Struct, frozen=True):
    """A shape as it was measured, for any kind and span."""

    entry: ShapeProfile
    error: FitError | None = None
    """Of a generating model, on steps that were not fitted."""


class MeasuredModel(msgspec.Struct, frozen=True):
    """All shapes of a model that fit the devices here; none where it fits on none."""

    shapes: list[MeasuredShape]
    seconds: float
    """It took to measure them."""


class ShapeResult(msgspec.Struct, frozen=True):
    """An entry of a profile, and where it comes from."""

    entry: ShapeProfile
    source: Source
    error: FitError | None = None


class ModelResult(msgspec.Struct, frozen=True):
    name: str
    """In profiles.json."""
    task: str
    input_tokens: int
    """Of each input of a one-pass model's batches; 0 for one that generates."""
    shapes: list[ShapeResult]
    is_cached: bool
    """Measured by an earlier run."""
    seconds: float

    @property
    def profile(self) -> Profile:
        return Profile(shapes=tuple(shape.entry for shape in self.shapes))


class ProfileResult(msgspec.Struct, frozen=True):
    models: list[ModelResult]
    absent_kinds: list[str]
    """Kinds of device that the cluster has and this machine has not."""
    seconds: float

    @property
    def profiles(self) -> dict[str, Profile]:
        return {model.name: model.profile for model in self.models}
