"""Workers without a device wait in memory, and go on when one is there: as if nothing had happened."""

import asyncio
import os
import signal
import time

import pytest

from placement.errors import InputError
from placement.units import Seconds
from tests.training.elastic.worlds import Job, check_same, cpu_s, places, spec_of
from training.elastic.coordinator import LEAVE_S, Coordinator
from training.elastic.task import FINISHED, Task


def wait_for_checkpoint(job):
    job.wait(lambda: any(f"step-{job.steps()[-1]:010d}" in path.name for path in job.checkpoints()))


def test_parked_as_a_whole_and_in_part_it_learns_the_same(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        workers = set(job.ask().workers.values())
        left = job.ask(())
        assert (left.workers, set(left.parked)) == ({}, workers)
        wait_for_checkpoint(job)
        before, spent = job.steps(), [cpu_s(process) for process in workers]
        time.sleep(0.5)
        assert sum(cpu_s(process) for process in workers) - sum(spent) <= 0.02
        assert job.steps() == before
        job.ask((0,))  # one has the newest state
        job.wait_for_workers(1)
        job.ask((0, 1))  # the other gets it
        job.wait_for_workers(2)
        job.ask((1,))
        job.wait_for_workers(1)
        assert set(job.ask().workers.values()) < workers
        assert len(job.history("ready")) == 2  # nobody was started again
        assert len(job.history("parks")) == len(job.history("returns")) + 1 == 3
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_a_worker_moves_to_another_device(world, tmp_path):
    spec = spec_of(world)
    cores = sorted(os.sched_getaffinity(0))
    with Job(tmp_path / "job", spec) as job:
        job.wait_for_workers(1)
        (process,) = job.ask().workers.values()
        assert job.ask((1,)).workers == {"local/1": process}
        before = job.steps()[-1]
        job.wait(lambda: job.steps()[-1] > before + 3)
        assert os.sched_getaffinity(process) == {cores[1 % len(cores)]}
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_a_coordinator_that_is_killed_while_all_are_parked(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        left = job.ask(())
        wait_for_checkpoint(job)
        before = job.steps()[-1]
        job.process.kill()
        job.process.wait()
        for process in left.parked:
            job.wait_until_gone(process)
    with Job(tmp_path / "job", spec, run="r2") as job:
        job.wait(lambda: job.steps()[-1] > before + 3)
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)  # no step was made twice


def test_a_job_that_is_stopped_while_parked_ends_at_once(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec) as job:
        job.wait_for_workers(1)
        job.ask(())
        began = time.monotonic()
        assert job.terminate() == 0
        assert time.monotonic() - began < 2
        check_same(job, spec, tmp_path)


def test_none_waits_forever(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1), parked_s=0.5) as job:
        job.wait_for_workers(2)
        (parked,) = job.ask((0,)).parked
        job.wait_until_gone(parked)
        job.wait_for_workers(1)
        assert not job.history("lost")
        job.ask(())
        assert job.finish() == 0
        assert not (job.folder / FINISHED).exists()
        check_same(job, spec, tmp_path)


@pytest.mark.parametrize("devices", [(0,), ()])
def test_who_does_not_come_to_the_end_of_its_step(world, tmp_path, devices):
    """It is killed, unless it alone has the newest state."""
    spec = spec_of(world, pace=Seconds(1.0))
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait(lambda: job.trains_with(2, 1))
        began = time.monotonic()
        left = job.ask(devices)
        assert LEAVE_S <= time.monotonic() - began < 1.5
        assert len(left.workers) == len(devices)
        assert len(left.parked) == 1 - len(devices)
        assert len(job.history("leaves")) == 1
        job.ask((0,))
        job.wait(lambda: job.trains_with(1, 1))
        assert len(job.history("ready")) == 2
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_a_parked_worker_that_dies_is_missed_by_nobody(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        (parked,) = job.ask((0,)).parked
        os.kill(parked, signal.SIGKILL)
        job.wait_until_gone(parked)
        job.wait_for_workers(1)
        assert job.ask().parked == ()
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


class NoLauncher:
    def __init__(self):
        self.asked = []

    async def start(self, spec):
        self.asked.append(spec)
        raise InputError("it starts nothing")


def test_devices_that_are_taken_away_before_it_has_begun_are_left_alone(world, tmp_path):
    async def go():
        task, launcher = Task(lm={}, run="r1", devices=places((0,))), NoLauncher()
        coordinator = Coordinator(task, spec_of(world), tmp_path, tmp_path / "tokens", launcher)
        await coordinator.resize({})
        running = asyncio.create_task(coordinator.run())
        await asyncio.sleep(0.05)
        assert not launcher.asked
        coordinator.stop()
        await running

    asyncio.run(go())
