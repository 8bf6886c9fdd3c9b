"""vLLM's own server as any that speaks OpenAI's API: `engine: openai`, started by a command of the configuration."""

import os
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from benchmarks.harness.server import is_alive
from benchmarks.peers.environment import peer_python
from serving.engines.process import descendants
from tests.e2e.server import Server
from tests.e2e.vllm import GIGABYTE, complete, make_models, open_stream, read_stream, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


def engine():
    command = (
        f"{peer_python('vllm')} -m vllm.entrypoints.openai.api_server --model {{path}} --served-model-name {{name}} "
        "--host 127.0.0.1 --port {port} --tensor-parallel-size {tp} --pipeline-parallel-size {pp} "
        "--kv-cache-memory-bytes {kv_bytes} --dtype float32 --enforce-eager"
    )
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return {"kind": "openai", "command": command, "environment": environment}


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The same model on our engine and on the server, side by side."""
    groups = [
        {"devices": [f"local/{number}"], "models": [name], "kv_bytes": {name: GIGABYTE}}
        for number, name in enumerate(("ours", "theirs"))
    ]
    config = write(
        tmp_path_factory.mktemp("server"), models, [{"name": "ours"}, {"name": "theirs", "engine": engine()}], groups
    )
    with Server(config) as running:
        running.wait_until(lambda: complete(running, "theirs", 1)[0] == 200, 240)
        yield running


def family(server):
    """Of the server that the second group's leader has started."""
    return descendants(server.status()["groups"][1]["pids"][0])


def running_there(server):
    """Requests that run or wait by vLLM's own account."""
    words = next(words for pid in family(server) if "--port" in (words := _words(pid)))
    with urllib.request.urlopen(f"http://127.0.0.1:{words[words.index('--port') + 1]}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    named = [line for line in lines if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))]
    assert named
    return sum(float(line.rpartition(" ")[2]) for line in named)


def _words(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_the_text_is_that_of_our_engine(server):
    ours, theirs = complete(server, "ours")[1], complete(server, "theirs")[1]
    assert theirs["choices"][0]["text"] == ours["choices"][0]["text"]
    assert theirs["usage"] == ours["usage"]


def test_tokens_come_as_they_are_made(server):
    moments = read_stream(server, "theirs", 40)
    text = "".join(event["choices"][0]["text"] for _, event in moments)
    assert text == complete(server, "ours", 40)[1]["choices"][0]["text"]
    assert len(moments) > 10
    assert moments[-1][0] - moments[0][0] > 0.01


def test_who_hangs_up_is_heard_by_the_engine(server):
    answer = open_stream(server, "theirs", 1900)
    answer.readline()
    assert running_there(server) == 1
    answer.close()
    began = time.monotonic()
    server.wait_until(lambda: running_there(server) == 0, 10)
    took_s = time.monotonic() - began
    began = time.monotonic()
    assert complete(server, "theirs", 100)[0] == 200
    assert took_s < 1 + 10 * (time.monotonic() - began)  # 1,900 tokens take 19 times as long


def test_a_killed_server_is_our_replicas_death_and_comes_again(server):
    deaths = server.status()["groups"][1]["deaths"]
    before = family(server)
    os.kill(before[0], signal.SIGKILL)
    server.wait_until(lambda: server.status()["groups"][1]["deaths"] == deaths + 1, 20)
    assert complete(server, "ours")[0] == 200
    server.wait_until(lambda: complete(server, "theirs")[0] == 200, 240)
    assert not any(map(is_alive, before))
    assert not set(before) & set(family(server))


def test_what_runs_when_we_are_told_to_stop_is_finished(server):
    """The last test of this server: it is stopped."""
    found = []
    asking = threading.Thread(target=lambda: found.append(complete(server, "theirs", 400)))
    asking.start()
    server.wait_until(lambda: server.status()["queue"]["running"] > 0, 10)
    left = family(server)
    assert server.stop() == 0
    asking.join()
    assert (found[0][0], found[0][1]["usage"]["completion_tokens"]) == (200, 400)
    deadline = time.monotonic() + 20
    while any(map(is_alive, left)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
