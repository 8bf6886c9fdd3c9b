"""A job goes on from the newest state there is, whoever has it: on the device, in memory or on the disk."""

import signal
import time

from placement.units import Seconds
from tests.training.elastic.worlds import Job, check_same, spec_of
from training.elastic.checkpoint_names import newest_step


def test_the_first_device_that_comes_back_was_not_the_last_that_went(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        old = job.ask((1,)).parked[0]
        wait_for_steps(job, 10)
        job.ask(())
        new = job.ask((0,)).workers["local/0"]
        assert new != old
        wait_for_steps(job, 5)
        assert len(job.history("ready")) == 2
        job.ask((0, 1))
        job.wait_for_workers(2)
        assert job.ask().workers == {"local/0": new, "local/1": old}
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_devices_are_swapped_in_one_resize(world, tmp_path):
    spec = spec_of(world, pace=Seconds(0.15))  # so that it comes in the middle of a step
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        old = job.ask((1,)).parked[0]
        wait_for_steps(job, 10)
        time.sleep(0.05)
        answer = job.ask((0,))
        assert answer.parked == (old,)
        wait_for_steps(job, 5)
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_the_only_one_that_trains_is_killed_while_an_older_one_is_parked(world, tmp_path):
    spec = spec_of(world, checkpoint=Seconds(0.2))
    with Job(tmp_path / "job", spec, devices=(0, 1)) as job:
        job.wait_for_workers(2)
        old = job.ask((1,)).parked[0]
        parked_at = job.history("parks")[-1]["step"]
        job.wait(lambda: newest_step(job.folder / "checkpoint") > parked_at + 10)
        saved = newest_step(job.folder / "checkpoint")
        job.signal_worker(1, signal.SIGKILL)
        job.wait(lambda: job.history("lost"))
        last = job.steps()[-1]
        job.wait(lambda: job.steps()[-1] > last + 5)
        assert job.ask().workers == {"local/1": old}
        again = [one["step"] for one in job.history("step") if one.get("again")]
        assert again == list(range(last + 1 - len(again), last + 1))
        assert len(again) <= last - saved
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def test_a_torn_checkpoint_is_not_waited_for(world, tmp_path):
    spec = spec_of(world)
    with Job(tmp_path / "job", spec, devices=(0,)) as job:
        job.wait_for_workers(1)
        folder = job.folder / "checkpoint"
        folder.mkdir(exist_ok=True)
        (folder / f"step-{99_999:010d}-{'0' * 32}.safetensors").write_bytes(b"torn")
        job.ask(())
        job.ask((1,))
        wait_for_steps(job, 5)
        job.ask((0, 1))
        job.wait_for_workers(2)
        assert job.terminate() == 0
        check_same(job, spec, tmp_path)


def wait_for_steps(job, count):
    before = job.steps()[-1]
    job.wait(lambda: job.steps()[-1] >= before + count)
