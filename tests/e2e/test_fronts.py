"""`penstock serve` with several HTTP processes on one port."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
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


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def front_command(config):
    return [sys.executable, "-m", "serving.cli", "front", str(config), "--logs", "json"]


def fail_front(config):
    """What `penstock front` says on its way out."""
    ended = subprocess.run(front_command(config), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1
    return ended.stderr


@contextlib.contextmanager
def front_end(config, log):
    """`penstock front` as it runs: a server that can be asked."""
    with log.open("wb") as file:
        process = subprocess.Popen(front_command(config), stderr=file)
    front = Server(config)
    front.process = process
    try:
        front.wait_until(lambda: "Penstock answers at " in log.read_text() or process.poll() is not None)
        front.url = "http://" + log.read_text().partition("Penstock answers at ")[2].split()[0]
        front.wait_until(lambda: answers(front))
        yield front
    finally:
        process.kill()
        process.wait()


def answers(server):
    try:
        return server.get("/livez")[0] == 200
    except urllib.error.URLError:
        return False


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
    assert {status: answer for status, answer, _ in answers if status != 200} == {}
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


def test_a_front_end_of_its_own_serves_over_tcp_for_who_knows_the_secret(tiny_models, tmp_path):
    """As on another host: it has the models' texts and no weights, and the server answers HTTP itself too."""
    (tmp_path / "desk.key").write_text("known to both of them\n")
    desk = {"listen": f"127.0.0.1:{free_port()}", "secret": "desk.key"}
    config = write_config(tmp_path, tiny_models, desk=desk)
    there = tmp_path / "there"
    shutil.copytree(tiny_models, there / "models", ignore=shutil.ignore_patterns("*.safetensors"))
    (there / "desk.key").write_text("known to both of them")
    (there / "wrong.key").write_text("known to one of them")
    own = write_config(there, there / "models", desk=desk)
    wrong = write_config(tmp_path / "there" / "models", there / "models", desk=desk | {"secret": "../wrong.key"})
    nobody = fail_front(own)
    assert f"no desk to serve for: tcp:{desk['listen']}: no listener within" in nobody
    with Server(config) as server:
        assert "the listener refuses our secret" in fail_front(wrong)
        with front_end(own, tmp_path / "front.log") as front:
            assert front.url != server.url
            assert front.complete(8)[1]["choices"] == server.complete(8)[1]["choices"]
            assert len(front.embed()[1]["data"][0]["embedding"]) == 32
            assert [front.get(path)[0] for path in ("/readyz", "/livez", "/v1/models", "/nowhere")] == [
                200,
                200,
                200,
                404,
            ]
            assert front.get("/admin/status")[0] == 401
            assert front.ask("/dashboard/snapshot", None)[0] == 401, (
                "who comes from elsewhere may not look without a key"
            )
            server.stop()
            assert front.process.wait(20) == 1
            assert "the process that routes is gone" in (tmp_path / "front.log").read_text()


@pytest.mark.long
def test_a_second_server_takes_over_the_port_of_the_first(tiny_models, tmp_path, monkeypatch):
    """Upgrade: both have devices of their own, the first is told to stop, and who tries again is always answered."""
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "the same for both")
    listen = f"127.0.0.1:{free_port()}"
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
