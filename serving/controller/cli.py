"""`penstock serve`, `up`, `status`, `explain`. Heavy imports stand in the functions: --help needs none of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placement.cli.admin import URL, admin_key, ask_admin
from placement.errors import InputError

if TYPE_CHECKING:
    from serving.config import ServeConfig
    from serving.controller.serve import Running

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="config.yaml: devices, models, and how to serve.")]
PlanFile = Annotated[Path | None, typer.Option(metavar="plan.json", help="Serve with this plan instead of searching.")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Instead of the configuration's.")]
Logs = Annotated[str, typer.Option(metavar="FORM", help="json, console, or auto: console on a terminal.")]
Quick = Annotated[bool, typer.Option("--quick", help="Measure models with few steps, where they must be measured.")]
Url = Annotated[str, typer.Option(metavar="URL", help="The server.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

EXPLAINED = ("plan", "refusals", "moves", "experts", "loans")


def add_serve_commands(app: typer.Typer) -> None:
    for command in (up, serve, front, status, explain, dashboard):
        app.command()(command)


def serve(
    config: ConfigFile,
    plan: PlanFile = None,
    listen: Listen = None,
    quick: Quick = False,
    logs: Logs = "auto",
    launcher: Annotated[str, typer.Option(metavar="local|ray", help="Who starts the workers.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster's head; that of this node when absent.")
    ] = None,
) -> None:
    """Serve the models of a configuration over HTTP."""
    from serving.controller.machines import make_machines

    machines = make_machines(launcher, address)
    _serve(_read(config, listen), plan, quick, logs, machines)


def front(
    config: ConfigFile,
    connect: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The desk of the server; the configuration's when absent.")
    ] = None,
    listen: Listen = None,
    logs: Logs = "auto",
) -> None:
    """Answer HTTP on this host for a server on another one.

    Both read the same configuration, which has a `desk`.
    """
    from serving.controller.front_process import make_document, serve_front
    from serving.worker.event_loop import run

    document = make_document(_read(config, listen), connect, _form(logs))

    def on_ready(port: int) -> None:
        typer.echo(f"Penstock answers at {document.host}:{port} for {document.desk}", err=True)

    run(serve_front(document, on_ready))


def up(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Where models and configuration are kept; in the cache folder when absent."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve.")] = "127.0.0.1:8000",
    logs: Logs = "auto",
) -> None:
    """The whole system on this machine, with small models: the demo."""
    from serving.config import parse_listen, read_serve_config
    from serving.controller.demo import make_demo
    from serving.http import check_address

    _form(logs)
    try:
        check_address(*parse_listen(listen))  # before the minutes that making models takes
    except ValueError as error:
        raise InputError(f"--{error}") from error
    with _progress() as on_progress:
        config = make_demo(directory, listen, on_progress)
    _serve(read_serve_config(config), None, True, logs)


def status(
    url: Url = URL,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every second.")] = False,
    json: Json = False,
) -> None:
    """Who has which device, what groups serve, queue and attainment."""
    if watch:
        if json:
            raise InputError("--watch and --json: give one of the two")
        from serving.controller.watch import watch_status

        watch_status(lambda: ask_admin(url, "/dashboard/snapshot"))
        return
    from serving.controller.status import status_text

    found = ask_admin(url, "/admin/status")
    typer.echo(_encoded(found) if json else status_text(found))


def explain(
    what: Annotated[str, typer.Argument(metavar="|".join(EXPLAINED), help="What to explain.")],
    url: Url = URL,
    json: Json = False,
) -> None:
    """Why things are so: the plan, refusals, moves, experts, loans."""
    if what not in EXPLAINED:
        raise InputError(f"{what!r} cannot be explained; one of {', '.join(EXPLAINED)} can")
    from serving.controller.status import explain_text

    found = ask_admin(url, f"/admin/explain/{what}")
    typer.echo(_encoded(found) if json else explain_text(what, found))


def dashboard(
    url: Url = URL,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
) -> None:
    """Print a link to the dashboard that may change things too.

    It carries the admin key, where that is known here: keep it to yourself.
    """
    from urllib.parse import quote, urlsplit

    ask_admin(url, "/livez")
    key = admin_key(urlsplit(url))
    link = url.rstrip("/") + "/" + (f"#key={quote(key, safe='')}" if key else "")
    typer.echo(link)
    if open_it and typer.launch(link) != 0:
        raise InputError("no browser was found on this machine; open the address above in one")


def _serve(config: Any, plan: Path | None, quick: bool, logs: str, machines: Any = None) -> None:
    form = _form(logs)
    from serving.controller.demo import usage_text
    from serving.controller.machines import LOCAL
    from serving.controller.serve import serve as run_server
    from serving.http import configure_logs
    from serving.profiler.effort import FULL, QUICK
    from serving.worker.event_loop import run

    configure_logs(form)

    def on_ready(running: Running) -> None:
        bar.stop()
        typer.echo(usage_text(running.url, config), err=True)

    with _progress() as on_progress:
        bar = on_progress
        options: dict[str, Any] = {"plan": plan, "effort": QUICK if quick else FULL, "machines": machines or LOCAL}
        run(run_server(config, **options, on_progress=on_progress, on_ready=on_ready))


def _read(config: Path, listen: str | None) -> ServeConfig:
    import msgspec

    from serving.config import read_serve_config

    read = read_serve_config(config)
    try:
        return read if listen is None else msgspec.structs.replace(read, listen=listen)
    except ValueError as error:
        raise InputError(f"--{error}") from error


def _form(logs: str) -> Literal["json", "console", "auto"]:
    if logs not in ("json", "console", "auto"):
        raise InputError(f"--logs {logs!r}: give json, console or auto")
    return logs  # type: ignore[return-value]


def _encoded(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _progress() -> Any:
    from serving.controller.progress import Progress

    return Progress(sys.stderr)
