"""Sends processes on errands: each is pinned to its device, does one named thing and answers with one line of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
    wait_s: float = WAIT_S


async def send(errands: list[Errand], on_answer: Callable[[Any], None] = lambda answer: None) -> list[Any]:
    """All at the same time; the last answer of each. `on_answer` is told of every one as it comes."""
    answers: dict[str, Any] = {}

    def hear(name: str, line: str) -> None:
        if line.startswith(MARK):
            answers[name] = msgspec.json.decode(line.removeprefix(MARK))
            on_answer(answers[name])

    launcher = LocalLauncher(on_line=hear)
    handles, wait_s = [], max(one.wait_s for one in errands)
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
        async with asyncio.timeout(wait_s):
            ends = await asyncio.gather(*(handle.wait() for handle in handles))
    except TimeoutError:
        raise ErrandFailed(f"{errands[0].task}: not done within {wait_s:g} s") from None
    finally:
        for handle in handles:
            handle.kill()
    for number, ended in enumerate(ends):
        if f"errand/{number}" not in answers:
            raise ErrandFailed(ended.reason)
    return [answers[f"errand/{number}"] for number in range(len(errands))]
