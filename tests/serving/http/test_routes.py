"""Health, metrics, tokens, admin, and who may ask: over a plain socket."""

import asyncio
import json
import subprocess
import time

import pytest

from placement.errors import InputError
from serving.http import Family, Histogram, HttpSettings
from tests.serving.http.doubles import TENANTS, Controller, running, served
from tests.serving.http.raw import ask, connect, exchange, request

EMBED = {"model": "embed", "input": "water"}


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def test_health(server):
    for path in ("/livez", "/readyz", "/health"):
        assert ask(server, "GET", path, host="10.0.0.7").status == 200
    with running(unready=lambda: {"chat": "no group"}) as other:
        assert ask(other, "GET", "/readyz").status == 503
        assert ask(other, "GET", "/readyz").json()["models"] == {"chat": "no group"}
        assert ask(other, "GET", "/health").status == 200
        assert ask(other, "GET", "/livez").status == 200


def test_metrics():
    busy = Histogram((0.5,))
    busy.observe(0.5)
    figures = [
        Family("device_owner", "Who has it.", "gauge", ("device", "owner"), {("n0/0", "serving"): 1}),
        Family("step_seconds", "A step.", "histogram", (), {(): busy}),
    ]
    with running(figures=lambda: figures) as server:
        ask(server, "POST", "/v1/completions", {"model": "chat", "prompt": "water", "max_tokens": 3})
        ask(server, "POST", "/v1/completions", {"model": "plain", "prompt": "water", "max_tokens": 3, "n": 2})
        ask(server, "POST", "/v1/completions", {"model": "nobody", "prompt": "water"})
        ask(server, "POST", "/v1/embeddings", EMBED)
        chat = server.router.statistics.of("chat", "standard")
        chat.served = chat.met = 1
        chat.window.add(time.monotonic(), met=True)
        server.router.statistics.of("embed", "batch").end_without("refused", time.monotonic())
        server.router.statistics.of("plain", "batch").end_without("cancelled", time.monotonic())
        answer = ask(server, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#"))
    expected = {
        'penstock:time_to_first_token_seconds_count{model_name="chat"}': 1,
        'penstock:inter_token_latency_seconds_count{model_name="chat"}': 2,
        'penstock:inter_token_latency_seconds_count{model_name="plain"}': 4,
        'penstock:e2e_request_latency_seconds_bucket{le="+Inf",model_name="embed"}': 1,
        'penstock:request_queue_time_seconds_count{model_name="chat"}': 1,
        'penstock:num_requests_running{model_name="chat"}': 0,
        'penstock:num_requests_waiting{model_name="chat"}': 0,
        'penstock:generation_tokens_total{model_name="chat"}': 3,
        'penstock:request_success_total{finished_reason="length",model_name="chat"}': 1,
        'penstock:slo_met_total{class="standard",model_name="chat"}': 1,
        'penstock:slo_requests_total{class="standard",model_name="chat"}': 1,
        'penstock:attainment{class="standard",model_name="chat"}': 1,
        'penstock:attainment{class="batch",model_name="embed"}': 0,
        'penstock:http_requests_total{route="/v1/completions",status="404"}': 1,
        'penstock:device_owner{device="n0/0",owner="serving"}': 1,
        'penstock:step_seconds_bucket{le="0.5"}': 1,
    }
    assert {name: float(lines[name]) for name in expected} == expected
    assert float(lines['penstock:goodput{class="standard",model_name="chat"}']) == pytest.approx(1 / 60)
    assert 'penstock:attainment{class="batch",model_name="plain"}' not in lines


def test_tokenize_and_back(server):
    body = {"model": "chat", "prompt": "größe 水", "return_token_strs": True}
    answer = ask(server, "POST", "/tokenize", body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    back = ask(server, "POST", "/detokenize", {"model": "chat", "tokens": answer["tokens"]})
    assert back.json() == {"prompt": "größe 水"}
    chat = {"model": "chat", "messages": [{"role": "user", "content": "a"}]}
    assert ask(server, "POST", "/tokenize", chat).json()["count"] > 3
    assert ask(server, "POST", "/tokenize", {"prompt": "a"}).json()["error"]["param"] == "model"
    assert ask(server, "POST", "/detokenize", {"model": "chat", "tokens": [10**6]}).status == 400


def test_a_long_text_does_not_keep_others_waiting():
    """Turned into tokens on the event loop, or by a call that keeps Python's lock, it would for a second."""
    settings = HttpSettings(prompt_tokens=10**6, log_requests=False)
    worst_s = 0.0

    async def watch(seconds):
        nonlocal worst_s
        for _ in range(int(seconds / 0.002)):
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            worst_s = max(worst_s, time.perf_counter() - before)

    with running(settings=settings, models=[served("embed", "embed", max_positions=10**6)]) as server:
        watching = asyncio.run_coroutine_threadsafe(watch(1.0), server.loop)
        text, before = "water wheel " * 80_000, time.perf_counter()
        assert ask(server, "POST", "/v1/embeddings", EMBED | {"input": text}).status == 200
        took_s = time.perf_counter() - before
        watching.result(20)
    assert worst_s < max(0.3, 0.5 * took_s)


def test_admin_has_its_own_key():
    controller = Controller()
    with running(keys=TENANTS, admin=controller) as server:
        assert ask(server, "GET", "/admin/plan").status == 401
        assert ask(server, "GET", "/admin/plan", headers=bearer("key-of-anna")).status == 403
        key = bearer("key-of-the-admin")
        assert ask(server, "GET", "/admin/plan", headers=key).json() == {"groups": []}
        assert ask(server, "PUT", "/admin/plan", {"groups": []}, key).json() == {"applied": True}
        assert controller.applied == [{"groups": []}]
        assert ask(server, "GET", "/admin/explain/loans", headers=key).json() == {"kind": "loans"}
        assert ask(server, "GET", "/admin/explain/taste", headers=key).status == 404
        assert ask(server, "GET", "/admin/status", headers=key).status == 200
        assert ask(server, "POST", "/v1/embeddings", EMBED, key).status == 200
        assert ask(server, "POST", "/v1/embeddings", EMBED).headers["www-authenticate"] == "Bearer"


def test_admin_is_closed_without_a_key_and_tells_bad_plans():
    class Refusing(Controller):
        async def apply_plan(self, document):
            raise InputError("plan: group 0 has no devices")

    with running(admin=Refusing()) as server:
        assert ask(server, "GET", "/admin/status", headers=bearer("key-of-the-admin")).status == 403
    with running(keys=TENANTS, admin=Refusing()) as server:
        answer = ask(server, "PUT", "/admin/plan", {}, bearer("key-of-the-admin"))
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "plan"


@pytest.mark.parametrize(
    ("headers", "host", "status"),
    [
        ((), "127.0.0.1", 200),
        ((), "localhost:1234", 200),
        ((), "[::1]:80", 200),
        ((), "evil.example", 403),
        ((), "localhost.evil.example", 403),
        ((), "10.0.0.7", 403),
        ([("Origin", "http://evil.example")], "127.0.0.1", 403),
        ([("Origin", "null")], "127.0.0.1", 403),
        ([("Origin", "http://localhost:81")], "localhost:80", 403),
        ([("Origin", "http://localhost:81")], "localhost:81", 200),
        ([("Content-Type", "text/plain")], "127.0.0.1", 415),
        ([("Content-Type", "application/json; charset=utf-8")], "127.0.0.1", 200),
        ([("Content-Encoding", "gzip")], "127.0.0.1", 415),
    ],
)
def test_pages_elsewhere_are_kept_out(server, headers, host, status):
    assert ask(server, "POST", "/v1/embeddings", EMBED, headers, host=host).status == status


def test_hosts_of_a_server_on_all_addresses():
    with running(listen="0.0.0.0", settings=HttpSettings(hosts=("models.example",), log_requests=False)) as server:
        for host, status in (("10.0.0.7:8000", 200), ("models.example", 200), ("evil.example", 403)):
            assert ask(server, "POST", "/v1/embeddings", EMBED, host=host).status == status


def test_what_is_not_there(server):
    for path in ("/nothing", "/v1/", "/v1/models/", "/v1/chat/completions/"):
        answer = ask(server, "GET", path)
        assert answer.status == 404
        assert answer.json()["error"]["code"] in ("not_found", "model_not_found")
        assert answer.headers["x-request-id"]
    assert ask(server, "GET", "/v1/embeddings").status == 405
    assert ask(server, "OPTIONS", "/v1/embeddings").json()["error"]["code"] == "method_not_allowed"
    assert isinstance(ask(server, "GET", "/v2/nothing").json()["error"], str)
    assert b"/openapi.json" in ask(server, "GET", "/docs").body
    assert "/v2/models/{model}/infer" in ask(server, "GET", "/openapi.json").json()["paths"]


def test_ids_are_bounded_and_clean(server):
    for given, kept in (("a.b-c:9", True), ("x" * 129, False), ("a b", False), ("<script>", False)):
        back = ask(server, "GET", "/livez", headers=[("x-request-id", given)]).headers["x-request-id"]
        assert (back == given) is kept
        assert len(back) <= 128


def test_the_same_id_twice_at_once_is_no_conflict(server):
    server.group.step_s = 0.05
    try:
        data = request("POST", "/v1/embeddings", json.dumps(EMBED).encode(), [("x-request-id", "same")])
        with connect(server) as one, connect(server) as two:
            for link in (one, two):
                link.sendall(data)
            assert all(b"200 OK" in link.recv(65536) for link in (one, two))
    finally:
        server.group.step_s = 0.0


def test_connections_are_kept_and_requests_pipelined(server):
    data = request("POST", "/v1/embeddings", json.dumps(EMBED).encode())
    last = request("GET", "/livez", headers=[("Connection", "close")])
    assert exchange(server, data * 3 + last).count(b"HTTP/1.1 200 OK") == 4


def test_head_and_body_come_in_one_piece(server):
    with connect(server) as one:
        for _ in range(3):
            one.sendall(request("GET", "/livez"))
            assert one.recv(65536).endswith(b'{"status":"ok","models":{}}')


def test_curl(server):
    body = json.dumps({"model": "chat", "prompt": "water", "max_tokens": 3, "stream": True})
    command = ["curl", "-sSN", "-m", "10", f"{server.url}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", body], capture_output=True, timeout=20, check=True, text=True)
    events = [line for line in done.stdout.split("\n\n") if line]
    assert len(events) == 4
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["object"] == "text_completion"
    done = subprocess.run([*command, "-d", "{}", "-w", "%{http_code}"], capture_output=True, timeout=20, check=True)
    assert done.stdout.endswith(b"400")
