"""Clients that leave, stall, dawdle or flood: nothing of theirs stays."""

import asyncio
import json
import time

import pytest

from serving.http import HttpSettings, endpoint
from serving.http.call import Call
from tests.serving.http.doubles import DirectRouter, EchoGroup, running
from tests.serving.http.raw import Answer, ask, connect, exchange, read_all, request

CHAT = {"model": "chat", "prompt": "water", "max_tokens": 400}
QUICK = HttpSettings(header_s=0.3, body_s=0.3, stall_s=0.5, idle_s=0.5, log_requests=False)


def post(body, path="/v1/completions", **more):
    return request("POST", path, json.dumps(body).encode(), **more)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_sequence_at_once(stream):
    group = EchoGroup(step_s=0.01)
    with running(router=DirectRouter(group)) as server:
        with connect(server) as one:
            one.sendall(post(CHAT | {"stream": stream, "n": 2}))
            server.wait_until(lambda: group.open)
            time.sleep(0.05)
        left_s = time.monotonic()
        server.wait_until(lambda: group.cancelled and not group.open)
        assert time.monotonic() - left_s < 2.0  # of the four seconds that the answer would take
        meters = server.app.meters.models["chat"]
        server.wait_until(lambda: server.app.meters.open == 0)
        assert (meters.running, meters.waiting, meters.unserved) == (0, 0, {"cancelled": 1})


def test_a_one_pass_client_that_goes():
    group = EchoGroup(step_s=5.0)
    with running(router=DirectRouter(group)) as server:
        with connect(server) as one:
            one.sendall(post({"model": "embed", "input": "a"}, "/v1/embeddings"))
            server.wait_until(lambda: group.open)
        server.wait_until(lambda: group.cancelled and not group.open, 3.0)


def test_several_prompts_are_all_given_up():
    group = EchoGroup(step_s=0.01)
    with running(router=DirectRouter(group)) as server:
        with connect(server) as one:
            one.sendall(post(CHAT | {"prompt": ["a", "b", "c"], "stream": True}))
            server.wait_until(lambda: len(group.open) == 3)
        server.wait_until(lambda: len(group.cancelled) == 3 and not group.open, 3.0)


def test_a_request_that_takes_too_long():
    settings = HttpSettings(request_s=0.2, log_requests=False)
    with running(router=DirectRouter(EchoGroup(step_s=0.05)), settings=settings) as server:
        answer = ask(server, "POST", "/v1/completions", CHAT)
        assert answer.status == 408
        assert answer.json()["error"]["code"] == "timeout"
        streamed = ask(server, "POST", "/v1/completions", CHAT | {"stream": True})
        assert streamed.status == 200
        assert b'data: {"error":' in streamed.body
        assert b"data: [DONE]\n\n" in streamed.body
        assert not server.group.open


def test_a_client_that_does_not_read_is_given_up():
    settings = HttpSettings(stall_s=0.3, log_requests=False)
    with running(settings=settings) as server, connect(server) as one:
        # One answer is some 40 kB of events a token; nothing of it is read.
        body = CHAT | {"n": 64, "stream": True, "logprobs": 2}
        for _ in range(4):
            one.sendall(post(body))
        server.wait_until(lambda: server.group.cancelled and not server.group.open, 8.0)


@pytest.mark.parametrize("is_started", [False, True])
def test_a_client_that_does_not_read_its_error_is_given_up(is_started, monkeypatch):
    monkeypatch.setattr(endpoint, "TELL_S", 0.05)

    async def work():
        async def send(message):
            await asyncio.sleep(60)

        call = Call({"headers": [], "path": "/"}, None, send, QUICK)
        call.is_started = is_started
        await asyncio.wait_for(endpoint.fail(call, ValueError("unforeseen")), 5.0)
        assert call.facts["ended"] == "stalled"

    asyncio.run(work())


def test_slow_heads_and_bodies():
    with running(settings=QUICK) as server:
        assert exchange(server, b"") == b""
        assert exchange(server, b"POST /v1/completions HT").startswith(b"HTTP/1.1 408")
        assert exchange(server, post(CHAT, length=5000)).startswith(b"HTTP/1.1 408")
        with connect(server) as one:
            one.sendall(request("GET", "/livez"))
            assert b"200 OK" in one.recv(65536)
            assert read_all(one) == b""  # idle
        with connect(server) as one:
            one.sendall(request("GET", "/livez"))
            assert b"200 OK" in one.recv(65536)
            one.sendall(b"GET /livez HTT")
            assert read_all(one).startswith(b"HTTP/1.1 408")


def test_heads_and_bodies_that_are_too_large():
    with running(settings=HttpSettings(body_bytes=100_000, log_requests=False)) as server:
        flood = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000))
        assert exchange(server, flood)[9:12] in (b"400", b"431")
        assert exchange(server, flood + b"\r\n")[9:12] in (b"400", b"431")
        assert exchange(server, b"GET /" + b"a" * 100_000)[9:12] in (b"400", b"431")
        large = ask(server, "POST", "/v1/completions", CHAT | {"prompt": "a" * 200_000})
        assert large.status == 413
        assert large.headers["connection"] == "close"
        chunk = b"%x\r\n%b\r\n" % (60_000, b"a" * 60_000)
        endless = request("POST", "/v1/completions", headers=[("Content-Type", "application/json")])
        endless = endless.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert Answer(exchange(server, endless + chunk * 2)).status == 413


def test_a_server_that_is_full_says_so():
    settings = HttpSettings(open_requests=1, log_requests=False)
    group = EchoGroup(step_s=1.5)
    with running(router=DirectRouter(group), settings=settings) as server, connect(server) as one:
        one.sendall(post({"model": "embed", "input": "a"}, "/v1/embeddings"))
        server.wait_until(lambda: group.open)
        answer = ask(server, "POST", "/v1/embeddings", {"model": "embed", "input": "a"})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert ask(server, "GET", "/v1/models/embed").json()["error"]["code"] == "busy"
        assert ask(server, "GET", "/v2/models/embed/versions/1").json() == {"error": "too many open requests"}
        assert ask(server, "GET", "/livez").status == 200
        assert b"200 OK" in one.recv(65536)


def test_stopping_lets_open_requests_finish_and_cuts_off_the_rest():
    settings = HttpSettings(drain_s=2.0, log_requests=False)
    short, long = CHAT | {"max_tokens": 10}, CHAT | {"stream": True}
    with (
        running(router=DirectRouter(EchoGroup(step_s=0.02)), settings=settings) as server,
        connect(server) as one,
        connect(server) as two,
        connect(server) as idle,
    ):
        one.sendall(post(short))
        two.sendall(post(long))
        server.wait_until(lambda: len(server.group.open) == 2)
        server.run(server.server.stop())
        assert b"200 OK" in read_all(one)
        assert read_all(two).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert read_all(idle) == b""
        assert not server.group.open
