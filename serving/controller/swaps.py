"""Puts a model that was trained into the place of one that is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from placement.errors import InputError
from serving.controller.controller import Controller
from serving.controller.served import ModelFiles, replaced


class Swaps:
    """`files`: what every model is loaded from; changed in place. A restart of the server begins with the configured
    directories again."""

    def __init__(self, controller: Controller, files: dict[str, ModelFiles]) -> None:
        self._controller, self._files = controller, files
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
            return
        await self._controller.reload(model, f"trained: {directory}")

    def _known(self) -> str:
        return ", ".join(sorted(self._files))
