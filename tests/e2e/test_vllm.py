"""vLLM's CPU build as an engine, from an environment of its own that is made the first time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.harness.server import is_alive
from serving.engines.process import descendants
from tests.e2e.server import Server
from tests.e2e.vllm import GIGABYTE, complete, engine, make_models, open_stream, read_stream, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


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


def test_the_text_is_that_of_our_engine(server):
    ours, theirs = complete(server, "ours")[1], complete(server, "one")[1]
    assert theirs["choices"][0]["text"] == ours["choices"][0]["text"]
    assert theirs["usage"] == ours["usage"]
    ends = [complete(server, model, 200, ignore_eos=False)[1]["choices"][0] for model in ("ours", "one")]
    assert ends[0] == ends[1]


def test_tokens_come_as_they_are_made(server):
    moments = read_stream(server, "one", 40)
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
    answer = open_stream(server, "one", 1500)
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


def test_of_two_on_one_device_the_planner_parks_one(models, tmp_path):
    entries = [{"name": name, "engine": engine(), "path": str(models / name)} for name in ("one", "two")]
    with Server(write(tmp_path, models, entries, [], devices=1)) as running:
        running.wait_until(lambda: all(m["ready"] for m in running.status()["groups"][0]["models"].values()), 240)
        (group,) = running.status()["groups"]
        (parked,) = [name for name, model in group["models"].items() if model["parked"]]
        assert sorted(group["models"]) == ["one", "two"]
        assert group["wake_s"][parked] == 0.25  # its profile's, until it was woken
        for name in ("one", "two", "one"):
            assert complete(running, name)[0] == 200
            assert running.status()["groups"][0]["awake"] == name
        assert running.status()["groups"][0]["wake_s"][parked] != 0.25


def test_a_profile_is_measured_through_the_engine(models, tmp_path):
    """penstock profile: the fit on steps it did not see, within the goal."""
    config = write(tmp_path, models, [{"name": "one", "engine": engine()}], [], devices=1)
    config.write_text(config.read_text().replace("profiles: profiles.json\n", ""))
    command = [sys.executable, "-m", "serving.cli", "profile", str(config), "--no-cache", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    shapes = json.loads(done.stdout)["models"]["one"]["shapes"]
    assert [(shape["tp"], shape["pp"], shape["source"]) for shape in shapes] == [(1, 1, "measured")]
    assert shapes[0]["error"]["mean"] < 0.15
