"""Where the experts of one group's models are: as the plan wishes, or moved since. A group that starts again goes on
with where they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from placement.errors import InputError
from serving.controller.expert_files import Places
from serving.controller.journal import Journal
from serving.worker.group import Group
from serving.worker.messages import ModelSpec


@dataclass(frozen=True, eq=False)
class Placed:
    """The experts of one model. A move makes another one."""

    planned: Places
    now: Places


@dataclass
class GroupExperts:
    """`group` in its calls is the one that runs now; all of them but `taken_up` raise GroupLost."""

    name: str
    journal: Journal
    placed: dict[str, Placed] = field(default_factory=dict)
    """By model."""
    failed: dict[str, str] = field(default_factory=dict)
    """Models whose experts could not be brought to where the plan wishes them, and why."""

    def taken_up(self, spec: ModelSpec) -> ModelSpec:
        """How a model is loaded: with experts where they were, unless the plan has another wish by now."""
        held = self.placed.get(spec.name)
        self.failed.pop(spec.name, None)
        if spec.experts is None:
            self.placed.pop(spec.name, None)
        elif held is None or held.planned != spec.experts:
            self.placed[spec.name] = Placed(spec.experts, spec.experts)
        else:
            return msgspec.structs.replace(spec, experts=held.now)
        return spec

    def given_up(self, model: str) -> None:
        self.placed.pop(model, None)
        self.failed.pop(model, None)

    async def bring(self, group: Group, specs: Iterable[ModelSpec]) -> str:
        """Move the experts of models that are served to where the plan wishes them; what went wrong, or nothing."""
        for spec in specs:
            held = self.placed.get(spec.name)
            if spec.experts is None or (held is not None and held.planned == spec.experts):
                self.failed.pop(spec.name, None)
                continue
            try:
                read = await self._place(group, spec.name, Placed(spec.experts, spec.experts))
            except InputError as error:
                self.failed[spec.name] = str(error)
                self.journal.note("model", spec.name, "experts not placed", group=self.name, reason=str(error))
            else:
                self.failed.pop(spec.name, None)
                self.journal.note("model", spec.name, "experts placed", group=self.name, read=read)
        return next((f"{model}: {reason}" for model, reason in self.failed.items()), "")

    async def move(self, group: Group, model: str, held: Placed, places: Places) -> int:
        """From where they are held to other places; how many were read. An InputError says why they stay."""
        if self.placed.get(model) is not held:
            raise InputError(f"the experts of {model!r} on group {self.name} have been moved meanwhile")
        return await self._place(group, model, Placed(held.planned, places))

    async def _place(self, group: Group, model: str, placed: Placed) -> int:
        facts = await group.place_experts(model, placed.now)
        self.placed[model] = placed
        return int(facts["read"])
