"""`penstock moe profile`. Heavy imports stand in the functions: --help needs none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from moe.profile import RoutedModel

OpenModel = Callable[[Path], "RoutedModel"]
"""From a directory; whoever runs models hands it in."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model with experts, in Hugging Face layout.")]
Prompts = Annotated[Path, typer.Option(metavar="FILE", help="Prompts: .txt, one a line, or .jsonl.")]
Out = Annotated[
    Path | None, typer.Option(metavar="PROFILE", help="Write it there instead of into the model's directory.")
]
Loads = Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write loads for `penstock moe replicate`.")]
Report = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page to look at.")]
Png = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write its heat maps as a picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def make_profile_command(open_model: OpenModel) -> Callable[..., None]:
    def profile(
        model: Model,
        prompts: Prompts,
        out: Out = None,
        loads: Loads = None,
        report: Report = None,
        png: Png = None,
        json: Json = False,
    ) -> None:
        """Learn which experts tokens choose, and how well that foretells."""
        from placement.cli.input import check_outputs

        check_outputs({"--out": out, "--loads": loads, "--report": report, "--png": png})

        from rich.console import Console
        from rich.progress import track

        from moe.popularity import FILE_NAME, save_profile
        from moe.profile import profile_routes
        from moe.prompts import read_prompts

        texts = read_prompts(prompts)
        opened = open_model(model)
        target = model / FILE_NAME if out is None else out
        check_outputs({"--out": target})
        shown = track(texts, "profiling", console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        found = profile_routes(opened, shown, prompts)
        save_profile(target, found.paths)
        summary: dict[str, Any] = {"model": str(model), "profile": str(target), **found.summary()}
        if loads is not None:
            write_loads(loads, found.history)
        if report is not None or png is not None:
            from moe.profile_report import write_profile_report
            from reports import command_line

            write_profile_report(report, png, str(model), prompts, found, command_line())
        if json:
            from placement.files import encode_json

            typer.echo(encode_json(summary).decode())
        else:
            typer.echo(_text(summary))

    return profile


def write_loads(path: Path, history: Any) -> None:
    """What `read_loads` reads."""
    import io

    import numpy as np

    from placement.files import VERSION, replace_file

    buffer = io.BytesIO()
    np.savez_compressed(buffer, version=np.array(VERSION), load=history.sum(axis=0), history=history)
    replace_file(path, buffer.getvalue())


def _text(summary: dict[str, Any]) -> str:
    held_out = summary["held_out"]
    lines = [
        f"{summary['prompts']} prompts, {summary['tokens']} tokens, {len(summary['layers'])} layers of"
        f" {summary['experts']} experts",
        f"{'':5}  {'':40} {'':14}  {'':5}  total variation",
        f"layer  {'most chosen (share)':40} busiest / mean  never  by mean  by path",
    ]
    for layer in summary["layers"]:
        top = ", ".join(f"{expert} ({share:.1%})" for expert, share in layer["top"])
        errors = [f"{layer[name]['total_variation']:7.3f}" for name in ("marginal", "path") if layer[name] is not None]
        lines.append(
            f"{layer['layer']:5}  {top:40} {layer['busiest_over_mean']:14.2f}  {layer['never_chosen']:5}"
            f"  {'  '.join(errors)}"
        )
    lines += [
        f"{name:9} top-{held_out['k']} recall {held_out[name]['recall']:.2f}, total variation"
        f" {held_out[name]['total_variation']:.3f}"
        for name in ("marginal", "path")
        if held_out[name] is not None
    ]
    lines.append(f"judged on {held_out['prompts']} prompts, {held_out['tokens']} tokens, before they were learned too")
    lines.append(f"profile   {summary['profile']}")
    return "\n".join(lines)
