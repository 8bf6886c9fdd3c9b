"""An `lm` job in the queue: it grows onto what is idle, shrinks in place for others, and outlives its controller."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.training.elastic.worlds import JobFolder, check_same, spec_of
from tests.training.queue.worlds import cluster, running, shell, states, until
from training.elastic.door import ask
from training.elastic.runner import LmRunner
from training.policies import policy_named
from training.queue import CommandRunner, OwnDevices, Submission, open_store, read_log
from training.queue.service import QueueService, QueueSettings

WAIT_S = 60.0


@pytest.fixture
def store(tmp_path):
    opened = open_store(f"sqlite:///{tmp_path}/q.db")
    yield opened
    opened.close()


def queue(store, folder):
    machines = cluster(2)
    names = [device.name for device in machines.devices]
    runners = {"command": CommandRunner(), "lm": LmRunner({name: f"cpu:{n}" for n, name in enumerate(names)})}
    settings = QueueSettings(name="c0", folder=folder, look_s=0.05)
    return QueueService(store, machines, OwnDevices(names), runners, policy_named("lyra"), settings)


def lm(name, spec, **more):
    return Submission(id=name, type="lm", lm=msgspec.to_builtins(spec, enc_hook=float), **more)


def test_it_grows_shrinks_and_is_found_again(world, store, tmp_path):
    spec = spec_of(world)
    seen = JobFolder(tmp_path / "jobs" / "a")

    async def live():
        store.submit([lm("a", spec, min_gpus=1, max_gpus=2)], "me")
        async with running(queue(store, tmp_path / "jobs"), suspends=False) as first:
            await until(lambda: seen.trains_with(2), WAIT_S)
            store.submit([shell("b", f"while ! test -e {tmp_path}/go; do sleep 0.02; done")], "me")
            await until(lambda: states(store)["b"] == "running", WAIT_S)
            assert len(store.get("a").devices) == 1
            await until(lambda: seen.trains_with(1), WAIT_S)
            await asyncio.to_thread(first._attendant.claims.release)
        record = store.get("a")
        ask(seen.folder, record.run, {"n0/0": "cpu:0", "n0/1": "cpu:1"})  # as if it had died while it changed this
        async with running(queue(store, tmp_path / "jobs")):  # the controller is another
            await until(lambda: set(ask(seen.folder, record.run).workers) == set(record.devices), WAIT_S)
            (tmp_path / "go").touch()
            await until(lambda: seen.trains_with(2), WAIT_S)
            assert store.get("a").attempts == 1

    asyncio.run(live())
    assert states(store) == {"a": "suspended", "b": "finished"}
    check_same(seen, spec, tmp_path)


def test_trainers_run_the_code_that_the_server_runs_and_commands_their_own(world, store, tmp_path, monkeypatch):
    """A file on the server's PYTHONPATH is seen by a trainer, from its first import on."""
    witness = tmp_path / "own" / "training" / "elastic"
    witness.mkdir(parents=True)
    for package in (witness.parent, witness):
        (package / "__init__.py").touch()
    (witness / "__main__.py").write_text("raise SystemExit('this is the code of the server')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))

    async def live():
        store.submit([lm("a", spec_of(world)), shell("b", "echo -$PYTHONPATH-")], "me")
        async with running(queue(store, tmp_path / "jobs")):
            await until(lambda: not store.live(), WAIT_S)

    asyncio.run(live())
    logs = [read_log(Path(store.get(name).folder)).text for name in "ab"]
    assert logs == ["this is the code of the server\n", "--\n"]


def test_what_is_wrong_is_said_in_one_line(world, store, tmp_path):
    async def live():
        store.submit([lm("a", spec_of(world, data="/no/such/text")), Submission(id="b", type="lm", lm={"x": 1})], "me")
        async with running(queue(store, tmp_path / "jobs")):
            await until(lambda: not store.live(), WAIT_S)

    asyncio.run(live())
    assert states(store) == {"a": "failed", "b": "failed"}
    logs = [read_log(Path(store.get(name).folder)).text for name in "ab"]
    assert logs[0] == "/no/such/text: no such file or directory\n"
    assert logs[1].startswith("lm: ")
    assert logs[1].count("\n") == 1
