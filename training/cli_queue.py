"""`penstock train submit|list|show|cancel|logs`: on a running server, or straight on a store; `prune`: on a store.

Heavy imports stand in the functions: --help needs none of them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from placement.cli.admin import URL
from placement.errors import InputError

if TYPE_CHECKING:
    from training.queue.client import Client
    from training.queue.states import State

FOLLOW_S = 0.5
ENDS = ("finished", "failed", "cancelled")

Url = Annotated[str | None, typer.Option(metavar="URL", help=f"The server; {URL} by default.")]
StoreUrl = Annotated[str | None, typer.Option("--store", metavar="URL", help="sqlite:///FILE: the store itself.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The job.")]


def add_queue_commands(train: typer.Typer) -> None:
    for command in (submit, list_jobs, show, cancel, logs, prune):
        train.command(name=command.__name__.removesuffix("_jobs"))(command)


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ...]", help="What to run, behind two dashes.")
    ] = None,
    jobs: Annotated[Path | None, typer.Option(metavar="FILE", help="Many jobs: jobs.csv or jobs.yaml.")] = None,
    id: Annotated[str | None, typer.Option(help="Its name; one is made up when absent.")] = None,
    type: Annotated[str | None, typer.Option(help="command, or a built-in one: lm.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Workers it asks for; 1 when absent.")] = None,
    min_gpus: Annotated[int | None, typer.Option(help="Workers it cannot run without.")] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Workers it can use.")] = None,
    priority: Annotated[float | None, typer.Option(help="Higher wins, under policies that look at it.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="How long you expect it to run: 2h.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="From now.")] = None,
    kind: Annotated[str | None, typer.Option(help="The device kind it wants.")] = None,
    user: Annotated[str | None, typer.Option(help="Who answers for it.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the command; several times.")] = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the command runs; here when absent.")
    ] = None,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="lm: the model to train.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="lm: text, or tokens as .npy.")] = None,
    steps: Annotated[int | None, typer.Option(help="lm: how many.")] = None,
    serve_as: Annotated[str | None, typer.Option(metavar="NAME", help="lm: the served model it replaces.")] = None,
    retries: Annotated[int | None, typer.Option(help="Starts after a failure, from its checkpoint.")] = None,
    grace: Annotated[str | None, typer.Option(metavar="TIME", help="Between SIGTERM and SIGKILL.")] = None,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """Queue training jobs."""
    from training.queue.job_lists import read_submissions
    from training.queue.submission import Type, read_submission

    running = {"type": type, "command": command, "env": _variables(env or []) or None, "retries": retries}
    lm = {"steps": steps, "serve_as": serve_as} | {
        name: None if path is None else str(path.resolve()) for name, path in (("model", model), ("data", data))
    }
    running |= {"lm": _given(lm) or None}
    running |= {"grace": grace, "user": user, "directory": None if directory is None else str(directory.resolve())}
    words = {"id": id, "gpus": gpus, "min_gpus": min_gpus, "max_gpus": max_gpus, "priority": priority}
    words |= {"duration": duration, "deadline": deadline, "kind": kind}
    given, words = _given(running), _given(words)
    if type not in (None, *get_args(Type)):
        raise InputError(f"--type {type!r}: give command or lm")
    if jobs is None and not command and type != "lm":
        raise InputError(
            "nothing to run; give a command behind two dashes (-- python train.py), --type lm, or --jobs FILE"
        )
    if command and "directory" not in given:
        given["directory"] = os.getcwd()
    if jobs is None:
        asked = [read_submission(given | words, "job")]
    elif words:
        raise InputError(f"--{next(iter(words)).replace('_', '-')} and --jobs: say it in the file")
    else:
        asked = read_submissions(jobs, **given)
    done = _client(url, store, create=True).submit(asked)
    if json:
        _print({"object": "list", "data": done})
    else:
        typer.echo("\n".join(job["id"] for job in done))


def list_jobs(
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The latest so many.")] = 1000,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """The jobs, in order of submission."""
    found = _client(url, store).jobs(_state(state), user, limit)
    if json:
        _print({"object": "list", "data": found})
        return
    from training.queue.text import jobs_text

    typer.echo(jobs_text(found, time.time()))


def show(job: Id, url: Url = None, store: StoreUrl = None, json: Json = False) -> None:
    """One job, and what happened to it."""
    found = _client(url, store).show(job)
    if json:
        _print(found)
        return
    from training.queue.text import job_text

    typer.echo(job_text(found, time.time()))


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs.")],
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """End jobs: SIGTERM, and SIGKILL when their grace is over."""
    client = _client(url, store)
    done = [client.cancel(job) for job in jobs]
    if json:
        _print({"object": "list", "data": done})
    else:
        typer.echo("\n".join(f"{job['id']} {job['state']}" for job in done))


def logs(
    job: Id,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    url: Url = None,
    store: StoreUrl = None,
    json: Json = False,
) -> None:
    """What a job has written: the last 16 MiB."""
    client = _client(url, store)
    if json and follow:
        raise InputError("--json and --follow: one object cannot be followed; give one of the two")
    parts, offset = [], 0
    while True:
        part = client.logs(job, offset)
        if json:
            parts.append(part)
        else:
            typer.echo(part["data"], nl=False)
        if part["next_offset"] == offset or not part["data"]:
            if not follow or part["state"] in ENDS:
                break
            time.sleep(FOLLOW_S)
        offset = part["next_offset"]
    if json:
        _print(parts[-1] | {"data": "".join(part["data"] for part in parts), "offset": parts[0]["offset"]})


def prune(
    store: Annotated[str, typer.Option(metavar="URL", help="sqlite:///FILE: the store.")],
    days: Annotated[float, typer.Option(min=0, max=36500, help="Keep those that ended in the last so many.")] = 30,
    json: Json = False,
) -> None:
    """Forget jobs that ended long ago, with logs and checkpoints."""
    from training.queue.pruning import prune as forget
    from training.queue.store import open_store

    opened = open_store(store, create=False)
    try:
        gone = forget(opened, days)
    finally:
        opened.close()
    if json:
        _print({"object": "list", "data": gone})
    else:
        typer.echo(f"{len(gone)} jobs that ended more than {days:g} days ago are gone")


def _client(url: str | None, store: str | None, create: bool = False) -> Client:
    from training.queue.client import ServerClient, StoreClient
    from training.queue.store import open_store

    if store is None:
        return ServerClient(url or URL)
    if url is not None:
        raise InputError("--url and --store: give one of the two")
    return StoreClient(open_store(store, create), f"user {os.getuid()}")


def _state(name: str | None) -> State | None:
    from training.queue.states import STATES

    for state in STATES:
        if state == name:
            return state
    if name is None:
        return None
    raise InputError(f"--state {name!r}: no such state; give one of {', '.join(STATES)}")


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--env {text[:80]!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _given(words: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in words.items() if value is not None}


def _print(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())
