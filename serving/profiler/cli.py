"""`penstock profile`. Heavy imports stand in the function: --help needs none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placement.cli.input import check_outputs

if TYPE_CHECKING:
    from serving.profiler.results import ModelResult, ProfileResult, ShapeResult

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="config.yaml: the devices, and models with a path.")]
Out = Annotated[Path | None, typer.Option(metavar="profiles.json", help="Write the profiles, for the planner.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few steps, a few seconds for each model.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Measure again what was measured before.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_profile_command(app: typer.Typer) -> None:
    app.command()(profile)


def profile(
    config: ConfigFile, out: Out = None, quick: Quick = False, no_cache: NoCache = False, json: Json = False
) -> None:
    """Measure what models cost on this machine's devices."""
    check_outputs({"--out": out})

    from placement.files import write_json
    from serving.config import read_serve_config
    from serving.profiler.cache import Cache, default_folder
    from serving.profiler.effort import FULL, QUICK
    from serving.profiler.profile import profile_models
    from serving.worker.event_loop import run

    read = read_serve_config(config)
    cache = Cache(None if no_cache else default_folder())
    with _progress() as on_progress:
        result = run(profile_models(read, effort=QUICK if quick else FULL, cache=cache, on_progress=on_progress))
    if out is not None:
        write_json(out, result.profiles)
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(_summary(result, out)).decode())
        return
    for model in result.models:
        typer.echo(_text(model))
    for kind in result.absent_kinds:
        typer.echo(f"not here: devices of kind {kind}; measure where they are", err=True)
    if out is not None:
        typer.echo(f"profiles  {out}")


def _summary(result: ProfileResult, out: Path | None) -> dict[str, Any]:
    return {
        "out": None if out is None else str(out),
        "seconds": result.seconds,
        "absent_kinds": result.absent_kinds,
        "models": {
            model.name: {
                "task": model.task,
                "input_tokens": model.input_tokens,
                "cached": model.is_cached,
                "seconds": model.seconds,
                "shapes": [_shape(shape) for shape in model.shapes],
            }
            for model in result.models
        },
    }


def _shape(shape: ShapeResult) -> dict[str, Any]:
    entry, error = shape.entry, shape.error
    known = {"tp": entry.tp, "pp": entry.pp, "kind": entry.kind, "span": entry.span, "source": shape.source}
    if error is None:
        return known
    judged = {"mean": error.mean, "p95": error.p95, "steps": error.steps, "within_goal": error.is_within_goal}
    return known | {"error": judged}


def _text(model: ModelResult) -> str:
    origin = "measured before" if model.is_cached else f"measured in {model.seconds:.0f} s"
    what = "generates" if model.task == "generate" else f"{model.task}, {model.input_tokens} tokens an input"
    return "\n".join([f"{model.name}  ({what}; {origin})", *(f"  {_line(shape)}" for shape in model.shapes)])


def _line(shape: ShapeResult) -> str:
    """One shape, for people."""
    entry = shape.entry
    place = f"{entry.shape!s:11} {entry.kind or 'any':8} {entry.span or '':8} {shape.source:8}"
    memory = f"{entry.memory / 2**20:9.1f} MiB"
    if entry.generation is None:
        first, last = min(entry.stage_latency), max(entry.stage_latency)
        times = f"batch {first}: {entry.latency(first) * 1e3:.2f} ms, {last}: {entry.latency(last) * 1e3:.2f} ms"
        return f"{place} {memory}  {times}"
    step = sum(stage.seconds(0, 1, 0, 128) for stage in entry.generation.stages)
    prompt = sum(stage.seconds(512, 0, 0, 0) for stage in entry.generation.stages)
    times = f"a token {step * 1e3:.2f} ms, 512 of a prompt {prompt * 1e3:.1f} ms"
    if shape.error is None:
        return f"{place} {memory}  {times}"
    judged = "" if shape.error.is_within_goal else ", above the goal of 8% and 15%"
    return f"{place} {memory}  {times}; error {shape.error.mean:.1%}, p95 {shape.error.p95:.1%}{judged}"


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr while the block runs, where somebody is looking."""
    if not sys.stderr.isatty():
        yield lambda share, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("measuring"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=1.0, note="")
        yield lambda share, note: bar.update(task, completed=share, note=note)
