"""Small jobs for the trainer: a model of some thousand parameters, a text, and the processes that train it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import torch

from placement.files import encode_json, replace_file
from placement.units import Seconds, Share
from serving.parallel import Alone
from serving.small_models.random import make_random
from training.elastic.checkpoints import Checkpoints
from training.elastic.door import ask
from training.elastic.exchange import sum_parts
from training.elastic.learner import Learner
from training.elastic.spec import LmSpec
from training.elastic.task import CHECKPOINT, HISTORY, TASK, Task
from training.elastic.tokens import prepare_tokens

WAIT_S = 60


def make_model(folder, experts=0):
    """A tiny model, and a text of words that follow each other."""
    make_random(folder / "base", hidden=32, layers=2, heads=2, ffn=48, vocabulary=300, experts=experts, top_k=2)
    words = "the river turns the wheel and the wheel grinds corn that a miller sells in town".split()  # noqa: SIM905
    chosen = np.random.default_rng(0).choice(words, 4000)
    (folder / "text.txt").write_text(" ".join(chosen), encoding="utf-8")
    return folder


def spec_of(world, **changes):
    words = {
        "steps": 100_000,
        "batch": 4,
        "context": 16,
        "learning_rate": 3e-3,
        "warmup": Share(0),
        "seed": 1,
        "pace": Seconds(0.05),
    }
    return LmSpec(**{"model": str(world / "base"), "data": str(world / "text.txt"), "fresh": True} | words | changes)


def undisturbed(spec, steps, folder):
    """What one worker comes to that nobody disturbs: its learner, and the losses of its steps."""
    torch.set_num_threads(1)
    learner = Learner(spec, prepare_tokens(Path(spec.data), Path(spec.model), folder))
    learner.begin()
    losses = []
    while learner.step < steps:
        own = learner.gradients(range(spec.parts))
        losses.append(learner.take(sum_parts(Alone(), own, spec.parts, learner.size)))
    return learner, losses


def check_same(job, spec, folder):
    """Every step was made, and again only where a kill cost one, with the losses of an undisturbed job; and all that
    was learned is the same, to the last bit; how many steps there were."""
    check_made_again(job)
    steps = job.steps()
    assert steps == list(range(1, steps[-1] + 1))
    learner, losses = undisturbed(spec, steps[-1], folder)
    assert all(one["loss"] == losses[one["step"] - 1] for one in job.history("step"))
    found = Checkpoints(job.folder / CHECKPOINT, 1).latest()
    assert found.step == steps[-1]
    wanted = learner.state().tensors
    assert found.tensors.keys() == wanted.keys()
    assert all(torch.equal(found.tensors[name], wanted[name]) for name in wanted)
    assert not job.history("disagree")
    return found.step


def check_made_again(job):
    """No generation goes back where nobody was killed; else by one step, unless nobody is left who had made the last
    one."""
    made_by, workers, lost, last, begins = set(), set(), set(), 0, False
    for one in job.history():
        match one["what"]:
            case "lost" | "leaves":
                lost.add(one["worker"])
            case "goes on":
                workers, begins = set(one["workers"]), True
                if one["generation"] == 1:  # of another coordinator
                    made_by, lost, last = set(), set(), 0
            case "step":
                if begins and made_by - lost:
                    back = last - (one["step"] - 1)
                    assert back <= bool(made_by & lost), f"generation {one['generation']} went back by {back} steps"
                made_by, last, begins = workers, one["step"], False


def places(devices):
    return {f"local/{number}": f"cpu:{number}" for number in devices}


def cpu_s(process):
    """What a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class JobFolder:
    """What a job has left in its folder."""

    def __init__(self, folder):
        self.folder = folder

    def history(self, what=None):
        path = self.folder / HISTORY
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = []
        for line in lines:
            with suppress(ValueError):  # the last may be half-written
                found.append(json.loads(line))
        return [one for one in found if what is None or one["what"] == what]

    def steps(self):
        """Each once."""
        return [one["step"] for one in self.history("step") if not one.get("again")]

    def trains_with(self, count, steps=5):
        """Whether so many workers have made the last steps together."""
        return [one["workers"] for one in self.history("step")[-steps:]] == [count] * steps


class Job(JobFolder):
    """One job's coordinator, as the queue's keeper would run it."""

    def __init__(self, folder, spec, devices=(0,), run="r1", **more):
        super().__init__(folder)
        self.run = run
        folder.mkdir(exist_ok=True)
        told = msgspec.to_builtins(spec, enc_hook=float)
        replace_file(folder / TASK, encode_json(Task(lm=told, run=run, devices=places(devices), **more)))
        environment = {**os.environ, "PENSTOCK_JOB_DIR": str(folder), "OMP_NUM_THREADS": "1"}
        with open(folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "training.elastic", str(folder)], stdout=log, stderr=log, env=environment
            )

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.process.kill()
        self.process.wait(WAIT_S)

    def wait_for_workers(self, count):
        self.wait(lambda: self.trains_with(count), f"{count} workers")

    def wait(self, is_so, what="what was waited for"):
        end = time.monotonic() + WAIT_S
        while not is_so():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log()}"
            assert time.monotonic() < end, f"no {what} within {WAIT_S} s: {self.log()}"
            time.sleep(0.005)

    def ask(self, devices=None):
        self.wait(lambda: (self.folder / "door.json").exists())
        return ask(self.folder, self.run, None if devices is None else places(devices))

    def signal_worker(self, device, number):
        os.kill(self.ask().workers[f"local/{device}"], number)

    def wait_until_gone(self, process):
        end = time.monotonic() + WAIT_S
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < end
            time.sleep(0.01)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def finish(self):
        return self.process.wait(WAIT_S)

    def log(self):
        return (self.folder / "log").read_text()

    def checkpoints(self):
        return sorted((self.folder / CHECKPOINT).glob("step-*"))
