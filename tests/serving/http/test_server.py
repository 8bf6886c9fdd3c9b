"""The process around the endpoint: signals, logs, traces."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from placement.errors import InputError
from serving.http import HttpServer, HttpSettings, make_app
from serving.http.traces import make_tracer
from tests.serving.http.doubles import make_service, running
from tests.serving.http.raw import ask, connect, read_all, request

ROOT = Path(__file__).parents[3]
SERVER = """
import uvloop
from serving.http import HttpServer, HttpSettings, configure_logs, make_app
from tests.serving.http.doubles import TENANTS, DirectRouter, EchoGroup, make_service

async def main():
    router = DirectRouter(EchoGroup(step_s=0.05))
    service = make_service(router=router, keys=TENANTS, settings=HttpSettings())
    server = HttpServer(make_app(service), "127.0.0.1", 0, service.settings)
    print(server.port, flush=True)
    await server.run_until_signal()

configure_logs("json")
uvloop.run(main())
"""


class Address:
    def __init__(self, port):
        self.port = port


@pytest.fixture
def process():
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def wait_until_it_answers(server):
    deadline = time.monotonic() + 20
    while True:
        try:
            assert ask(server, "GET", "/livez").status == 200
            return
        except (ConnectionError, IndexError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_finish_and_each_is_logged(process, number):
    server = Address(int(process.stdout.readline()))
    wait_until_it_answers(server)
    headers = [("Authorization", "Bearer key-of-anna"), ("x-request-id", "mine")]
    ask(server, "POST", "/v1/completions", {"model": "nobody", "prompt": "a"}, headers)
    body = json.dumps({"model": "chat", "prompt": "water", "max_tokens": 12}).encode()
    with connect(server) as one:
        one.sendall(request("POST", "/v1/completions", body, headers))
        time.sleep(0.2)
        process.send_signal(number)
        assert b"200 OK" in read_all(one)
    assert process.wait(10) == 0
    failed, served = (json.loads(line) for line in process.stderr.read().splitlines())
    told = {"event": "request", "id": "mine", "method": "POST", "path": "/v1/completions", "tenant": "anna"}
    assert told.items() <= served.items()
    assert (served["status"], served["model"], served["output_tokens"]) == (200, "chat", 12)
    assert served["ms"] > 0
    assert (failed["status"], failed["code"]) == (404, "model_not_found")
    assert "key-of-anna" not in json.dumps([served, failed])


def test_an_address_that_is_taken_is_told_in_one_line(server):
    app = make_app(make_service())
    for host, port in (("127.0.0.1", server.port), ("203.0.113.1", 0), ("127.0.0.1", 10**6)):
        with pytest.raises(InputError, match="listen") as caught:
            HttpServer(app, host, port, HttpSettings())
        assert "\n" not in str(caught.value)


class Recorder:
    """A tracer, and its own spans."""

    def __init__(self):
        self.spans, self.is_closed = [], threading.Event()

    def begin(self, call):
        return self

    def end(self, call, route):
        self.spans.append((route, call.status, call.facts.get("model")))

    def close(self):
        self.is_closed.set()


def test_each_request_is_a_span():
    recorder = Recorder()
    with running(tracer=recorder) as server:
        ask(server, "POST", "/v1/embeddings", {"model": "embed", "input": "a"})
        ask(server, "GET", "/v1/models/nobody")
        ask(server, "GET", "/nothing")
    assert recorder.is_closed.is_set()
    assert recorder.spans == [
        ("/v1/embeddings", 200, "embed"),
        ("/v1/models/{model:path}", 404, None),
        ("other", 404, None),
    ]


def test_traces_are_sent_only_where_somebody_says_whereto():
    assert make_tracer({}) is None


def test_opentelemetry():
    """Where the `trace` extra is installed."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from serving.http.otel import OtelTracer

    exporter = InMemorySpanExporter()
    with running(tracer=OtelTracer(SimpleSpanProcessor(exporter))) as server:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        ask(server, "POST", "/v1/embeddings", {"model": "embed", "input": "a"}, [("traceparent", parent)])
    (span,) = exporter.get_finished_spans()
    assert span.name == "POST /v1/embeddings"
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert span.attributes["penstock.model"] == "embed"
    assert span.attributes["http.response.status_code"] == 200
