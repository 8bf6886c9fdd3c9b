"""Puts a model that was trained into the place of one that is served, and remembers it for the next start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import read_document, write_json
from serving.controller.controller import Controller
from serving.controller.served import ModelFiles, replaced

MEMORY = "served.json"


class Swapped(msgspec.Struct, frozen=True):
    """A served model's directory, and the configured one that it stands for: one that was configured anew stands for
    itself."""

    path: str
    instead_of: str


class Memory(msgspec.Struct, frozen=True):
    """The file: trained models that are served, by name."""

    models: dict[str, Swapped] = {}


class Swaps:
    """`files`: what every model is loaded from; changed in place. `folder`: where jobs leave what they trained."""

    def __init__(self, controller: Controller, files: dict[str, ModelFiles], folder: Path | None) -> None:
        self._controller, self._files = controller, files
        self._configured = {name: one.entry.path for name, one in files.items()}
        self._memory = None if folder is None else folder / MEMORY
        self.tasks: set[asyncio.Task[None]] = set()

    def recall(self) -> None:
        """Serve what was served when the server stopped; what cannot be is left as it is configured."""
        for name, one in self._remembered().items():
            if self._configured.get(name) == one.instead_of:
                try:
                    self._files[name] = replaced(self._files[name], Path(one.path))
                    self._controller.journal.note("model", name, "replaced", reason=f"trained: {one.path}")
                except InputError as error:
                    self._controller.journal.note("model", name, "not replaced", reason=str(error))

    def begin(self, model: str, directory: Path) -> None:
        task = asyncio.get_running_loop().create_task(self._swap(model, directory), name=f"swap of {model}")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _swap(self, model: str, directory: Path) -> None:
        journal = self._controller.journal
        try:
            if model not in self._files:
                raise InputError(f"no model {model!r} is served; a trained one can take the place of {self._known()}")
            self._files[model] = await asyncio.to_thread(replaced, self._files[model], directory)
            self._remember(model, directory)
        except InputError as error:
            journal.note("model", model, "not replaced", reason=str(error))
            return
        await self._controller.reload(model, f"trained: {directory}")

    def _remembered(self) -> dict[str, Swapped]:
        if self._memory is None or not self._memory.is_file():
            return {}
        try:
            return read_document(self._memory, Memory).models
        except InputError as error:
            self._controller.journal.note("model", "all", "not replaced", reason=str(error))
            return {}

    def _remember(self, model: str, directory: Path) -> None:
        if self._memory is not None:
            fresh = Swapped(str(directory.resolve()), self._configured[model])
            write_json(self._memory, Memory(self._remembered() | {model: fresh}))

    def _known(self) -> str:
        return ", ".join(sorted(self._files))
