"""`penstock check`. Heavy imports stand in the functions: --help needs none of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placement.errors import InputError

if TYPE_CHECKING:
    from serving.check.results import CheckReport, Finding

PARTS = ("machine", "links", "kernels", "engine", "service")


def add_check_command(app: typer.Typer) -> None:
    app.command()(check)


def check(
    only: Annotated[str, typer.Option(help=f"PART,... of {', '.join(PARTS)} (all).")] = "",
    tune: Annotated[bool, typer.Option("--tune", help="Fill the table of kernel tiles for this GPU.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Where the whole report goes (penstock-check.json).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """What works on this machine's devices, and how fast."""
    parts = tuple(part for part in only.split(",") if part) or PARTS
    unknown = next((part for part in parts if part not in PARTS), None)
    if unknown is not None:
        raise InputError(f"--only {unknown}: there are {', '.join(PARTS)}")
    path = out or Path("penstock-check.json")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--out {path}: its folder does not exist; make it first")
    import msgspec

    from placement.files import write_json
    from serving.check.run import run_check
    from serving.worker.event_loop import run

    report = run(run_check(parts, tune, lambda part: typer.echo(f"checking {part} ...", err=True)))
    write_json(path, report)
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        typer.echo(page(report))
        typer.echo(f"report  {path}")
    if report.failed:
        raise typer.Exit(1)


def page(report: CheckReport) -> str:
    """One page for people."""
    rows = [_row(one) for one in report.findings]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    lines = [f"{line}  {row[3]}".rstrip() for line, row in zip(lines, rows, strict=True)]
    counts = {status: sum(one.status == status for one in report.findings) for status in ("pass", "fail", "skip")}
    where = "on GPUs" if report.machine["gpus"] else "on CPU alone: nothing here tells anything of a GPU"
    summary = (
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped in {report.seconds:.0f} s, {where}"
    )
    return "\n".join([*lines, "", summary])


def _row(one: Finding) -> tuple[str, str, str, str]:
    figures = ", ".join(f"{name} {value}" for name, value in one.figures.items() if value is not None)
    return one.status, one.part, one.what, "; ".join(part for part in (figures, one.note) if part)
