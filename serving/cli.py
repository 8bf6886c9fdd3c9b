"""The `penstock` program: its commands, and what every one of them does about errors.

Exit 0 done, 1 ran and failed, 2 bad input, each failure in one line on stderr. Imports nothing heavy before
a command runs, so that --help answers at once.
"""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli import add_load_command
from moe.cli import add_moe_commands
from placement.cli.commands import add_commands
from placement.errors import InputError
from serving.check.cli import add_check_command
from serving.controller.cli import add_serve_commands
from serving.profiler.cli import add_profile_command
from serving.small_models.cli import add_models_commands
from training.cli import add_train_commands

if TYPE_CHECKING:
    from serving.models.routes import RoutedDecoder

INTERRUPTED = 130
BROKEN_PIPE = 141
LONGEST_REASON = 300
"""Characters; a compiler's complaint can be pages."""


def _open_routed(directory: Path) -> RoutedDecoder:
    from serving.models.routes import RoutedDecoder

    return RoutedDecoder(directory)


app = typer.Typer(
    help="Serve many models from one pool of GPUs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_serve_commands(app)
add_commands(app)
add_models_commands(app)
add_profile_command(app)
add_load_command(app)
add_check_command(app)
add_moe_commands(app, _open_routed)
add_train_commands(app)


def main() -> None:
    """The entry point."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
        code = code or 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("penstock", list(arguments) or ["--help"]) as context:
            command.invoke(context)
            sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        _silence()
        return BROKEN_PIPE
    except Exception as error:  # the process boundary
        if _is_debugging():
            traceback.print_exc()
        return _explain(error)
    return 0


def _explain(error: Exception) -> int:
    if _is_bad_input(error):
        return _fail(2, str(error))
    format_message = getattr(error, "format_message", None)  # what typer raises on a wrong command line
    if format_message is not None:
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "penstock"
        return _fail(2, f"{format_message().rstrip('.')}; see {place} --help")
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON)
    hint = "" if _is_debugging() else " (PENSTOCK_DEBUG=1 shows where)"
    return _fail(1, f"failed unexpectedly: {reason}{hint}")


def _is_bad_input(error: Exception) -> bool:
    if isinstance(error, InputError):
        return True
    if not isinstance(error, ValueError):
        return False
    from loadgen.errors import TrafficError

    return isinstance(error, TrafficError)


def _fail(code: int, message: str) -> int:
    typer.echo(f"penstock: {' '.join(message.split())}", err=True)
    return code


def _is_debugging() -> bool:
    return os.environ.get("PENSTOCK_DEBUG", "0") not in ("", "0")


def _silence() -> None:
    """Let what is still buffered for a closed stdout go nowhere, instead of failing once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve many models from one pool of GPUs."""


if __name__ == "__main__":
    main()
