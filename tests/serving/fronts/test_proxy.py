"""What a front end passes on, and what it says when that cannot be."""

import asyncio
import json

from serving.fronts.proxy import FrontDoor
from serving.http.settings import HttpSettings


class Exchange:
    """One request to a front end whose own door is never asked."""

    def __init__(self, path="/metrics", body=b"", method="GET"):
        self.scope = {"type": "http", "method": method, "path": path, "query_string": b"a=1"}
        self.scope["headers"] = [(b"host", b"here"), (b"connection", b"keep-alive"), (b"x-mine", b"1")]
        self._body, self.sent = body, []

    async def receive(self):
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message):
        self.sent.append(message)

    async def through(self, back, **settings):
        await FrontDoor(None, back, HttpSettings(**settings))(self.scope, self.receive, self.send)
        body = b"".join(message.get("body", b"") for message in self.sent)
        return self.sent[0]["status"], dict(self.sent[0]["headers"]), body


async def backend(answer, seen):
    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        seen.append((head, await reader.readexactly(size)))
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def ask(answer, **exchange):
    seen = []

    async def scenario():
        async with await backend(answer, seen) as server:
            return await Exchange(**exchange).through(server.sockets[0].getsockname()[1])

    return asyncio.run(scenario()), seen[0]


def test_what_is_asked_and_answered_passes_unchanged():
    answer = b"HTTP/1.1 201 Created\r\nx-yours: 2\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"
    (status, headers, body), (head, asked) = ask(answer, path="/jobs", body=b"what", method="POST")
    assert (status, headers[b"x-yours"], body, asked) == (201, b"2", b"hello", b"what")
    assert head.startswith(b"POST /jobs?a=1 HTTP/1.1\r\n")
    assert b"x-mine: 1" in head
    assert b"keep-alive" not in head
    assert b"connection" not in headers


def test_an_answer_in_chunks():
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    (status, headers, body), _ = ask(answer)
    assert (status, body) == (200, b"abcde")
    assert b"transfer-encoding" not in headers


def test_where_nobody_answers_it_says_so():
    status, headers, body = asyncio.run(Exchange().through(9))
    assert (status, headers[b"retry-after"], json.loads(body)["error"]["code"]) == (503, b"1", "unavailable")


def test_a_body_that_is_too_large_goes_nowhere():
    status, _, body = asyncio.run(Exchange(body=b"x" * 100).through(9, body_bytes=99))
    assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
