"""How the queue reaches a job that runs: one question and one answer, a line of JSON each, on a Unix socket of this
user alone. The job's folder says where it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import read_document, write_json
from training.elastic.coordinator import Coordinator
from training.elastic.task import DOOR

ASK_S = 30.0


class Place(msgspec.Struct, frozen=True):
    run: str
    path: str


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    devices: dict[str, str] | None = None
    """Train on these from now on; none: wait in memory; None: only tell."""


class Answer(msgspec.Struct, frozen=True):
    """When all other devices are free."""

    step: int
    workers: dict[str, int]
    """Process of each device."""
    parked: tuple[int, ...] = ()
    """Processes that wait without one."""


async def open_door(coordinator: Coordinator, folder: Path, run: str) -> asyncio.Server:
    path = coordinator.door

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = msgspec.json.decode(await reader.readline(), type=Question)
            if question.devices is not None:
                await coordinator.resize(question.devices)
            writer.write(msgspec.json.encode(Answer(coordinator.step, coordinator.workers, coordinator.parked)) + b"\n")
            await writer.drain()
        except (msgspec.DecodeError, ConnectionError):
            pass  # whoever asked hears nothing, and knows
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, path)
    os.chmod(path, 0o600)
    write_json(folder / DOOR, Place(run, str(path)))
    return server


def find_door(folder: Path, run: str) -> str | None:
    """Of the job's run; None: it has none yet."""
    try:
        place = read_document(folder / DOOR, Place)
    except InputError:
        return None
    return place.path if place.run == run else None


def ask(folder: Path, run: str, devices: Mapping[str, str] | None = None, wait_s: float = ASK_S) -> Answer:
    """Of the job's run; an OSError: it is not there to answer, or does not within `wait_s`."""
    path = find_door(folder, run)
    if path is None:
        raise OSError(f"{folder}: the run {run} has no door")
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(wait_s)
        door.connect(path)
        door.sendall(msgspec.json.encode(Question(None if devices is None else dict(devices))) + b"\n")
        with door.makefile("rb") as answers:
            line = answers.readline()
    if not line.endswith(b"\n"):
        raise OSError(f"{folder}: the job ended before it answered")
    return msgspec.json.decode(line, type=Answer)
