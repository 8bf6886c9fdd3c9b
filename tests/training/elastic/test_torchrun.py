"""A user's own script under torchrun in the queue: what docs/elastic_training.md says of it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.training.elastic.torchrun_script import STEPS, samples
from tests.training.queue.worlds import Lent, cluster, running, until
from training.policies import policy_named
from training.queue import CommandRunner, Submission, open_store, read_log
from training.queue.command_runner import FOLDER
from training.queue.processes import with_variable
from training.queue.service import QueueService, QueueSettings

WAIT_S = 120.0
NAMES = ("n0/0", "n0/1")
SCRIPT = Path(__file__).with_name("torchrun_script.py")
COMMAND = f"exec torchrun --standalone --nproc-per-node $PENSTOCK_WORKERS {SCRIPT}"


def undisturbed():
    """The weights that one process learns which nobody disturbs."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs, wanted = samples(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.long
def test_it_is_shrunk_killed_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    store, devices = open_store(f"sqlite:///{tmp_path}/q.db"), Lent(NAMES)
    command = ("sh", "-c", COMMAND)
    store.submit([Submission(id="a", command=command, min_gpus=1, max_gpus=2, grace=2.0, retries=3)], "me")
    settings = QueueSettings(name="c0", folder=tmp_path / "jobs", look_s=0.05)
    queue = QueueService(store, cluster(2), devices, {"command": CommandRunner()}, policy_named("lyra"), settings)
    checkpoint = tmp_path / "jobs" / "a" / "checkpoint" / "state.pt"

    def told():
        folder = store.get("a").folder
        lines = read_log(Path(folder)).text.splitlines() if folder else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def made(workers, attempt):
        return [one["step"] for one in told() if (one["workers"], one["attempt"]) == (workers, attempt)]

    async def live():
        async with running(queue):
            await until(lambda: len(made(2, 1)) > 5, WAIT_S)
            devices.wanted_back = {"n0/0"}
            await queue.recall()
            assert devices.held.get("a", ()) in ((), ("n0/1",))
            shrunk_at = torch.load(checkpoint)["step"]
            await until(lambda: len(made(1, 2)) > 5, WAIT_S)
            assert made(1, 2)[0] == shrunk_at + 1
            for process in with_variable(FOLDER, store.get("a").folder):
                os.kill(process.pid, signal.SIGKILL)
            await until(lambda: not with_variable(FOLDER, store.get("a").folder), WAIT_S)
            killed_at = torch.load(checkpoint)["step"]
            await until(lambda: made(1, 3), WAIT_S)
            assert made(1, 3)[0] == killed_at + 1
            await until(lambda: not store.live(), WAIT_S)

    asyncio.run(live())
    record = store.get("a")
    store.close()
    assert (record.state, record.attempts) == ("finished", 3)
    left, wanted = torch.load(checkpoint), undisturbed()
    assert left["step"] == STEPS
    for name, value in wanted.items():
        torch.testing.assert_close(left["model"][f"module.{name}"], value)
