"""Sends processes on errands: each is pinned to its device, does one named thing and answers with one line of JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from serving.worker.launcher import WorkerSpec
from serving.worker.local_launcher import LocalLauncher

WAIT_S = 900.0
MARK = "errand: "
"""Opens the line that is the answer; whatever else is written is for people."""


class ErrandFailed(RuntimeError):  # noqa: N818  (it says what happened)
    """An errand's process ended without an answer; its last words."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    """links, kernels, cpu_kernels, or tune."""
    device: str
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}


async def send(errands: list[Errand]) -> list[Any]:
    """All at the same time; their answers."""
    answers: dict[str, Any] = {}

    def hear(name: str, line: str) -> None:
        if line.startswith(MARK):
            answers[name] = msgspec.json.decode(line.removeprefix(MARK))

    launcher = LocalLauncher(on_line=hear)
    handles = []
    try:
        for number, one in enumerate(errands):
            document = {"task": one.task, "device": one.device, "options": one.options}
            spec = WorkerSpec(
                name=f"errand/{number}",
                device=one.device,
                module="serving.check",
                document=document,
                environment=one.environment,
            )
            handles.append(await launcher.start(spec))
        async with asyncio.timeout(WAIT_S):
            ends = await asyncio.gather(*(handle.wait() for handle in handles))
    except TimeoutError:
        raise ErrandFailed(f"{errands[0].task}: not done within {WAIT_S:g} s") from None
    finally:
        for handle in handles:
            handle.kill()
    for number, ended in enumerate(ends):
        if f"errand/{number}" not in answers:
            raise ErrandFailed(ended.reason)
    return [answers[f"errand/{number}"] for number in range(len(errands))]
