"""What a front end has passed on, answered where the router is: an ASGI exchange, its messages sent over a link."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp

from serving.fronts.messages import Begin, Body, Next, Pass, ToDesk, ToFront
from serving.http.call import Message
from serving.worker.link import Link

PART_BYTES = 2**16
"""Of a body, in one message."""
AHEAD = 4
"""Parts of an answer that may be under way: who reads slowly is waited for."""

_log = logging.getLogger(__name__)


class Passing:
    """One exchange. `take` is told what the front end says of it; `close` ends it."""

    def __init__(self, link: Link[ToFront, ToDesk], asked: Pass, app: ASGIApp) -> None:
        self._link, self._asked = link, asked
        self._bodies: asyncio.Queue[Body | None] = asyncio.Queue()
        """None: the client is gone."""
        self._room = asyncio.Semaphore(AHEAD)
        self._is_gone = False
        self.task = asyncio.create_task(self._run(app))

    def take(self, said: Body | Next) -> None:
        if isinstance(said, Body):
            self._bodies.put_nowait(said)
        else:
            self._room.release()

    def close(self, answered: bool) -> None:
        """Its client is gone: the application is told, and may end in its own way."""
        self._is_gone = True
        self._bodies.put_nowait(None)
        self._room.release()

    async def _run(self, app: ASGIApp) -> None:
        asked = self._asked
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": asked.method,
            "path": asked.path,
            "raw_path": asked.raw_path,
            "root_path": "",
            "query_string": asked.query,
            "headers": asked.headers,
            "client": None,
            "server": None,
            "state": {},
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception:  # another process's client waits; the application has said what it could
            _log.exception("a request of a front end failed: %s %s", asked.method, asked.path)
            self._link.send(Body(asked.request, b"", True))

    async def _receive(self) -> Message:
        body = await self._bodies.get()
        if body is None:
            self._bodies.put_nowait(None)
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body.part, "more_body": not body.is_last}

    async def _send(self, message: Message) -> None:
        name = self._asked.request
        if message["type"] == "http.response.start":
            self._link.send(
                Begin(name, message["status"], [(bytes(a), bytes(b)) for a, b in message.get("headers", ())])
            )
            return
        body, is_last = bytes(message.get("body", b"")), not message.get("more_body", False)
        for part, is_end in cut(body):
            await self._room.acquire()
            if self._is_gone:
                self._room.release()
                return
            self._link.send(Body(name, part, is_last and is_end))


def cut(body: bytes) -> list[tuple[bytes, bool]]:
    """In parts, each with whether it is the last; an empty one is one part."""
    starts = range(0, max(len(body), 1), PART_BYTES)
    return [(body[start : start + PART_BYTES], start + PART_BYTES >= len(body)) for start in starts]
