"""One front end: `python -m serving.controller.front_process`, with its document on stdin. Serves until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from placement.errors import InputError
from placement.files import convert
from serving.worker.lifeline import read_document

if TYPE_CHECKING:
    from serving.config import DeskConfig, ServeConfig

COUNT_S = 1.0
"""Between two tellings of what was counted."""


class FrontDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a front end is told at its start."""

    config: dict[str, Any]
    """The server's configuration, its paths whole."""
    host: str
    port: int
    desk: str
    """Address of the link to the desk of the process that routes."""
    secret: bytes | None = None
    """For a desk on another host."""
    keys: dict[str, str] = {}
    """Variables with keys, which workers do not inherit; of a server on another host, this process has its own."""
    logs: Literal["json", "console", "auto"] = "json"

    def __repr__(self) -> str:
        return f"FrontDocument({self.host!r}, {self.port}, {self.desk!r})"


def read_secret(desk: DeskConfig) -> bytes:
    """What both ends of a link to the desk know."""
    from placement.files import read_bytes
    from serving.worker.handshake import check_secret

    return check_secret(read_bytes(Path(desk.secret)).strip(), desk.secret)


def make_document(config: ServeConfig, connect: str | None, logs: Literal["json", "console", "auto"]) -> FrontDocument:
    """For a front end of its own, whose server is on another host."""
    from serving.config import parse_listen
    from serving.worker.address import TcpAddress

    if config.desk is None:
        raise InputError("the configuration has no `desk`: give the one of the server, with `listen` and `secret`")
    try:
        host, port = config.desk.address if connect is None else parse_listen(connect)
    except ValueError as error:
        raise InputError(f"--connect: {error}") from error
    return FrontDocument(
        config=msgspec.to_builtins(config, enc_hook=float),
        host=config.address.host,
        port=config.address.port,
        desk=str(TcpAddress(host, port)),
        secret=read_secret(config.desk),
        logs=logs,
    )


def main() -> int:
    try:
        document = convert(read_document(), FrontDocument, "front end's document")
        from serving.worker.event_loop import run

        run(serve_front(document))
    except InputError as error:
        sys.stderr.write(f"front end: {error}\n")
        return 2
    return 0


async def serve_front(document: FrontDocument, on_ready: Callable[[int], None] = lambda port: None) -> None:
    """Ends the process. `on_ready` is told the port; an InputError says why there is no desk to serve for."""
    from serving.config import ServeConfig
    from serving.controller.served import read_models
    from serving.fronts.desk import SETTINGS
    from serving.fronts.messages import Join, ToDesk, ToFront
    from serving.fronts.proxy import FrontDoor
    from serving.fronts.remote import RemoteRouter
    from serving.http import HttpServer, HttpSettings, Service, configure_logs, make_app, read_keys
    from serving.worker.connect import connect
    from serving.worker.link import Link, LinkError

    configure_logs(document.logs)
    config = convert(document.config, ServeConfig, "front end's configuration")
    router = RemoteRouter()
    service = Service(
        router=router,
        models={name: one.served(lambda: "ready") for name, one in read_models(config).items()},
        settings=HttpSettings(
            body_bytes=int(config.limits.body), prompt_tokens=config.limits.prompt_tokens, hosts=config.hosts
        ),
        keys=read_keys(None if config.api_keys is None else Path(config.api_keys), dict(os.environ) | document.keys),
        listen=document.host,
    )
    door = make_app(service)

    def lose(link: Link[ToDesk, ToFront], reason: str) -> None:
        sys.stderr.write(f"front end: the process that routes is gone: {reason}\n")
        os._exit(1)  # nothing that is open here can be answered any more

    try:
        router.link = await connect(
            document.desk, ToFront, router.take, lose, secret=document.secret, settings=SETTINGS
        )
    except LinkError as error:
        raise InputError(f"no desk to serve for: {error}") from error
    router.link.send(Join(version("penstock"), list(service.models)))
    front = FrontDoor(door, router, service.settings)
    server = HttpServer(door, document.host, document.port, service.settings, front)
    telling = asyncio.create_task(_tell(router.link, door.meters))
    on_ready(server.port)
    await server.run_until_signal()
    telling.cancel()
    os._exit(0)


async def _tell(link: Any, meters: Any) -> None:
    from serving.fronts.counts import take_counts

    while True:
        await asyncio.sleep(COUNT_S)
        link.send(take_counts(meters))


if __name__ == "__main__":
    sys.exit(main())
