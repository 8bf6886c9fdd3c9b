"""`penstock serve` with experts that a plan places on two real devices: they move by themselves, over HTTP all is seen,
and a worker that alone has some of them may die."""

import json
import os
import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.harness.server import write_config, write_plan
from placement.files import write_json
from serving.cli import run
from serving.controller.expert_popularity import TOLD_TOP
from tests.e2e.server import CACHE_BYTES, Server, profiles

LAYERS = 2
UNEVEN = [[list(range(15)), [15]], [[0], list(range(1, 16))]]
PROMPTS = ("def main(", "import ", "a list of ")


@pytest.fixture(scope="module")
def server(tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    write_json(folder / "profiles.json", {"moe": profiles()["chat"]})
    (folder / "places.json").write_text(json.dumps({"placement": UNEVEN}))
    group = {"devices": ["local/0", "local/1"], "tp": 2, "pp": 1, "models": ["moe"], "kv_bytes": {"moe": CACHE_BYTES}}
    write_plan(folder / "plan.json", [group | {"experts": {"moe": "places.json"}}])
    models = [{"name": "moe", "path": str(tiny_models / "moe-chat"), "slo": {"ttft": "20s", "tpot": "10s"}}]
    experts = {"every": "300ms", "tokens": 100}
    config = write_config(folder / "config.yaml", 2, models, profiles="profiles.json", experts=experts)
    with Server(config) as running:
        yield running


def complete(server, prompt, tokens=40):
    body = {"model": "moe", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return server.ask("/v1/completions", body)


def texts(server):
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt), PROMPTS))
    assert [status for status, _, _ in answers] == [200] * len(PROMPTS)
    return [answer["choices"][0]["text"] for _, answer, _ in answers]


def metrics(server):
    """By name with labels, of experts."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith("penstock:expert_"))
    return {name: float(value) for name, _, value in samples}


def moves(server):
    return metrics(server)['penstock:expert_moves_total{group="g0",model_name="moe"}']


def test_experts_move_under_requests_and_everybody_can_see_it(server, capsys):
    pids = server.status()["groups"][0]["pids"]
    first = texts(server)
    for holds in (lambda: moves(server) >= 1, lambda: any("estimate_recall" in name for name in metrics(server))):
        deadline = time.monotonic() + 60
        while not holds():
            assert texts(server) == first
            assert time.monotonic() < deadline
    assert server.status()["groups"][0]["pids"] == pids
    seen = metrics(server)
    assert 0.5 < seen['penstock:expert_balancedness{group="g0",model_name="moe"}'] <= 1
    assert seen['penstock:expert_moved_bytes_total{group="g0",model_name="moe"}'] > 0
    assert len(seen) == 5 + (1 + 2 * TOLD_TOP) * LAYERS + 2, "summaries, however many experts and devices there are"
    assert run(["explain", "experts", "--url", server.url]) == 0
    shown = capsys.readouterr().out
    assert "moving experts: apply" in shown
    assert "were foreseen" in shown
    assert run(["explain", "moves", "--url", server.url]) == 0
    assert "experts moved" in capsys.readouterr().out
    assert run(["status", "--url", server.url]) == 0
    assert "experts of" in capsys.readouterr().out


def test_the_death_of_who_alone_has_an_expert_fails_its_requests_and_passes(server):
    """A device has room for fifteen of sixteen experts: what it lacks, the other one has alone."""
    first = texts(server)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(complete, server, "def main(", 1500) for _ in range(4)]
        server.wait_until(lambda: server.status()["queue"]["running"] == 4)
        killed = time.monotonic()
        os.kill(server.status()["groups"][0]["pids"][1], signal.SIGKILL)
        answers = [one.result() for one in asked]
        assert time.monotonic() - killed < 2.0
    for status, answer, headers in answers:
        assert (status, answer["error"]["code"]) == (503, "failed"), answer
        assert "g0" in answer["error"]["message"]
        assert int(headers["retry-after"]) >= 1
    server.wait_until(lambda: state(server) == ("serving", 1))
    assert texts(server) == first


def state(server):
    group = server.status()["groups"][0]
    return group["state"], group["deaths"]
