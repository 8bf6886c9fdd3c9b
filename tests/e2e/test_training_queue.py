"""The training queue of a real server: jobs over HTTP and by command, beside a model, through kill -9 of the server."""

import json
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.harness.server import write_plan
from tests.e2e.server import CACHE_BYTES, Server, write_config
from tests.training.queue.controllers import witness
from training.queue import open_store


@pytest.fixture
def config(tiny_models, tmp_path):
    """One device serves, the other is the queue's."""
    training = {"policy": "fcfs", "store": "sqlite:///queue.db", "commands": True, "quotas": {"ann": {"jobs": 1}}}
    path = write_config(tmp_path, tiny_models, training=training)
    group = {"devices": ["local/0"], "tp": 1, "pp": 1, "models": ["chat", "embed"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(tmp_path / "plan.json", [group])
    return path


def train(server, *arguments, code=0):
    command = [sys.executable, "-m", "serving.cli", "train", arguments[0], "--url", server.url, *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_jobs_of_a_server_that_dies(config, tmp_path):
    with Server(config) as server:
        owners = server.status()["devices"]
        assert train(server, "submit", "--id", "short", "--", "sh", "-c", "echo from $PENSTOCK_DEVICES") == "short\n"
        assert train(server, "logs", "short", "-f") == "from local/1\n"
        assert json.loads(train(server, "show", "short", "--json"))["state"] == "finished"
        assert server.ask("/v1/jobs", {"id": "x", "command": ["true"]})[0] == 401
        assert "jobs and may have 1" in train(server, "submit", "--user", "ann", "--jobs", str(two(tmp_path)), code=2)
        store = open_store(f"sqlite:///{tmp_path}/queue.db")
        store.submit([witness(tmp_path, "long", 200), witness(tmp_path, "next", 3)], "me")
        server.wait_until(lambda: store.get("long").state == "running")
        assert server.status()["devices"] != owners  # it says whose the device is
        server.complete()
        assert server.stop(signal.SIGKILL) != 0
    time.sleep(0.2)
    assert store.get("long").state == "running"
    with Server(config) as server:
        server.wait_until(lambda: store.get("next").state == "finished")
        assert (store.get("long").state, store.get("long").attempts) == ("finished", 1)  # found again, not restarted
        assert not (tmp_path / "twice").exists()
        store.submit([witness(tmp_path, "left", 10_000)], "me")
        server.wait_until(lambda: store.get("left").state == "running")
    assert store.get("left").state == "suspended"
    store.close()


def two(folder):
    path = folder / "two.yaml"
    path.write_text("jobs: [{command: [x]}, {command: [x]}]")
    return path
