"""The whole on this machine, as users start it: `penstock serve` plans and serves a small model, `penstock load` asks
it, every shape is planned and asked once, a training job gets a device and gives it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from placement.capacity import Rung, with_rungs
from placement.cli.admin import ask_admin
from placement.files import encode_json, write_json
from placement.plan import Group, Plan, write_plan
from placement.profile import Shape
from serving.check.results import Finding, judged, skipped, telling
from serving.models import read_config
from serving.profiler.present import ALL_SHAPES, measured_shapes

READY = "Penstock serves "
START_S, LEND_S, RECALL_S = 300.0, 90.0, 30.0
LOAD_S = 8
MEMORY = 2 * 2**30
CACHE_BYTES = 256 * 2**20
CLIENTS = 8
JOB = "lesson"
TEXT = "It is what it is, and it was what it was.\n"


class ServiceFailed(RuntimeError):  # noqa: N818  (it says what happened)
    """The server did not start, or did not do what it should in time."""


async def check_service(folder: Path, model: Path, devices: list[str], kind: str) -> list[Finding]:
    found = list[Finding]()
    with telling("service", "plan", found):
        config = _write_config(folder / "planned", model, devices, kind)
        async with _running(config) as url:
            groups = (await _admin(url, "/admin/plan"))["groups"]
            shapes = ", ".join(f"tp{one['tp']} x pp{one['pp']}" for one in groups)
            found.append(judged("service", "plan", bool(groups), groups=len(groups), shapes=shapes))
            with telling("service", "load test", found):
                found.append(await _load(url))
            for shape in measured_shapes(read_config(model).sizes, min(len(devices), ALL_SHAPES)):
                with telling("service", f"plan of {shape}", found):
                    found.append(await _planned(url, shape))
    if len(devices) < 2:
        return [*found, skipped("service", "loan and recall", "one device is never lent")]
    with telling("service", "loan and recall", found):
        config = _write_config(folder / "lending", model, devices, kind)
        plan = _lending_plan(config.parent / "plan.json", len(devices))
        async with _running(config, "--plan", str(plan)) as url:
            found.append(await _loan(url, config.parent, model))
    return found


async def _planned(url: str, shape: Shape) -> Finding:
    """A plan of this shape alone comes in force, and a request goes through the router to it."""
    devices = tuple(f"local/{number}" for number in range(shape.devices))
    plan = Plan((Group(devices, *shape, ("small",), {"small": CACHE_BYTES}),))
    began = time.monotonic()
    await asyncio.to_thread(ask_admin, url, "/admin/plan", encode_json(plan))
    in_force_s = time.monotonic() - began
    is_answered = await asyncio.to_thread(_complete, url, shape.devices)
    why = "" if is_answered else "a request was not answered"
    return judged("service", f"plan of {shape}", is_answered, why, in_force_s=round(in_force_s, 1))


def _write_config(folder: Path, model: Path, devices: list[str], kind: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(TEXT * 400)
    node = {"name": "local", "devices": len(devices), "kind": kind, "memory": MEMORY}
    traffic = {"rate": 4, "cv": 1, "prompt_tokens": 64, "output_tokens": 24}
    precision = "fp32" if kind == "cpu" else "fp16"
    entry = {"name": "small", "path": str(model), "slo": {"ttft": "2s", "tpot": "500ms"}, "precision": precision}
    config = {
        "cluster": {"nodes": [node]},
        "models": [entry | {"traffic": traffic}],
        "listen": "127.0.0.1:0",
        "training": {"store": "sqlite:///queue.db", "data": ["text.txt"], "loans": {"minimum": "1s"}},
    }
    write_json(folder / "config.json", config)
    return folder / "config.json"


def _lending_plan(path: Path, devices: int) -> Path:
    """A group for each device, of which the last can be lent while next to nothing is asked."""
    groups = tuple(Group((f"local/{n}",), 1, 1, ("small",), {"small": CACHE_BYTES}) for n in range(devices))
    last = devices - 1
    write_plan(path, with_rungs(Plan(groups, ((last,),)), (Rung((), 100.0), Rung((last,), 0.2))))
    return path


@contextlib.asynccontextmanager
async def _running(config: Path, *options: str) -> AsyncIterator[str]:
    command = [sys.executable, "-P", "-m", "serving.cli", "serve", str(config), "--logs", "json", "--quick", *options]
    log = config.parent / "server.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield await _url(process, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 60.0)
            os.killpg(process.pid, signal.SIGKILL)


async def _url(process: asyncio.subprocess.Process, log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        for line in text.splitlines():
            if line.startswith(READY):
                return next(word for word in line.split() if word.startswith("http"))
        if process.returncode is not None:
            raise ServiceFailed(f"penstock serve ended with code {process.returncode}: {text.strip()[-300:]}")
        await asyncio.sleep(0.1)
    raise ServiceFailed(f"penstock serve did not answer within {START_S:g} s")


async def _load(url: str) -> Finding:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        return skipped("service", "load test", "aiohttp is not installed; pip install 'penstock[load]'")
    arguments = ["--rate", "4", "--duration", f"{LOAD_S}s", "--prompt-tokens", "64", "--output-tokens", "24"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "serving.cli", "load", "--url", url, "--slo", "2s/500ms", "--json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    if process.returncode not in (0, 1) or not out.strip():
        return judged("service", "load test", False, error.decode(errors="replace").strip()[-300:])
    said: dict[str, Any] = json.loads(out)
    attainment = float(said["attainment"])
    return judged(
        "service",
        "load test",
        attainment >= 0.9,
        requests=said["requests"],
        in_time=f"{attainment:.1%}",
        ttft_p50_ms=None if said["ttft"] is None else round(1000 * said["ttft"]["p50"], 1),
        tpot_p50_ms=None if said["tpot"] is None else round(1000 * said["tpot"]["p50"], 2),
    )


async def _loan(url: str, folder: Path, model: Path) -> Finding:
    from training.queue import open_store
    from training.queue.submission import Submission

    store = open_store(f"sqlite:///{folder}/queue.db")
    lm = {"model": str(model), "data": str(folder / "text.txt"), "steps": 10**6, "context": 32, "batch": 2}
    try:
        began = time.monotonic()
        store.submit([Submission(id=JOB, type="lm", max_gpus=1, lm=lm | {"pace": 0.05})], "check")
        last = sorted((await _admin(url, "/admin/status"))["devices"])[-1]
        await _until(lambda devices: devices[last].startswith("job"), url, LEND_S, f"{last} was not lent")
        lent_s = time.monotonic() - began
        await _until_training(store, LEND_S)
        began, is_back = time.monotonic(), asyncio.Event()
        asking = [asyncio.create_task(_keep_asking(url, is_back)) for _ in range(CLIENTS)]
        try:
            await _until(lambda devices: devices[last].startswith("group"), url, RECALL_S, f"{last} did not come back")
        finally:
            back_s = time.monotonic() - began
            is_back.set()
            answers = [answer for client in await asyncio.gather(*asking) for answer in client]
    finally:
        store.close()
    return judged(
        "service",
        "loan and recall",
        all(answers),
        lent_after_s=round(lent_s, 1),
        back_after_s=round(back_s, 2),
        answered=f"{sum(answers)} of {len(answers)}",
    )


async def _until_training(store: Any, wait_s: float) -> None:
    """A job that is still starting cannot give anything back."""
    from training.elastic.door import ask

    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        record = store.get(JOB)
        with contextlib.suppress(OSError, TypeError):  # it has not begun
            if (await asyncio.to_thread(ask, Path(record.folder), record.run)).step > 2:
                return
        await asyncio.sleep(0.2)
    raise ServiceFailed(f"the job made no step within {wait_s:g} s of getting a device")


async def _keep_asking(url: str, is_back: asyncio.Event) -> list[bool]:
    answers: list[bool] = []
    while not is_back.is_set():
        answers.append(await asyncio.to_thread(_complete, url, len(answers)))
    return answers


async def _until(holds: Callable[[dict[str, str]], bool], url: str, wait_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if holds((await _admin(url, "/admin/status"))["devices"]):
            return
        await asyncio.sleep(0.05)
    raise ServiceFailed(f"{otherwise} within {wait_s:g} s")


async def _admin(url: str, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = await asyncio.to_thread(ask_admin, url, path)
    return answer


def _complete(url: str, number: int) -> bool:
    import urllib.error
    import urllib.request

    body = {"model": "small", "prompt": f"{number} is", "max_tokens": 24, "ignore_eos": True}
    headers = {"content-type": "application/json", "x-slo-ms": "60000", "x-slo-tpot-ms": "10000"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
