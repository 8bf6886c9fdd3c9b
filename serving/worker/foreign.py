"""An engine of others as a configuration names it, and as a group's leader is told of it: a server that speaks OpenAI's
API, which runs already or is started for the group. Knows nothing of how it is started or asked.
"""

from __future__ import annotations

import shlex
from string import Formatter
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from placement.units import parse_seconds

PLACEHOLDERS = ("devices", "kv_bytes", "name", "path", "port", "pp", "tp")
"""What stands in braces in a command."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who computes a model instead of our own workers."""

    kind: Literal["openai", "vllm"]
    """openai: any server that speaks OpenAI's API; vllm: vLLM's, with the arguments that a plan asks for."""
    url: str = ""
    """Of a server that runs already, with its /v1. Its devices are its own business."""
    command: str = ""
    """What starts a server for a group: {port}, {devices}, {tp}, {pp}, {path}, {name} and {kv_bytes} are filled in."""
    model: str = ""
    """What the server calls the model; the first that it lists when absent."""
    key: str = ""
    """A file with the server's API key."""
    prompts: Literal["tokens", "text"] = "tokens"
    """text: for servers that do not take token ids."""
    sleep: str = ""
    """A path that is posted to free the devices, weights kept in host memory. Without it a server that was started
    here is ended instead, and started again to wake up."""
    wake: str = ""
    """A path that is posted to undo `sleep`."""
    start: float | str | None = None
    """How long it may take until it answers: ten minutes when it is started here, else ten seconds."""
    python: str = ""
    """vllm: the interpreter that has it; our own when absent."""
    arguments: tuple[str, ...] = ()
    """vllm: added to the command."""
    environment: dict[str, str] = {}
    """For a server that is started, beside what it inherits."""

    def __post_init__(self) -> None:
        if self.kind == "vllm" and (self.url or self.command):
            raise ValueError("engine vllm is started by itself; give `url` or `command` to engine openai")
        if self.kind == "openai" and bool(self.url) == bool(self.command):
            raise ValueError("engine openai needs one of `url` (a server that runs) and `command` (one to start)")
        if self.kind == "openai" and (self.python or self.arguments):
            raise ValueError("`python` and `arguments` are for engine vllm; write them into `command`")
        if bool(self.sleep) != bool(self.wake):
            raise ValueError("`sleep` and `wake` come together")
        if self.url and (self.sleep or self.environment):
            raise ValueError("`sleep` and `environment` are for a server that is started here")
        if self.url:
            _check_url(self.url)
        if not 1 <= self.start_s <= 86400:
            raise ValueError(f"start is {self.start_s:g}; it must be from 1 to 86400 seconds")
        _check_command(self.command)

    @property
    def start_s(self) -> float:
        if self.start is not None:
            return float(parse_seconds(self.start))
        return 10.0 if self.url else 600.0

    @property
    def is_ours_to_start(self) -> bool:
        return not self.url


def parse_engine(given: str | EngineConfig | None) -> EngineConfig | None:
    """From a configuration, where `vllm` is enough to say; None for our own engine."""
    if given is None or given == "penstock":
        return None
    if isinstance(given, EngineConfig):
        return given
    if given == "vllm":
        return EngineConfig(kind="vllm")
    raise ValueError(f"engine {given!r}: expected penstock, vllm, or {{kind: openai, url or command}}")


def fill_in(command: str, values: dict[str, str]) -> list[str]:
    """The command's words with what stands for each name; a value is never split into words."""
    return [word.format(**values) for word in shlex.split(command)]


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {url!r}: expected http://HOST:PORT/v1")


def _check_command(command: str) -> None:
    try:
        names = {name for word in shlex.split(command) for _, name, _, _ in Formatter().parse(word) if name is not None}
    except ValueError as error:
        raise ValueError(f"command {command!r}: {error}; braces that mean themselves are doubled") from error
    unknown = sorted(names - set(PLACEHOLDERS))
    if unknown:
        raise ValueError(f"command: {{{unknown[0]}}} means nothing; there are {', '.join(PLACEHOLDERS)}")
    if command and "port" not in names:
        raise ValueError("command: {port} is missing, where the server shall listen")
