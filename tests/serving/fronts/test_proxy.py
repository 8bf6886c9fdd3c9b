"""What a front end passes on, and what it says when that cannot be."""

import asyncio
import json
from contextlib import asynccontextmanager

from serving.fronts.desk import SETTINGS, Desk
from serving.fronts.messages import Join, ToFront
from serving.fronts.passing import AHEAD, PART_BYTES
from serving.fronts.proxy import FrontDoor
from serving.fronts.remote import RemoteRouter
from serving.http.meters import Meters
from serving.http.settings import HttpSettings
from serving.worker.connect import connect
from serving.worker.scratch import Scratch
from tests.serving.controller import worlds


class Exchange:
    """One request to a front end whose own door is never asked."""

    def __init__(self, path="/metrics", body=b"", method="GET"):
        self.scope = {"type": "http", "method": method, "path": path, "query_string": b"a=1"}
        self.scope["headers"] = [(b"host", b"here"), (b"connection", b"keep-alive"), (b"x-mine", b"1")]
        self._body, self.sent, self.gone, self.may_take = body, [], asyncio.Event(), asyncio.Event()
        self.may_take.set()
        self._is_read = False

    async def receive(self):
        if self._is_read:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message):
        await self.may_take.wait()
        self.sent.append(message)

    async def through(self, router, **settings):
        await FrontDoor(None, router, HttpSettings(**settings))(self.scope, self.receive, self.send)
        return self.answer

    @property
    def answer(self):
        return self.sent[0]["status"], dict(self.sent[0]["headers"]), self.body

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


@asynccontextmanager
async def front_end_of(app):
    """The router that a front end asks, whose desk has this application."""
    desk = Desk(None, Meters([]), app, "1")
    with Scratch() as folder:
        await desk.open(f"unix:{folder}/desk")
        router = RemoteRouter()
        router.link = await connect(f"unix:{folder}/desk", ToFront, router.take, lambda *_: None, settings=SETTINGS)
        router.link.send(Join("1", []))
        yield router
        await desk.stop(0.0)


def answering(parts, seen):
    async def app(scope, receive, send):
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        seen.append((scope, body))
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-yours", b"2")]})
        for number, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": number + 1 < len(parts)})
            seen.append(len(part))
        while (await receive())["type"] != "http.disconnect":
            pass
        seen.append("gone")

    return app


def test_what_is_asked_and_answered_passes_unchanged():
    seen, asked = [], b"what" * PART_BYTES

    async def scenario():
        async with front_end_of(answering([b"hello ", b"you" * PART_BYTES], seen)) as router:
            return await Exchange("/jobs", asked, "POST").through(router)

    status, headers, body = worlds.run(scenario())
    assert (status, headers, body) == (201, {b"x-yours": b"2"}, b"hello " + b"you" * PART_BYTES)
    scope, came = seen[0]
    assert (scope["method"], scope["path"], scope["query_string"], came) == ("POST", "/jobs", b"a=1", asked)
    headers = dict(scope["headers"])
    assert (headers[b"x-mine"], headers[b"content-length"]) == (b"1", b"%d" % len(asked))
    assert b"connection" not in headers


def test_who_reads_slowly_is_waited_for():
    seen = []

    async def scenario():
        async with front_end_of(answering([b"x"] * 100, seen)) as router:
            exchange = Exchange()
            exchange.may_take.clear()
            going = asyncio.create_task(exchange.through(router))
            await worlds.until(lambda: len(seen) == 1 + AHEAD)
            await asyncio.sleep(0.05)
            assert len(seen) == 1 + AHEAD, "no more is made than may be under way"
            exchange.may_take.set()
            await asyncio.wait_for(going, 5)
            assert exchange.body == b"x" * 100

    worlds.run(scenario())


def test_an_application_that_waits_is_told_that_the_client_has_gone():
    seen = []

    async def scenario():
        async with front_end_of(answering([], seen)) as router:  # begins an answer, and never ends it
            exchange = Exchange()
            going = asyncio.create_task(exchange.through(router))
            await worlds.until(lambda: exchange.sent)
            exchange.gone.set()
            await asyncio.wait_for(going, 5)
            await worlds.until(lambda: "gone" in seen)

    worlds.run(scenario())


def test_where_nobody_answers_it_says_so():
    status, headers, body = asyncio.run(Exchange().through(RemoteRouter()))
    assert (status, headers[b"retry-after"], json.loads(body)["error"]["code"]) == (503, b"1", "unavailable")


def test_a_body_that_is_too_large_goes_nowhere():
    status, _, body = asyncio.run(Exchange(body=b"x" * 100).through(RemoteRouter(), body_bytes=99))
    assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
