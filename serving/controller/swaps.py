"""Puts a model that was trained into the place of one that is served, and remembers it for the next start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from placement.errors import InputError
from placement.files import read_document, write_json
from serving.controller.controller import Controller
from serving.controller.served import ModelFiles, replaced

FILE_NAME = "served.json"
DONE = "served"
"""In a job's folder, beside the model: it serves, or was refused."""


class Swapped(msgspec.Struct, frozen=True):
    """A served model's directory, and the configured one that it stands for: one that was configured anew stands for
    itself."""

    path: str
    instead_of: str


class Memory(msgspec.Struct, frozen=True):
    """The file: trained models that are served, by name."""

    models: dict[str, Swapped] = {}


class Recalled(NamedTuple):
    """What became of a model that was remembered, for the journal."""

    model: str
    what: str
    why: str


def recall(files: dict[str, ModelFiles], folder: Path | None) -> list[Recalled]:
    """Let `files`, as configured, be what was served when the server stopped; what cannot be stays as configured."""
    if folder is None:
        return []
    found = []
    try:
        remembered = _read(folder / FILE_NAME).models
    except InputError as error:
        return [Recalled("all", "not replaced", str(error))]
    for name, one in remembered.items():
        if name in files and files[name].entry.path == one.instead_of:
            try:
                files[name] = replaced(files[name], Path(one.path))
                found.append(Recalled(name, "replaced", f"trained: {one.path}"))
            except InputError as error:
                found.append(Recalled(name, "not replaced", str(error)))
    return found


class Swaps:
    """`files`: what every model is loaded from; changed in place. `configured`: their directories by configuration.
    `folder`: where jobs leave what they trained."""

    def __init__(
        self, controller: Controller, files: dict[str, ModelFiles], configured: dict[str, str], folder: Path | None
    ) -> None:
        self._controller, self._files, self._configured = controller, files, configured
        self._memory = None if folder is None else folder / FILE_NAME
        self.tasks: set[asyncio.Task[None]] = set()

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
        except InputError as error:
            journal.note("model", model, "not replaced", reason=str(error))
            _mark_done(directory)
            return
        try:
            self._remember(model, directory)
        except InputError as error:
            journal.note("model", model, "replaced until the next start only", reason=str(error))
        _mark_done(directory)
        await self._controller.reload(model, f"trained: {directory}")

    def _remember(self, model: str, directory: Path) -> None:
        if self._memory is not None:
            fresh = Swapped(str(directory.resolve()), self._configured[model])
            write_json(self._memory, Memory(_read(self._memory).models | {model: fresh}))

    def _known(self) -> str:
        return ", ".join(sorted(self._files))


def is_done(directory: Path) -> bool:
    """Whether a trained model has been taken up, or refused."""
    return (directory.parent / DONE).exists()


def _mark_done(directory: Path) -> None:
    with suppress(OSError):  # then it is taken up once more
        (directory.parent / DONE).touch()


def _read(path: Path) -> Memory:
    return read_document(path, Memory) if path.is_file() else Memory()
