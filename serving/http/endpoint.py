"""One route's way through: checks, work, and whatever goes wrong told in the right shape. Knows nothing of models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from serving.http.auth import Keys
from serving.http.call import Call, Headers, Message, Receive, Send
from serving.http.errors import (
    Forbidden,
    HttpError,
    Internal,
    TooSlow,
    Unauthorised,
    Unavailable,
    as_http,
    error_answer,
)
from serving.http.guard import Guard, check_encoding, check_json
from serving.http.logs import get_log
from serving.http.routes import Route
from serving.http.watch import Reason

CALL = "penstock.call"
_log = get_log("http")
_DONE = b"data: [DONE]\n\n"
TELL_S = 10.0
"""How long a client may take to read what went wrong; nobody watches it any more."""


class Endpoint:
    """An ASGI application for one route; `run` is the shorter way in for whoever has the call. `is_full`: whether no
    more may be taken in; those who look after the server always are."""

    def __init__(self, route: Route, guard: Guard, keys: Keys, is_full: Callable[[], bool]) -> None:
        self.route = route
        self._guard, self._keys, self._is_full = guard, keys, is_full

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self.run(scope[CALL])

    async def run(self, call: Call) -> None:
        call.facts["route"] = self.route.path
        try:
            self._check(call)
            await self.route.handle(call)
        except asyncio.CancelledError:
            await self._cancelled(call, call.unwatch())
        except Exception as error:
            call.unwatch()
            await fail(call, error, self.route.plain_errors)
        finally:
            call.unwatch()

    def _check(self, call: Call) -> None:
        route, headers = self.route, call.headers
        if route.access != "open":
            self._guard.check_host(headers)
        if route.changes:
            self._guard.check_origin(headers)
            if route.any_type:
                check_encoding(headers)
            else:
                check_json(headers)
        if route.access == "key" and self._is_full():
            raise Unavailable("too many open requests", code="busy", retry_after_s=1)
        if route.access == "key" and not self._keys.is_open:
            tenant = self._keys.tenant(headers.get(b"authorization"))
            if tenant is None:
                raise Unauthorised("no valid key; send `Authorization: Bearer KEY` with a key this server knows")
            call.tenant = tenant
        elif route.access == "admin" or (route.access == "look" and not self._keys.may_anybody_look):
            self._check_admin(headers.get(b"authorization"))

    def _check_admin(self, authorization: bytes | None) -> None:
        if not self._keys.has_admin:
            raise Forbidden("this is closed: no admin key is set", code="no_admin_key")
        if authorization is None:
            raise Unauthorised("the admin key is needed: `Authorization: Bearer KEY`")
        if not self._keys.is_admin(authorization):
            raise Forbidden("this key is not the admin key", code="not_admin")

    async def _cancelled(self, call: Call, reason: Reason | None) -> None:
        """By our own watch, or because the server stops."""
        call.facts["ended"] = reason or "stopped"
        if reason in ("gone", "stalled"):
            call.status = call.status or 499
            return
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        await fail(call, _ended(reason), self.route.plain_errors)


async def fail(call: Call, error: Exception, plain: bool = False) -> None:
    """Before the first byte as an HTTP error, after it as an event; given up when the client does not read."""
    told = as_http(error)
    if isinstance(told, Internal):
        _log.error("failed", id=call.id, path=call.scope["path"], exc_info=error)
    call.facts["code"] = told.code
    body = msgspec.json.encode({"error": str(told)} if plain else error_answer(told))
    if call.is_ended:
        return
    try:
        async with asyncio.timeout(TELL_S):
            if call.is_started:
                await call.write(b"data: " + body + b"\n\n" + _DONE, more=False)
            else:
                await call.answer(body, told.status, headers=_headers(call, told))
    except TimeoutError:
        call.facts["ended"] = "stalled"


def _ended(reason: Reason | None) -> HttpError:
    match reason:
        case "slow":
            return TooSlow("the body did not come in time")
        case "late":
            return TooSlow("the answer was not complete in time; ask for less, or again later")
    return Unavailable("the server is stopping", code="stopping", retry_after_s=1)


def _headers(call: Call, error: HttpError) -> Headers:
    headers: Headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, Unauthorised):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, TooSlow) or call.has_unread_body():
        headers.append((b"connection", b"close"))
    return headers
