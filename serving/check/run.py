"""All parts of a check, one after the other: a part that fails or breaks leaves the others alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from serving.check.kernels import check_all_kernels
from serving.check.links import check_links
from serving.check.machine import check_machine, devices_here, look_at_machine
from serving.check.results import CheckReport, Finding, telling
from serving.check.service import check_service
from serving.check.shapes import check_shapes, make_small_model
from serving.check.tune import check_tune
from serving.worker.scratch import Scratch

PARTS = ("machine", "links", "kernels", "engine", "service")

OnPart = Callable[[str], None]


async def run_check(
    parts: tuple[str, ...] = PARTS, tunes: bool = False, on_part: OnPart = lambda part: None
) -> CheckReport:
    began = time.monotonic()
    machine = look_at_machine()
    devices = devices_here(machine)
    kind = "cpu" if devices[0].startswith("cpu") else machine["gpus"][0]["name"].lower().replace(" ", "-")
    with Scratch() as folder:
        model = folder / "model"
        works: dict[str, Callable[[], Awaitable[list[Finding]]]] = {
            "machine": lambda: _now(check_machine(machine)),
            "links": lambda: check_links(devices),
            "tune": lambda: check_tune(devices),
            "kernels": lambda: check_all_kernels(devices),
            "engine": lambda: _with_model(model, lambda: check_shapes(model, devices)),
            "service": lambda: _with_model(model, lambda: check_service(folder, model, devices, kind)),
        }
        found: list[Finding] = []
        for part, work in works.items():
            if part in parts or (part == "tune" and tunes):
                on_part(part)
                with telling(part, "all of it", found):
                    found += await work()
    return CheckReport(machine=machine, findings=found, seconds=round(time.monotonic() - began, 1))


async def _now(found: list[Finding]) -> list[Finding]:
    return found


async def _with_model(model: Path, work: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    if not model.exists():
        await asyncio.to_thread(make_small_model, model)
    return await work()
