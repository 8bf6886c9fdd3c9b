"""What `penstock up` serves: the small models, made once and kept, and a configuration for this machine's cores."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from placement.cache import cache_folder
from placement.errors import InputError
from placement.files import replace_file
from serving.config import ModelEntry, ServeConfig
from serving.http.auth import KEYS_VARIABLE
from serving.models import read_config
from serving.models.config import Task
from serving.models.foreign_config import read_foreign_config
from serving.profiler.present import count_cores
from serving.small_models.manifest import why_not_done
from serving.small_models.names import NAMES
from serving.small_models.settings import SETTINGS, digest

OnProgress = Callable[[str, float, str], None]

DEVICE_MEMORY = "512MiB"
GOALS: dict[str, Any] = {
    "chat": {"slo": {"ttft": "500ms", "tpot": "50ms"}, "tokens": (64, 48), "rate": 2, "cv": 3},
    "moe-chat": {"slo": {"ttft": "500ms", "tpot": "50ms"}, "tokens": (64, 48), "rate": 1, "cv": 3},
    "embed": {"slo": "250ms", "tokens": (64, None), "rate": 5, "cv": 3},
    "classify": {"slo": "250ms", "tokens": (64, None), "rate": 5, "cv": 3},
}
"""Of each model: its latency goal, the tokens of a usual request, and the traffic to plan for."""
STORE, TEXT = "queue.db", "python.txt"
JOB = "better-chat"
LESSON: dict[str, Any] = {"steps": 600, "batch": 8, "micro_batch": 2, "learning_rate": 1e-3, "serve_as": "chat"}
"""What the job of the demo trains: the chat model, further, on whatever is lent; it then takes its place."""


def make_demo(directory: Path | None, listen: str, on_progress: OnProgress) -> Path:
    """Make what is not there yet; returns the configuration's path."""
    folder = directory or cache_folder("demo")
    models = folder / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {(error.strerror or str(error)).lower()}") from error
    _make_models(models, on_progress)
    _make_text(folder / TEXT)
    _queue_job(folder)
    path = folder / "config.yaml"
    replace_file(path, yaml.safe_dump(_config(listen), sort_keys=False).encode())
    return path


def usage_text(url: str, config: ServeConfig) -> str:
    """Lines to paste."""
    tasks = {entry.name: _task(entry) for entry in config.models}
    chat = next((name for name, task in tasks.items() if task == "generate"), None)
    embed = next((name for name, task in tasks.items() if task == "embed"), None)
    has_keys = config.api_keys is not None or bool(os.environ.get(KEYS_VARIABLE))
    key = ' -H "authorization: Bearer $KEY"' if has_keys else ""
    lines = [f"\nPenstock serves {', '.join(tasks)} at {url}  (dashboard: {url}/  API page: {url}/docs)\n"]
    if chat is not None:
        body = {"model": chat, "messages": [{"role": "user", "content": "What is a list?"}], "max_tokens": 48}
        lines += [f"  curl {url}/v1/chat/completions -H 'content-type: application/json'{key} \\", _data(body), ""]
    if embed is not None:
        body = {"model": embed, "input": ["a list of numbers", "a set of words"]}
        lines += [f"  curl {url}/v1/embeddings -H 'content-type: application/json'{key} \\", _data(body), ""]
    if chat is not None:
        shown = "YOUR-KEY" if has_keys else "none"
        lines += [
            "  from openai import OpenAI",
            f'  client = OpenAI(base_url="{url}/v1", api_key="{shown}")',
            f'  stream = client.completions.create(model="{chat}", prompt="def main(", max_tokens=48, stream=True)',
            '  for piece in stream: print(piece.choices[0].text, end="", flush=True)',
            "",
        ]
    program = _program()
    lines.append(f"  {program} status --url {url}        (Ctrl-C stops the server)")
    lines.append(f"  {program} dashboard --url {url}        (a link to the dashboard that may change things too)")
    if config.training is not None:
        lines.append(f"  {program} explain loans --url {url}        (devices that traffic does not need train)")
        lines.append(f"  {program} train list --url {url}")
    return "\n".join([*lines, ""])


def _task(entry: ModelEntry) -> Task:
    path = Path(entry.path)
    return (read_config(path) if entry.foreign is None else read_foreign_config(path)).task


def _data(body: dict[str, Any]) -> str:
    return f"    -d {shlex.quote(msgspec.json.encode(body).decode())}"


def _program() -> str:
    return shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "penstock" else "penstock"


def _config(listen: str) -> dict[str, Any]:
    node = {"name": "local", "devices": count_cores(), "kind": "cpu", "memory": DEVICE_MEMORY}
    models = []
    for name in NAMES:
        goal = GOALS[name]
        prompt, output = goal["tokens"]
        traffic = {"rate": goal["rate"], "cv": goal["cv"], "prompt_tokens": prompt}
        if output is not None:
            traffic["output_tokens"] = output
        models.append({"name": name, "path": f"models/{name}", "slo": goal["slo"], "traffic": traffic})
    training = {"store": f"sqlite:///{STORE}", "data": [TEXT], "loans": {"minimum": "10s"}}
    served = {"cluster": {"nodes": [node]}, "models": models, "listen": listen, "overhead": "2ms"}
    return {"version": 1} | served | {"training": training}


def _make_text(path: Path) -> None:
    """What the models were trained on, as one text."""
    if not path.is_file():
        from serving.small_models.documents import documents, split
        from serving.small_models.text import read_corpus

        replace_file(path, "\n\n".join(documents(split(read_corpus()).train, seed=1, small_talk=True)).encode())


def _queue_job(folder: Path) -> None:
    """Once: a job that has ended is not done again."""
    from training.queue import NoSuchJob, open_store
    from training.queue.submission import Submission

    store = open_store(f"sqlite:///{folder.resolve() / STORE}")
    try:
        store.get(JOB)
    except NoSuchJob:
        lm = {"model": str(folder.resolve() / "models" / "chat"), "data": str(folder.resolve() / TEXT)} | LESSON
        store.submit([Submission(id=JOB, type="lm", max_gpus=count_cores(), lm=lm)], "penstock up")
    finally:
        store.close()


def _make_models(directory: Path, on_progress: OnProgress) -> None:
    """In processes of their own, as many at a time as there are cores, the longest first; one compiles what serving
    will call."""
    missing = [name for name in NAMES if why_not_done(directory / name, digest(SETTINGS[name], seed=0)) is not None]
    if not missing:
        return
    longest_first: list[Callable[[], None]] = [partial(_make_one, directory, name, on_progress) for name in missing]
    longest_first.insert(2, partial(_compile, on_progress))
    with ThreadPoolExecutor(max_workers=max(count_cores(), 1)) as pool:
        for work in [pool.submit(one) for one in longest_first]:
            work.result()


def _make_one(directory: Path, name: str, on_progress: OnProgress) -> None:
    command = [sys.executable, "-P", "-m", "serving.small_models", str(directory), name]
    _run(command, lambda line: _tell(line, f"making {name}", on_progress))
    on_progress(f"making {name}", 1.0, "")


def _compile(on_progress: OnProgress) -> None:
    on_progress("compiling", 0.0, "planner and router, once")
    _run([sys.executable, "-P", "-m", "serving.controller.warm"], lambda line: None)
    on_progress("compiling", 1.0, "")


def _run(command: list[str], on_line: Callable[[str], None]) -> None:
    last: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = process.stderr
        reader = threading.Thread(target=lambda: last.extend(errors.read().strip().splitlines()[-1:]), daemon=True)
        reader.start()
        for line in process.stdout:
            on_line(line)
        reader.join()
    if process.returncode != 0:
        raise InputError(last[0] if last else f"{' '.join(command)} ended with code {process.returncode}")


def _tell(line: str, what: str, on_progress: OnProgress) -> None:
    share, _, note = line.strip().partition(" ")
    on_progress(what, float(share), note)
