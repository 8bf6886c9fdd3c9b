"""Engines of others behind our router: a second Penstock stands for any server that speaks OpenAI's API."""

import json
import os
import signal
import sys
import threading
import time
import urllib.request

import pytest

from benchmarks.harness.server import is_alive, write_plan
from benchmarks.harness.server import write_config as write_server_config
from placement.files import write_json
from tests.e2e.server import CACHE_BYTES, Server, profiles, write_config


@pytest.fixture(scope="module")
def behind(tiny_models, tmp_path_factory):
    """The Penstock that computes."""
    with Server(write_config(tmp_path_factory.mktemp("behind"), tiny_models)) as running:
        yield running


def write_front(folder, directory, engines, **more):
    """Chat on the first device and embed on the second, each by its engine."""
    write_json(folder / "profiles.json", profiles())
    chat = {"devices": ["local/0"], "tp": 1, "pp": 1, "models": ["chat"], "kv_bytes": {"chat": CACHE_BYTES}}
    embed = {"devices": ["local/1"], "tp": 1, "pp": 1, "models": ["embed"]}
    write_plan(folder / "plan.json", [chat, embed])
    slos = {"chat": {"ttft": "20s", "tpot": "10s"}, "embed": "20s"}
    models = [
        {"name": name, "path": str(directory / name), "slo": slo}
        | ({"engine": engines[name]} if name in engines else {})
        for name, slo in slos.items()
    ]
    return write_server_config(folder / "config.yaml", 2, models, profiles="profiles.json", **more)


@pytest.fixture(scope="module")
def front(behind, tiny_models, tmp_path_factory):
    """The Penstock that decides: both of its models are on the other's URL."""
    engine = {"kind": "openai", "url": f"{behind.url}/v1"}
    folder = tmp_path_factory.mktemp("front")
    with Server(write_front(folder, tiny_models, {"chat": engine, "embed": engine})) as running:
        yield running


def test_answers_are_those_of_the_engine(front, behind):
    assert front.complete(16)[1]["choices"] == behind.complete(16)[1]["choices"]
    assert front.embed()[1]["data"] == behind.embed()[1]["data"]
    body = {"model": "chat", "prompt": "import ", "max_tokens": 6, "temperature": 0, "logprobs": 2, "n": 2}
    ours, theirs = (server.ask("/v1/completions", body)[1] for server in (front, behind))
    assert ours["choices"] == theirs["choices"]
    assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]


def test_text_comes_as_it_is_made(front):
    body = {"model": "chat", "prompt": "def main(", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = front.ask("/v1/completions", body)[1]["choices"][0]["text"]
    request = urllib.request.Request(
        f"{front.url}/v1/completions",
        json.dumps(body | {"stream": True, "return_token_ids": True}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        events = [json.loads(line[5:]) for line in answer if line.startswith(b"data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole
    assert sum(len(event["choices"][0]["token_ids"]) for event in events) == 12


def test_what_cannot_be_in_time_is_refused_before_the_engine_hears_of_it(front, behind):
    before = behind.get("/v1/models")[0], _metric(behind, 'request_success_total{finished_reason="length"')
    status, answer, _ = front.ask(
        "/v1/completions", {"model": "chat", "prompt": "a", "max_tokens": 4}, **{"x-slo-ms": "1"}
    )
    assert (status, answer["error"]["code"]) == (429, "refused")
    assert before[0] == 200
    assert _metric(behind, 'request_success_total{finished_reason="length"') - before[1] <= 1  # a probe, at most


def test_who_hangs_up_is_heard_by_the_engine(front, behind):
    body = {"model": "chat", "prompt": "def ", "max_tokens": 100, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{front.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer = urllib.request.urlopen(request, timeout=60)
    answer.readline()
    answer.close()
    for server in (behind, front):
        server.wait_until(lambda server=server: server.status()["queue"]["running"] == 0, 10)


def test_a_prompt_that_is_too_long_is_told_as_ours(front):
    status, answer, _ = front.ask("/v1/completions", {"model": "chat", "prompt": "a " * 5000, "max_tokens": 4})
    assert status == 400
    assert "tokens" in answer["error"]["message"]


@pytest.mark.long
def test_a_server_that_is_started_and_killed_comes_again(tiny_models, tmp_path):
    """By a command with placeholders; kill -9 of the server is the death of the group."""
    behind = tmp_path / "behind"
    behind.mkdir()
    chat = {"devices": ["local/0"], "tp": 1, "pp": 1, "models": ["chat"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(behind / "plan.json", [chat])
    write_json(behind / "profiles.json", profiles())
    entry = {"name": "chat", "path": str(tiny_models / "chat"), "slo": {"ttft": "20s", "tpot": "10s"}}
    config = write_server_config(behind / "config.yaml", 1, [entry], profiles="profiles.json")
    command = f"{sys.executable} -m serving.cli serve {config} --plan {behind}/plan.json --listen 127.0.0.1:{{port}}"
    folder = tmp_path / "front"
    folder.mkdir()
    engine = {"kind": "openai", "command": command}
    with Server(write_front(folder, tiny_models, {"chat": engine})) as front:
        assert front.complete()[0] == front.embed()[0] == 200
        server = _server_of(front)
        os.kill(server, signal.SIGKILL)
        front.wait_until(lambda: front.status()["groups"][0]["deaths"] == 1, 20)
        front.wait_until(lambda: front.complete()[0] == 200, 60)
        assert front.embed()[0] == 200
        again = _server_of(front)
        assert again != server
        leader = front.status()["groups"][0]["pids"][0]
        os.kill(leader, signal.SIGKILL)
        front.wait_until(lambda: not is_alive(again), 10)
        front.wait_until(lambda: front.complete()[0] == 200, 60)
        last = _server_of(front)
    deadline = time.monotonic() + 10
    while is_alive(last):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_is_not_there_is_told(tiny_models, tmp_path):
    engine = {"kind": "openai", "url": "http://127.0.0.1:9/v1", "start": "1s"}
    with Server(write_front(tmp_path, tiny_models, {"chat": engine})) as front:
        status, answer, _ = front.complete()
        assert (status, answer["error"]["code"]) == (503, "no-replica")
        reasons = {one["id"]: one["reason"] for one in front.get("/v1/models")[1]["data"]}
        assert "does not answer within 1 s" in reasons["chat"]
        assert front.embed()[0] == 200


@pytest.mark.long
def test_requests_that_run_when_the_server_is_told_to_stop_are_finished(behind, tiny_models, tmp_path):
    engine = {"kind": "openai", "url": f"{behind.url}/v1"}
    found = []
    with Server(write_front(tmp_path, tiny_models, {"chat": engine})) as front:
        asking = threading.Thread(target=lambda: found.append(front.complete(200)))
        asking.start()
        front.wait_until(lambda: front.status()["queue"]["running"] > 0, 10)
        assert front.stop() == 0
        asking.join()
    assert found[0][0] == 200
    assert found[0][1]["usage"]["completion_tokens"] == 200


def _server_of(front):
    """The process that the leader of the first group has started."""
    from serving.engines.process import descendants

    return descendants(front.status()["groups"][0]["pids"][0])[0]


def _metric(server, name):
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"penstock:{name}")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
