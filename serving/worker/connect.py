"""Making a link to a listener, which may not be there yet."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from serving.worker.address import Address, TcpAddress, UnixAddress, explain, parse_address
from serving.worker.greeting import Greeting
from serving.worker.handshake import ConnectorHandshake, HandshakeError, check_secret
from serving.worker.link import Link, LinkError, OnClose, OnMessage, R, S
from serving.worker.settings import LinkSettings

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5


async def connect(
    address: str,
    receive: Any,
    on_message: OnMessage[S, R],
    on_close: OnClose[S, R],
    *,
    secret: bytes | None = None,
    deadline_s: float = 10.0,
    settings: LinkSettings | None = None,
) -> Link[S, R]:
    """A link to `address`, tried again until the deadline; `receive` is the union of messages that may come.

    Messages may come before this returns. `secret` is needed on TCP, and not looked at otherwise. LinkError: nobody
    listens there in time, or (at once) the secrets differ.
    """
    where = parse_address(address)
    settings = settings or LinkSettings()
    proof = check_secret(secret, str(where)) if isinstance(where, TcpAddress) else None
    decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(receive)
    loop = asyncio.get_running_loop()
    end, pause_s = loop.time() + deadline_s, FIRST_PAUSE_S
    while True:
        link = Link(str(where), decoder, on_message, on_close, settings)
        try:
            async with asyncio.timeout_at(end):
                await _try(where, link, proof, settings.handshake_s)
                return link
        except (HandshakeError, PermissionError) as error:
            raise LinkError(f"{where}: {error}") from error
        except OSError as error:
            why = explain(error)
        if loop.time() + pause_s >= end:
            raise LinkError(f"{where}: no listener within {deadline_s:g} s: {why}")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _try(where: Address, link: Link[S, R], secret: bytes | None, handshake_s: float) -> None:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()

    def settle(_: Greeting, error: Exception | None) -> None:
        if opened.done():
            return
        if error is None:
            opened.set_result(None)
        else:
            opened.set_exception(error)

    handshake = None if secret is None else ConnectorHandshake(secret)
    greeting = Greeting(link, handshake, handshake_s, settle)
    try:
        if isinstance(where, UnixAddress):
            await loop.create_unix_connection(lambda: greeting, str(where.path))
        else:
            await loop.create_connection(lambda: greeting, where.host, where.port)
        await opened
    except BaseException:
        greeting.abort()
        if opened.done() and not opened.cancelled():
            opened.exception()  # looked at, or the loop would complain that nobody did
        raise
