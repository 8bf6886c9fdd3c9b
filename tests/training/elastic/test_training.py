"""Real workers in real processes: whatever joins, leaves or dies, training comes out the same to the last bit."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from placement.units import Seconds
from serving.models.config import read_config
from serving.models.load import load_shard
from serving.models.shard import make_shard
from serving.small_models.language import perplexity
from tests.training.elastic.worlds import Job, check_same, make_model, spec_of, undisturbed
from training.elastic.door import find_door
from training.elastic.learner import Learner


def test_nothing_is_lost_or_doubled_by_joining_leaving_and_dying(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1, 2)) as job:
        job.wait_for_workers(3)
        job.signal_worker(1, signal.SIGKILL)
        job.wait_for_workers(2)
        job.signal_worker(2, signal.SIGTERM)
        job.wait_for_workers(1)
        left = job.ask((1,))  # the last that has a state leaves, and the one that stays is about to come
        assert set(left.workers) == {"local/1"}
        job.wait_for_workers(1)
        assert job.terminate() == 0
        before = check_same(job, spec, tmp_path)
    with Job(tmp_path / "job", spec, devices=(0,), run="r2") as job:  # goes on from its checkpoint
        job.wait(lambda: job.steps()[-1] > before)
        assert job.terminate() == 0
        assert check_same(job, spec, tmp_path) > before


def test_a_model_with_experts_can_be_served(tmp_path):
    world = make_model(tmp_path, experts=4)
    learner, losses = undisturbed(spec_of(world, balance=0.01, micro_batch=2), 25, tmp_path)
    assert losses[-1] < 0.8 * losses[0]
    learner.export(tmp_path / "model")
    config = read_config(tmp_path / "model")
    served = load_shard(tmp_path / "model", config, make_shard(config.sizes, 1, 1, 0))
    stream = np.load(tmp_path / "tokens.npy")[:200].tolist()
    assert perplexity(served, stream) == pytest.approx(perplexity(learner.model.eval(), stream), rel=1e-5)
    again = Learner(spec_of(tmp_path, model=str(tmp_path / "model"), fresh=False), tmp_path / "tokens.npy")
    again.begin()  # another job goes on with it
    assert perplexity(again.model.eval(), stream) == pytest.approx(perplexity(served, stream), rel=1e-5)


def test_a_killed_coordinator_takes_its_workers_along_and_goes_on_from_its_checkpoint(world, tmp_path):
    spec = spec_of(world, checkpoint=Seconds(0.1), steps=60)
    with Job(tmp_path / "job", spec) as job:
        job.wait(lambda: len(job.checkpoints()) >= 2)
        worker = job.ask().workers["local/0"]
        sockets = Path(find_door(job.folder, job.run)).parent
        job.process.kill()
        job.process.wait()
        job.wait_until_gone(worker)
    os.truncate(job.checkpoints()[-1], 100)  # the newest is torn
    with Job(tmp_path / "job", spec, run="r2") as job:
        assert job.finish() == 0, job.log()
    assert not sockets.exists()
    assert "is passed over: its checksum is wrong" in job.log()
    learner, losses = undisturbed(spec, 60, tmp_path)
    made = {one["step"]: one["loss"] for one in job.history("step")}
    assert list(made.values()) == losses  # those made twice came out the same
    assert len(job.checkpoints()) <= spec.keep
    learner.export(tmp_path / "model")
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (tmp_path, job.folder)]
    assert weights[0] == weights[1]
    with Job(tmp_path / "job", spec, run="r3") as job:  # nothing is left to do
        assert job.finish() == 0


def test_what_a_worker_finds_wrong_ends_the_job_with_one_line(world, tmp_path):
    with Job(tmp_path / "job", spec_of(world, context=4096)) as job:
        assert job.finish() == 2
    assert job.log().splitlines()[-1] == f"a context of 4096; {world}/base has 2048 positions"


@pytest.mark.long
def test_twenty_random_events_with_experts(tmp_path):
    chance = random.Random(8)
    spec = spec_of(make_model(tmp_path, experts=4), balance=0.01, checkpoint=Seconds(1))
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        for _ in range(20):
            if chance.random() < 0.6:
                if chance.random() < 0.3:
                    job.ask(())
                    time.sleep(chance.uniform(0, 0.2))
                job.ask(chance.sample(range(4), chance.randint(1, 3)))
            else:
                os.kill(chance.choice(list(job.ask().workers.values())), signal.SIGKILL)
            before = job.steps()[-1]
            time.sleep(chance.uniform(0, 3))
            job.wait(lambda before=before: job.steps()[-1] > before)
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)
