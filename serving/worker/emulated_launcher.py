"""Starts emulated workers inside this process, in the place of a launcher that starts real ones."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from placement.errors import InputError
from serving.worker.document import parse_document
from serving.worker.emulated import FIRST_PID, EmulatedGroup
from serving.worker.emulated_model import EmulatedModel, read_emulated_model
from serving.worker.launcher import Exit, WorkerSpec


class EmulatedLauncher:
    """`models` by a ModelSpec's path; a path that is not among them is read as emulated.json.

    `kind` is the kind of device that is emulated (profiles may have several), `span` whether groups lie within a node.
    """

    def __init__(
        self, models: Mapping[str, EmulatedModel] | None = None, kind: str | None = None, span: str = "node"
    ) -> None:
        self._models = dict(models or {})
        self._kind, self._span = kind, span
        self._groups: dict[str, EmulatedGroup] = {}
        self._pids = count(FIRST_PID)
        self._worst_lag_s = 0.0

    async def start(self, spec: WorkerSpec) -> EmulatedHandle:
        document = parse_document(spec.document)
        self._forget_ended()
        if document.rank == 0:
            group = EmulatedGroup(document, self._find_model, self._kind, self._span)
            await group.listen()
            self._groups[document.control] = group
        elif document.control not in self._groups:
            raise InputError(f"{spec.name}: the first device of emulated group {document.group} must be started first")
        handle = EmulatedHandle(spec.name, next(self._pids), self._groups[document.control], document.rank)
        handle.group.join(document.rank, handle.pid)
        return handle

    @property
    def worst_lag_s(self) -> float:
        """How late the loop was at worst: what emulated times are off by. Large where there is more to emulate than one
        core can; what was measured is then of no worth."""
        return max([self._worst_lag_s, *(group.worst_lag_s for group in self._groups.values())])

    def _find_model(self, path: str) -> EmulatedModel:
        return self._models[path] if path in self._models else read_emulated_model(Path(path))

    def _forget_ended(self) -> None:
        self._worst_lag_s = self.worst_lag_s
        self._groups = {key: group for key, group in self._groups.items() if not group.is_over}


class EmulatedHandle:
    """A Handle of one emulated device."""

    def __init__(self, name: str, pid: int, group: EmulatedGroup, rank: int) -> None:
        self.name = name
        self.pid = pid
        self.group = group
        self.rank = rank

    async def wait(self) -> Exit:
        return await self.group.wait(self.rank)

    async def terminate(self, grace_s: float) -> Exit:
        """At once: an emulated worker has nothing to put away."""
        self.group.kill(self.rank, signal.SIGTERM)
        return await self.wait()

    def kill(self) -> None:
        self.group.kill(self.rank)
