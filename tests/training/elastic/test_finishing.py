"""A worker that writes down what was learned keeps nobody from its device, and writes all of it."""

import os
import time

import pytest

from tests.training.elastic.worlds import Job, spec_of
from training.elastic.cores import Cores
from training.elastic.task import FINISHED, MODEL
from training.elastic.worker import NO_HURRY


@pytest.fixture
def slow_disk(tmp_path, monkeypatch):
    """For processes that begin now: 1.5 s for what is to be on it."""
    (tmp_path / "sitecustomize.py").write_text("import os, time\nos.fsync = lambda handle: time.sleep(1.5)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def test_its_device_is_wanted_back(world, tmp_path, slow_disk):
    spec = spec_of(world, steps=10)
    with Job(tmp_path / "job", spec) as job:
        job.wait(lambda: job.steps()[-1:] == [10])
        process = job.ask().workers["local/0"]
        began = time.monotonic()
        answer = job.ask(())
        assert time.monotonic() - began < 1
        assert (answer.workers, answer.parked) == ({}, (process,))
        job.wait(lambda: os.sched_getaffinity(process) == os.sched_getaffinity(0))
        job.wait(lambda: os.getpriority(os.PRIO_PROCESS, process) == NO_HURRY)
        assert job.finish() == 0
    assert (job.folder / FINISHED).exists()
    assert (job.folder / MODEL / "model.safetensors").exists()


def test_all_threads_leave_a_core():
    cores, before = Cores(), os.sched_getaffinity(0)
    try:
        cores.move("cpu:0")
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        cores.leave()
    assert os.sched_getaffinity(0) == before
