"""The commands about models. Heavy imports stand in the functions: --help needs none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placement.errors import InputError
from serving.small_models.names import NAMES, Name

if TYPE_CHECKING:
    from serving.small_models.make import Outcome

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Where to; each model gets a folder of its name in it.")]
Only = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help=f"One of {', '.join(NAMES)}; may be given several times.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Same seed: same models, on the same machine.")]
Steps = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="Training steps of each model, instead of the usual.")
]
Force = Annotated[bool, typer.Option("--force", help="Make anew what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_models_commands(app: typer.Typer) -> None:
    models = typer.Typer(help="Small models to try things with.", rich_markup_mode=None)
    models.callback()(_models)
    models.command()(make)
    app.add_typer(models, name="models")


def make(
    directory: Directory,
    only: Only = None,
    seed: Seed = 0,
    steps: Steps = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train the small built-in models, about three minutes of one core."""
    names = _names(only)

    from serving.small_models.make import make_models

    with _progress() as on_progress:
        outcomes = make_models(directory, names, seed=seed, steps=steps, force=force, on_progress=on_progress)
    if json:
        import msgspec

        typer.echo(msgspec.json.encode({"directory": str(directory), "models": outcomes}).decode())
        return
    for outcome in outcomes:
        typer.echo(_line(outcome))


def _models() -> None:
    """Small models to try things with."""


def _names(only: list[str] | None) -> list[Name]:
    for name in only or ():
        if name not in NAMES:
            raise InputError(f"--only {name!r}: no such model; give one of {', '.join(NAMES)}")
    return [name for name in NAMES if not only or name in only]


def _line(outcome: Outcome) -> str:
    took = f"made in {outcome.seconds:.0f} s" if outcome.made else "there already"
    manifest = outcome.manifest
    return f"{outcome.name:9} {manifest.parameters / 1e6:5.2f} M parameters  {_worth(manifest.measures):58}  {took}"


def _worth(measures: dict[str, float]) -> str:
    if "perplexity" in measures:
        return f"perplexity {measures['perplexity']:.1f} (word counts alone: {measures['unigram_perplexity']:.0f})"
    if "accuracy" in measures:
        return f"accuracy {measures['accuracy']:.1%} (guessing: {measures['accuracy_of_guessing']:.1%})"
    return f"finds the next sentence among {measures['held_out_pairs']}: {measures['found']:.0%}"


@contextmanager
def _progress() -> Iterator[Callable[[str, float, str], None]]:
    """A bar for each model on stderr while the block runs, where somebody is looking."""
    if not sys.stderr.isatty():
        yield lambda name, share, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    tasks: dict[str, TaskID] = {}
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:

        def show(name: str, share: float, note: str) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=1.0, note="")
            bar.update(tasks[name], completed=share, note=note)

        yield show
