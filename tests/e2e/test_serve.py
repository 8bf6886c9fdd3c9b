"""`penstock serve` with real workers, asked over HTTP: answers, plans, deaths, the end."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.harness.server import OPTIONS
from placement.cli.admin import ask_admin
from placement.files import encode_json
from placement.plan import Group, Plan
from serving.cli import run
from tests.e2e.server import CACHE_BYTES, DEVICES, Server, write_config


def test_it_answers(server):
    status, answer, headers = server.complete(8)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    assert headers["x-request-id"]
    status, answer, _ = server.embed()
    assert (status, len(answer["data"][0]["embedding"])) == (200, 32)
    status, answer, _ = server.get("/v1/models")
    assert {one["id"]: one["state"] for one in answer["data"]} == {"chat": "ready", "embed": "ready"}
    assert server.get("/readyz")[0] == 200


def test_a_pace_that_no_engine_could_keep_is_refused_for_good(server):
    """A step is profiled to take 20 ms."""
    body = {"model": "chat", "prompt": "def main(", "max_tokens": 4}
    status, answer, headers = server.ask("/v1/completions", body, **{"x-slo-tpot-ms": "5"})
    assert (status, answer["error"]["code"]) == (429, "refused")
    assert "5 ms for each further token: no group could, even with nothing else to do" in answer["error"]["message"]
    assert "retry-after" not in headers
    status, answer, headers = server.ask("/v1/completions", body, **{"x-slo-ms": "5"})
    assert (status, "retry-after" in headers) == (429, False)
    assert server.ask("/v1/completions", body, **{"x-slo-tpot-ms": "5000"})[0] == 200


def test_the_same_seed_gives_the_same_text_on_any_group(server):
    body = {"model": "chat", "prompt": "import ", "max_tokens": 12, "seed": 7, "temperature": 1.0}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.ask("/v1/completions", body), range(8)))
    assert len({answer["choices"][0]["text"] for _, answer, _ in answers}) == 1


def test_status_and_explanations(server, capsys):
    server.complete()
    assert run(["status", "--url", server.url]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^{DEVICES[1]} +group g1$", shown, re.MULTILINE)
    assert "tp1 x pp1" in shown
    for what, word in (("plan", "given:"), ("moves", "serving"), ("refusals", ""), ("loans", "no training to lend to")):
        assert run(["explain", what, "--url", server.url]) == 0
        assert word in capsys.readouterr().out


def test_admin_needs_its_key(server, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_ADMIN_KEY", "not-the-key")
    assert run(["status", "--url", server.url]) == 2
    assert "403: this key is not the admin key" in capsys.readouterr().err
    monkeypatch.delenv("PENSTOCK_ADMIN_KEY")
    assert run(["status", "--url", "http://127.0.0.1:9"]) == 2
    assert "no Penstock answers there" in capsys.readouterr().err


def test_a_plan_is_replaced_while_requests_run(server):
    pipeline = Plan((Group(DEVICES, 1, 2, ("chat", "embed"), {"chat": CACHE_BYTES}),))
    apart = Plan(tuple(Group((one,), 1, 1, ("chat", "embed"), {"chat": CACHE_BYTES}) for one in DEVICES))
    texts = [server.complete(200)[1]["choices"][0]["text"]]
    with ThreadPoolExecutor(4) as pool:
        for plan in (pipeline, apart):
            asked = [pool.submit(server.complete, 200) for _ in range(4)]
            ask_admin(server.url, "/admin/plan", encode_json(plan))
            answers = [one.result() for one in asked]
            assert [status for status, _, _ in answers] == [200] * 4
            texts += [answer["choices"][0]["text"] for _, answer, _ in answers]
            groups = server.status()["groups"]
            assert [one["pp"] for one in groups] == [group.pp for group in plan.groups]
            assert server.get("/readyz")[0] == 200
    assert len(set(texts)) == 1, "what is answered does not depend on the shape"


def test_a_killed_worker_costs_at_most_what_had_begun(server):
    """Both groups in turn, under load: whoever had no token yet is answered by the other group."""
    for index in range(2):
        group = server.status()["groups"][index]
        with ThreadPoolExecutor(8) as pool:
            chats = [pool.submit(server.complete, 40) for _ in range(8)]
            embeds = [pool.submit(server.embed) for _ in range(8)]
            os.kill(group["pids"][0], signal.SIGKILL)
            answers = [one.result() for one in chats + embeds]
        for status, answer, headers in answers:
            assert status in (200, 503), answer
            if status == 503:
                assert "lost" in answer["error"]["message"] or "no group" in answer["error"]["message"]
                assert int(headers["retry-after"]) >= 1
        assert sum(status == 200 for status, _, _ in answers) >= 8
        server.wait_until(
            lambda name=group["name"]: all(one["state"] == "serving" for one in server.status()["groups"])
        )
        assert server.status()["groups"][index]["deaths"] >= 1


def test_sigterm_lets_open_requests_finish(tiny_models, tmp_path):
    with Server(write_config(tmp_path, tiny_models)) as server, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.complete, 300) for _ in range(4)]
        server.wait_until(lambda: server.status()["queue"]["running"] == 4)
        assert server.stop() == 0
        assert [one.result()[0] for one in asked] == [200] * 4


def test_a_killed_server_leaves_no_worker(tiny_models, tmp_path):
    with Server(write_config(tmp_path, tiny_models)) as server:
        server.stop(signal.SIGKILL)
        assert server.workers_left() == []


def test_it_can_be_stopped_while_it_starts(tiny_models, tmp_path):
    config = write_config(tmp_path, tiny_models)
    options = ["--plan", str(tmp_path / "plan.json"), *os.environ.get(OPTIONS, "").split()]
    command = [sys.executable, "-m", "serving.cli", "serve", str(config), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "starting" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


BAD = {
    "no such model": ({"models": [{"name": "a", "path": "nowhere", "slo": "1s"}]}, ["models (a)", "nowhere"]),
    "a chat model with one time": (
        {"models": [{"name": "a", "path": "{models}/chat", "slo": "1s"}]},
        ["models (a)", "token by token", "ttft"],
    ),
    "more devices than there are": (
        {"cluster": {"nodes": [{"name": "local", "devices": 999, "kind": "cpu", "memory": "1GiB"}]}},
        ["999 devices", "paced"],
    ),
    "a profile that is not there": ({"profiles": "none.json"}, ["none.json", "cannot be read"]),
    "no profile of that name": (
        {"models": [{"name": "b", "path": "{models}/embed", "slo": "1s"}]},
        ["models (b)", "no profile 'b'", "chat"],
    ),
    "an address that is not this machine's": ({"listen": "203.0.113.7:80"}, ["listen", "203.0.113.7"]),
    "an unknown key": ({"lissten": "x"}, ["lissten"]),
    "a pace of nothing": ({"workers": {"kind": "paced", "pace": 0}}, ["pace"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_are_refused_in_one_line(case, tiny_models, tmp_path, capsys):
    more, words = BAD[case]
    for model in more.get("models", ()):
        model["path"] = model["path"].format(models=tiny_models)
    config = write_config(tmp_path, tiny_models, **more)
    assert run(["serve", str(config)]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("penstock:")]
    assert len(said) == 1
    for word in words:
        assert word in said[0]
