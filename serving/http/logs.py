"""Structured logs on stderr: one JSON object a line, or coloured words on a terminal."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

Log = structlog.typing.FilteringBoundLogger

_GATHER_S = 0.1
_MOST_LINES = 256


def configure_logs(form: Literal["json", "console", "auto"] = "auto", level: str = "info") -> None:
    """For the whole process, before anything is logged; what libraries warn of goes the same way."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    if console:
        ending: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        ending = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending]
    )
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # It warns of every client that does not speak HTTP; whoever floods us need not flood the log as well.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def get_log(name: str) -> Log:
    log: Log = structlog.get_logger(part=name)
    return log


class _Stderr:
    """Whatever stderr is at the time: a program that runs us may have changed it since logs were set up."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class RequestLog:
    """One line a request, gathered for a moment: a write for each would cost more than everything else about it."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._log = get_log("http")
        self._is_console = isinstance(structlog.get_config()["processors"][-1], structlog.dev.ConsoleRenderer)

    def write(self, facts: dict[str, Any]) -> None:
        if self._is_console:
            self._log.info("request", **facts)
            return
        line = {"timestamp": datetime.now(UTC), "level": "info", "part": "http", "event": "request"} | facts
        self._lines.append(msgspec.json.encode(line))
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(_GATHER_S, self.flush)
        elif len(self._lines) >= _MOST_LINES:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            sys.stderr.write(b"\n".join([*lines, b""]).decode())
            sys.stderr.flush()


def _json(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
