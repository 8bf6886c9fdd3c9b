"""vLLM's CPU build as an engine, from an environment of its own that is made the first time."""

import json
import os
import signal
import time
import urllib.request

import pytest

from benchmarks.harness.server import is_alive, write_plan
from benchmarks.harness.server import write_config as write_server_config
from benchmarks.peers.environment import peer_python
from placement.files import write_json
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes
from serving.engines.process import descendants
from serving.small_models.random import make_random
from tests.e2e.server import Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GIGABYTE = 2**30
PROMPT = "def main(items):"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models with random weights, of head sizes that vLLM's CPU kernels know."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two")):
        make_random(folder / name, hidden=128, layers=2, heads=4, kv_heads=2, ffn=256, vocabulary=512, seed=seed)
    return folder


def write(folder, models, entries, groups):
    profile = Profile((ShapeProfile(1, 1, (Bytes(2**20),), generation=Generation((StepCost(fixed=0.02),), (2048.0,))),))
    write_json(folder / "profiles.json", {entry["name"]: profile for entry in entries})
    write_plan(folder / "plan.json", [{"tp": 1, "pp": 1} | group for group in groups])
    named = [{"path": str(models / "one"), "slo": {"ttft": "60s", "tpot": "10s"}} | entry for entry in entries]
    node = {"name": "local", "devices": 2, "kind": "cpu", "memory": 4 * GIGABYTE, "host_memory": 8 * GIGABYTE}
    cluster = {"nodes": [node]}
    return write_server_config(folder / "config.yaml", 2, named, profiles="profiles.json", cluster=cluster)


def engine():
    return {"kind": "vllm", "python": str(peer_python("vllm")), "arguments": ["--enforce-eager"]}


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The first model on our engine and on vLLM, side by side; the second asleep behind the first on vLLM."""
    entries = [
        {"name": "ours"},
        {"name": "one", "engine": engine()},
        {"name": "two", "engine": engine(), "path": str(models / "two")},
    ]
    groups = [
        {"devices": ["local/0"], "models": ["ours"], "kv_bytes": {"ours": GIGABYTE}},
        {"devices": ["local/1"], "models": ["one"], "parked": ["two"], "kv_bytes": {"one": GIGABYTE, "two": GIGABYTE}},
    ]
    folder = tmp_path_factory.mktemp("vllm")
    with Server(write(folder, models, entries, groups)) as running:
        yield running


def complete(server, model, tokens=24, **more):
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more
    return server.ask("/v1/completions", body)


def test_the_text_is_that_of_our_engine(server):
    ours, theirs = complete(server, "ours")[1], complete(server, "one")[1]
    assert theirs["choices"][0]["text"] == ours["choices"][0]["text"]
    assert theirs["usage"] == ours["usage"]
    ends = [complete(server, model, 200, ignore_eos=False)[1]["choices"][0] for model in ("ours", "one")]
    assert ends[0] == ends[1]


def test_tokens_come_as_they_are_made(server):
    body = {"model": "one", "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        moments = [(time.monotonic(), json.loads(line[5:])) for line in answer if line.startswith(b"data: {")]
    text = "".join(event["choices"][0]["text"] for _, event in moments)
    assert text == complete(server, "one", 40)[1]["choices"][0]["text"]
    assert moments[-1][0] - moments[0][0] > 0.01


def test_a_sleeping_model_is_woken_by_who_asks(server):
    status = server.status()["groups"][1]
    assert status["awake"] == "one"
    first = complete(server, "two")
    assert first[0] == 200
    assert server.status()["groups"][1]["awake"] == "two"
    assert complete(server, "one")[1]["choices"] == complete(server, "ours")[1]["choices"]
    status = server.status()["groups"][1]
    assert status["awake"] == "one"
    assert complete(server, "two")[1]["choices"] == first[1]["choices"]
    assert set(server.status()["groups"][1]["wake_s"]) == {"one", "two"}


def test_who_hangs_up_is_heard(server):
    body = {"model": "one", "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    answer = urllib.request.urlopen(request, timeout=60)
    answer.readline()
    answer.close()
    server.wait_until(lambda: server.status()["queue"]["running"] == 0, 10)
    began = time.monotonic()
    assert complete(server, "one", 2)[0] == 200
    assert time.monotonic() - began < 5


def test_a_killed_engine_comes_again(server):
    deaths = server.status()["groups"][1]["deaths"]
    leader = server.status()["groups"][1]["pids"][0]
    family = descendants(leader)
    os.kill(family[0], signal.SIGKILL)
    server.wait_until(lambda: server.status()["groups"][1]["deaths"] == deaths + 1, 20)
    assert complete(server, "ours")[0] == 200
    server.wait_until(lambda: complete(server, "one")[0] == 200, 240)
    assert not any(map(is_alive, family))


def test_a_profile_is_measured_through_the_engine(models, tmp_path):
    """penstock profile: the fit on steps it did not see."""
    import subprocess
    import sys

    config = write(tmp_path, models, [{"name": "one", "engine": engine()}], [])
    text = config.read_text().replace("profiles: profiles.json\n", "").replace("devices: 2", "devices: 1")
    config.write_text(text)
    command = [sys.executable, "-m", "serving.cli", "profile", str(config), "--no-cache", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    shapes = json.loads(done.stdout)["models"]["one"]["shapes"]
    assert [(shape["tp"], shape["pp"], shape["source"]) for shape in shapes] == [(1, 1, "measured")]
    assert shapes[0]["error"]["mean"] < 0.3
