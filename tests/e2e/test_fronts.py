"""`penstock serve` with several HTTP processes on one port."""

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.harness.server import is_alive, write_plan
from serving.cli import run
from serving.controller.front_process import COUNT_S
from tests.e2e.server import CACHE_BYTES, Server, write_config


@pytest.fixture(scope="module")
def server(tiny_models, tmp_path_factory):
    with Server(write_config(tmp_path_factory.mktemp("server"), tiny_models, fronts=2)) as running:
        yield running


def fronts(server):
    """Processes by the connections they hold: the children that are front ends."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as line:
                    parent, command = int(stat.read().rpartition(")")[2].split()[1]), line.read()
            except OSError:
                continue
            if parent == server.process.pid and "front_process" in command:
                found.append(int(name))
    return sorted(found)


def test_it_answers_whoever_takes_the_connection(server, capsys):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.complete(8), range(24)))
        embeds = list(pool.map(lambda _: server.embed(), range(8)))
    assert [answer["usage"]["completion_tokens"] for _, answer, _ in answers] == [8] * 24
    assert len({answer["choices"][0]["text"] for _, answer, _ in answers}) == 1
    assert [len(answer["data"][0]["embedding"]) for _, answer, _ in embeds] == [32] * 8
    assert len(fronts(server)) == 2
    for path, status in (("/readyz", 200), ("/livez", 200), ("/v1/models", 200), ("/nowhere", 404), ("/v2", 200)):
        assert server.get(path)[0] == status
    status, answer, headers = server.ask("/v1/completions", {"model": "none", "prompt": "a"})
    assert (status, answer["error"]["type"], bool(headers["x-request-id"])) == (404, "invalid_request_error", True)
    assert run(["status", "--url", server.url]) == 0
    assert "local/1  group g1" in capsys.readouterr().out


def test_metrics_are_those_of_all(server):
    def counted():
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("penstock:generation_tokens_total"))

    time.sleep(2 * COUNT_S)  # until all that was asked before is told
    before = counted()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: server.complete(10), range(16)))
    server.wait_until(lambda: counted() == before + 160, 10)


def test_the_death_of_one_loses_its_own_connections_and_no_others(server):
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 300, "stream": True, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    ends: list[bool] = []
    begun = threading.Barrier(9)

    def stream():
        with socket.create_connection((host, int(port)), timeout=60) as one:
            one.sendall(head.encode() + body)
            got = one.recv(4096)
            begun.wait(60)
            try:
                while b"[DONE]" not in got[-200:] and (part := one.recv(65536)):
                    got += part
            except ConnectionResetError:
                pass
            ends.append(b"[DONE]" in got[-200:])

    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    victim, other = fronts(server)
    begun.wait(60)
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(ends) == 8
    assert is_alive(other)
    server.wait_until(lambda: len(fronts(server)) == 2 and server.status()["queue"]["running"] == 0)
    assert victim not in fronts(server)
    assert any(ends), "streams of the other front end went on to their end"
    assert server.complete(4)[0] == 200


@pytest.mark.long
def test_a_second_server_takes_over_the_port_of_the_first(tiny_models, tmp_path, monkeypatch):
    """Upgrade: both have devices of their own, the first is told to stop, and who tries again is always answered."""
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "the same for both")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    configs = []
    for number, name in enumerate(("old", "new")):
        (tmp_path / name).mkdir()
        configs.append(write_config(tmp_path / name, tiny_models, fronts=1, listen=listen))
        shared = {"tp": 1, "pp": 1, "models": ["chat", "embed"], "kv_bytes": {"chat": CACHE_BYTES}}
        write_plan(tmp_path / name / "plan.json", [{"devices": [f"local/{number}"]} | shared])
    is_over, answers, resets = threading.Event(), [], []

    def ask():
        while not is_over.is_set():
            try:
                answers.append(server.complete(8)[0])
            except (ConnectionError, urllib.error.URLError) as error:
                resets.append(error)

    with Server(configs[0]) as server:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        with Server(configs[1]) as second:
            before = len(answers)
            assert server.stop() == 0
            server.wait_until(lambda: len(answers) > before + 20)
            is_over.set()
            for thread in threads:
                thread.join()
            assert second.complete(4)[0] == 200
    assert set(answers) == {200}
    assert len(resets) <= 8
