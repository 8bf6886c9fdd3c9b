"""Requests that no client should send. None may cause a 5xx, a hang or growth."""

import gc
import json
import random

import psutil
import pytest

from serving.http import HttpSettings
from tests.serving.http.doubles import running
from tests.serving.http.raw import Answer, ask, connect, read_all, request

PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v2/models/embed/infer",
]
GOOD = {
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/completions": {"model": "plain", "prompt": "a", "max_tokens": 2},
    "/v1/embeddings": {"model": "embed", "input": "a"},
    "/tokenize": {"model": "chat", "prompt": "a"},
    "/detokenize": {"model": "chat", "tokens": [1]},
    "/v2/models/embed/infer": {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]},
}
FIELDS = [
    "model", "messages", "prompt", "input", "inputs", "max_tokens", "temperature", "top_p", "top_k", "n", "stop",
    "seed", "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "tools", "tool_choice",
    "response_format", "stop_token_ids", "min_tokens", "echo", "encoding_format", "dimensions", "tokens", "outputs",
    "id", "parameters", "chat_template_kwargs", "skip_special_tokens",
]  # fmt: skip
VALUES = [
    None, True, -1, 0, 1, 3, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320, "", "a", "\x00", "\ud800",
    "chat", "embed", "水" * 50, [], [[]], [None], [1, "a"], [[1], [2]], ["a"] * 40, [10**9], {}, {"a": {"b": []}},
    {"1": 2}, {"type": "text"}, {"include_usage": True}, [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{}],
    [{"name": "text", "datatype": "BYTES", "shape": [-1], "data": ["a"]}],
    [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 10**30]}],
]  # fmt: skip
SETTINGS = HttpSettings(
    header_s=0.2, body_s=0.2, stall_s=1.0, idle_s=0.3, body_bytes=50_000, prompt_tokens=400, log_requests=False
)


def wrong_fields(dice, path):
    body = dict(GOOD[path])
    for _ in range(dice.randint(1, 3)):
        body[dice.choice(FIELDS)] = dice.choice(VALUES)
    return json.dumps(body).encode()


def damaged(dice, path):
    body = bytearray(json.dumps(GOOD[path]).encode())
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(body))
        match dice.randrange(3):
            case 0:
                body[at] = dice.randrange(256)
            case 1:
                del body[at:]
                body += b"}"
            case _:
                body[at:at] = dice.randbytes(dice.randint(1, 8))
    return bytes(body)


def nested(dice, path):
    depth = dice.choice([10, 1000, 20_000])
    return b'{"model":"chat","messages":' + b"[" * depth + b"]" * depth + b"}"


def huge_number(dice, path):
    field = dice.choice(FIELDS)
    return b'{"model":"chat","prompt":"a","input":"a","%b":%b}' % (field.encode(), b"9" * dice.choice([30, 400, 5000]))


def headers_of(dice):
    names = [
        "x-slo-ms",
        "x-slo-tpot-ms",
        "x-priority",
        "x-request-id",
        "traceparent",
        "Authorization",
        "Origin",
        "Accept",
    ]
    values = ["", "nan", "-1", "inf", "1e400", "x" * 3000, "\xff\xfe", "batch", "Bearer \xff", "a, b", "'\"<>"]
    return [(dice.choice(names), dice.choice(values)) for _ in range(dice.randint(0, 2))]


def one_request(dice):
    path = dice.choice(PATHS)
    body = dice.choice([wrong_fields, wrong_fields, wrong_fields, damaged, damaged, nested, huge_number])(dice, path)
    headers = headers_of(dice)
    if dice.random() < 0.1:
        headers.append(("Content-Type", dice.choice(["text/plain", "application/json;;", "multipart/form-data", ""])))
    if dice.random() < 0.1 and path.startswith("/v2"):
        headers.append(("Inference-Header-Content-Length", dice.choice(["-1", "9999999", "x", "5"])))
    head = "\r\n".join(
        [f"{dice.choice(['POST'] * 9 + ['PUT'])} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        + ([] if any(name == "Content-Type" for name, _ in headers) else ["Content-Type: application/json"])
        + [f"{name}: {value}" for name, value in headers]
    )
    return head.encode("latin-1") + b"\r\nConnection: close\r\n\r\n" + body


def rude(dice):
    """Not HTTP, or not all of it."""
    good = request("POST", "/v1/embeddings", json.dumps(GOOD["/v1/embeddings"]).encode(), [("Connection", "close")])
    match dice.randrange(8):
        case 0:
            return dice.randbytes(dice.randint(1, 200)) + b"\r\n\r\n"
        case 1:
            return good[: dice.randrange(1, len(good))]
        case 2:
            return good.replace(b"HTTP/1.1", dice.choice([b"HTTP/9.9", b"HTTP/1.0", b"", b"SPDY/3"]))
        case 3:
            return b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 8000 + b"\r\n"
        case 4:
            return good.replace(
                b"Content-Length: ", b"Content-Length: " + dice.choice([b"-", b"9" * 30, b"0x", b"1, "])
            )
        case 5:
            endless = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            return endless + b"Transfer-Encoding: chunked\r\n\r\n" + (b"fff0\r\n" + b"a" * 0xFFF0 + b"\r\n") * 4
        case 6:
            return b"GET /%ff%00/../..//v1/models?%%% HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        case _:
            return good.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 1)


def answers(server, data, dice):
    """Sends it, sometimes in pieces; returns the status of the first answer, or None for none."""
    with connect(server, 10.0) as one:
        try:
            if dice.random() < 0.1:
                cut = dice.randrange(1, len(data) + 1)
                one.sendall(data[:cut])
                one.sendall(data[cut:])
            else:
                one.sendall(data)
            if dice.random() < 0.05:
                return None  # and goes
            back = read_all(one)
        except (ConnectionResetError, BrokenPipeError):
            return None
    return Answer(back).status if back else None


def fuzz(count, seed):
    dice = random.Random(seed)
    process = psutil.Process()
    with running(settings=SETTINGS) as server:
        before = sockets = None
        for number in range(count):
            data = rude(dice) if dice.random() < 0.1 else one_request(dice)
            try:
                status = answers(server, data, dice)
            except TimeoutError:
                pytest.fail(f"request {number} hangs: {data[:300]!r}")
            assert status is None or status < 500, data[:600]
            if number == count // 2:
                gc.collect()
                before, sockets = process.memory_info().rss, process.num_fds()
        assert ask(server, "POST", "/v1/embeddings", GOOD["/v1/embeddings"]).status == 200
        server.wait_until(lambda: not server.group.open and server.app.meters.open == 0)
        server.router.requests.clear()
        server.group.params.clear()
        gc.collect()
        assert process.memory_info().rss - before < 40 * 2**20
        server.wait_until(lambda: process.num_fds() <= sockets + 4)


def test_fuzz():
    fuzz(200, 1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fuzz_long():
    fuzz(10_000, 2)


def test_many_slow_clients_do_not_keep_others_waiting():
    with running(settings=SETTINGS) as server:
        slow = [connect(server) for _ in range(200)]
        for number, one in enumerate(slow):
            one.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"[: number % 50 + 1])
        assert ask(server, "POST", "/v1/embeddings", GOOD["/v1/embeddings"]).status == 200
        for one in slow:
            one.settimeout(5)
            assert read_all(one)[:12] in (b"", b"HTTP/1.1 408")
            one.close()


def test_connections_are_bounded():
    settings = HttpSettings(connections=5, log_requests=False)
    with running(settings=settings) as server:
        many = [connect(server) for _ in range(8)]
        closed = 0
        for one in many:
            one.settimeout(0.3)
            try:
                closed += one.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            except TimeoutError:
                pass
            one.close()
        assert closed == 3
