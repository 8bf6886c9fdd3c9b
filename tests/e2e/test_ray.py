"""`penstock serve --launcher ray` on a Ray cluster of three nodes on this machine."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; pip install 'penstock[ray]' brings it")

from benchmarks.harness.ray_nodes import ray_nodes
from benchmarks.harness.server import OPTIONS, write_plan
from tests.e2e.server import CACHE_BYTES, PLACES, Server, write_config
from tests.training.elastic.worlds import JobFolder
from training.queue import open_store
from training.queue.submission import Submission

BACK_S = 30.0
"""Within which what is left of a cluster serves by a plan of its own."""

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]


def test_the_suite_of_the_endpoint_passes_unchanged():
    """On two nodes of one device each: what has two devices goes across."""
    with ray_nodes({"n0": 1, "n1": 1}) as nodes:
        environment = os.environ | {OPTIONS: f"--launcher ray --address {nodes.address}", PLACES: "n0/0,n1/0"}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not long",
            "tests/e2e/test_serve.py",
            "tests/e2e/test_clients.py",
        ]
        ran = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_a_node_that_dies_under_load_costs_what_had_begun_there_and_is_used_again(tiny_models, tmp_path, monkeypatch):
    config = write_config(tmp_path, tiny_models)
    shared = {"tp": 1, "pp": 1, "models": ["chat", "embed"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(tmp_path / "plan.json", [{"devices": [f"n{number}/0"]} | shared for number in range(3)])
    with ray_nodes({"n0": 1, "n1": 1, "n2": 1}) as nodes:
        monkeypatch.setenv(OPTIONS, f"--launcher ray --address {nodes.address}")
        with Server(config) as server, ThreadPoolExecutor(12) as pool, ThreadPoolExecutor(24) as asking:
            assert set(server.status()["devices"]) == {"n0/0", "n1/0", "n2/0"}
            chats = [pool.submit(server.complete, 450) for _ in range(12)]
            server.wait_until(lambda: sum(running(server).values()) + sum(one.done() for one in chats) >= 12)
            embeds = [asking.submit(server.embed) for _ in range(24)]
            begun = running(server)
            victim, other = sorted(("n1", "n2"), key=lambda name: -begun[f"{name}/0"])  # n0 is the head
            assert begun[f"{victim}/0"] > 0
            killed = time.monotonic()
            nodes.kill(victim)
            answers = [one.result() for one in chats + embeds]
            for status, answer, _ in answers:
                assert status in (200, 503), answer
            lost = sum(status == 503 for status, _, _ in answers)
            assert lost <= begun[f"{victim}/0"], "only those that had begun on the node"
            assert all(one.result()[0] == 200 for one in embeds), "one-pass requests begin anew elsewhere"
            server.wait_until(lambda: is_served(server, {"n0/0", f"{other}/0"}), BACK_S)
            back_s = time.monotonic() - killed
            assert back_s < BACK_S
            assert server.complete(8)[0] == 200
            nodes.start("n3", 1)
            server.wait_until(lambda: is_served(server, {"n0/0", f"{other}/0", "n3/0"}), BACK_S)
            log = server.log.read_text()
            assert f"node {victim} left" in log
            assert '"node": "n3"' in log or "node n3 joined" in log


def test_a_job_trains_on_several_nodes_and_goes_on_when_one_is_gone(tiny_models, tmp_path, monkeypatch):
    """The server's group is on one node; the other two train together, until one of them dies."""
    (tmp_path / "text.txt").write_text("It is what it is, and it was what it was.\n" * 400)
    training = {"store": "sqlite:///queue.db", "data": ["text.txt"], "loans": {"mode": "off"}}
    config = write_config(tmp_path, tiny_models, training=training)
    shared = {"tp": 1, "pp": 1, "models": ["chat", "embed"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(tmp_path / "plan.json", [{"devices": ["n0/0"]} | shared])
    lm = {"model": str(tiny_models / "chat"), "data": str(tmp_path / "text.txt"), "steps": 10**6, "context": 32}
    job = Submission(id="lesson", type="lm", max_gpus=2, lm=lm | {"batch": 4, "pace": 0.05})
    store = open_store(f"sqlite:///{tmp_path}/queue.db")
    with ray_nodes({"n0": 1, "n1": 1, "n2": 1}) as nodes:
        monkeypatch.setenv(OPTIONS, f"--launcher ray --address {nodes.address}")
        with Server(config) as server:
            store.submit([job], "me")
            server.wait_until(lambda: store.get("lesson").folder is not None)
            seen = JobFolder(Path(store.get("lesson").folder))
            server.wait_until(lambda: seen.trains_with(2), 120)
            assert [server.status()["devices"][f"n{number}/0"] for number in (1, 2)] == ["job lesson"] * 2
            made = seen.steps()[-1]
            nodes.kill("n2")
            server.wait_until(lambda: set(server.status()["devices"]) == {"n0/0", "n1/0"}, BACK_S)
            server.wait_until(lambda: seen.trains_with(1) and seen.steps()[-1] > made + 5, 60)
            steps = seen.steps()
            assert steps == sorted(set(steps)), "no step was made twice"
            assert store.get("lesson").attempts == 1
            assert server.complete(8)[0] == 200


def running(server):
    """Texts that are being written, by device."""
    return {group["devices"][0]: group["models"]["chat"]["running"] for group in server.status()["groups"]}


def is_served(server, devices):
    """All of these devices, and no others, are in the ledger, and every group serves by a plan that was made anew."""
    status = server.status()
    groups = status["groups"]
    return (
        set(status["devices"]) == devices
        and status["plan"]["why"].startswith("node n")
        and bool(groups)
        and all(group["state"] == "serving" for group in groups)
    )
