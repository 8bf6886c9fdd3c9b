"""The live queue: real processes under real policies, on a few pretended devices."""

import asyncio
import fcntl
import os
import signal
import sys
import time

import msgspec
import pytest

from tests.training.queue.controllers import witness
from tests.training.queue.worlds import Lent, cluster, job, running, service, shell, states, until
from training.queue import ANYBODY, CommandRunner, OwnDevices, Quota, Running, open_store, read_log
from training.queue.attendant import HEALTHY_S, _losses
from training.queue.claims import register
from training.queue.processes import find_process
from training.queue.record import Observed, Process, Record
from training.queue.runner import Exited

FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.02; done"
STUBBORN = "trap '' TERM; while :; do sleep 0.02; done"


@pytest.fixture
def store(sqlite_store):
    return sqlite_store


def live(test):
    """Runs an async test."""

    def run(store, tmp_path):
        asyncio.run(test(store, tmp_path))

    run.__name__ = test.__name__
    return run


@live
async def test_jobs_run_to_their_ends(store, tmp_path):
    store.submit([shell("good", "echo fine"), shell("bad", "echo oh; exit 3"), job("none", "/no/such/program")], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: not store.live())
    assert states(store) == {"good": "finished", "bad": "failed", "none": "failed"}
    bad = store.get("bad")
    assert (bad.exit_code, bad.why, read_log(bad.folder).text) == (3, "exit code 3", "oh\n")
    assert "No such file" in store.get("none").why
    assert [event.state for event in store.events("good")] == ["queued", "starting", "running", "finished"]
    assert store.get("good").observed.run_s > 0


@live
async def test_a_failure_is_tried_again_from_its_checkpoint(store, tmp_path):
    script = 'cd "$PENSTOCK_CHECKPOINT_DIR"; echo x >> tries; test $(wc -l < tries) -ge 3'
    store.submit([shell("late", script, retries=2), shell("never", "exit 1", retries=1)], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: not store.live())
    assert states(store) == {"late": "finished", "never": "failed"}
    assert (store.get("late").attempts, store.get("never").attempts) == (3, 2)


@live
async def test_what_cannot_be_started_now_is_tried_again(store, tmp_path):
    class Crowded(CommandRunner):
        def start(self, record):
            if record.attempts < 3:
                raise BlockingIOError("no process to be had")
            return super().start(record)

    store.submit([shell("a", "true")], "me")
    async with running(service(store, tmp_path / "jobs", runner=Crowded())):
        await until(lambda: not store.live())
    record = store.get("a")
    assert (record.state, record.losses, record.failures, record.attempts) == ("finished", 2, 0, 3)
    assert any("cannot be started: no process" in event.why for event in store.events("a"))


def test_processes_that_lived_long_are_lost_for_the_first_time():
    record = msgspec.structs.replace(Record.of(shell("a", "true"), 1, 0.0), losses=5)
    for lived_s, losses in ((None, 6), (1.0, 6), (HEALTHY_S + 1, 1)):
        started = None if lived_s is None else time.time() - lived_s
        observed = Observed(last_start=started)
        assert _losses(msgspec.structs.replace(record, observed=observed)) == losses


@live
async def test_a_run_waits_for_what_is_left_of_an_earlier_one(store, tmp_path):
    """Something holds the job's lock and cannot be seen: the job is not failed for it."""
    folder = tmp_path / "jobs" / "a"
    folder.mkdir(parents=True)
    with open(folder / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store.submit([shell("a", "true")], "me")
        async with running(service(store, tmp_path / "jobs")):
            await until(lambda: store.get("a").losses == 1)
            assert "an earlier run is still there" in store.get("a").why
            fcntl.flock(lock, fcntl.LOCK_UN)
            await until(lambda: not store.live())
    assert store.get("a").state == "finished"


@live
async def test_cancelling_what_runs(store, tmp_path):
    store.submit([shell("mild", FOREVER), shell("stubborn", STUBBORN, grace=0.2)], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: set(states(store).values()) == {"running"})
        process = store.get("stubborn").process
        await asyncio.sleep(0.3)
        began = time.monotonic()
        for name in ("mild", "stubborn"):
            store.cancel(name, "me")
        assert store.get("mild").view()["state"] in ("cancelling", "cancelled")
        await until(lambda: not store.live())
        assert time.monotonic() - began < 5
    assert states(store) == {"mild": "cancelled", "stubborn": "cancelled"}
    assert not os.path.exists(f"/proc/{process.pid}")


@live
async def test_higher_priority_suspends_and_what_was_suspended_goes_on(store, tmp_path):
    store.submit([witness(tmp_path, "low", 100)], "me")
    async with running(service(store, tmp_path / "jobs", "priority", count=1)):
        await until(lambda: "step 3" in read_log(store.get("low").folder).text)
        store.submit([witness(tmp_path, "high", 3, priority=5)], "me")
        await until(lambda: states(store)["low"] == "suspended")
        await until(lambda: not store.live())
    low = store.get("low")
    assert states(store) == {"low": "finished", "high": "finished"}
    assert (low.observed.preemptions, low.attempts) == (1, 2)
    assert read_log(low.folder).text.split("\n").count("step 3 of low") == 1  # not done again


@live
async def test_devices_that_are_wanted_back(store, tmp_path):
    devices = Lent(["n0/0", "n0/1"])
    store.submit([witness(tmp_path, "a", 30)], "me")
    async with running(service(store, tmp_path / "jobs", devices=devices)):
        await until(lambda: states(store)["a"] == "running")
        assert devices.held == {"a": ("n0/0",)}
        devices.wanted_back = {"n0/0", "n0/1"}
        await until(lambda: states(store)["a"] == "suspended")
        await until(lambda: devices.held == {})
        devices.wanted_back = set()
        await until(lambda: not store.live())
    assert states(store) == {"a": "finished"}


@live
async def test_an_elastic_command_is_started_again_with_what_there_is(store, tmp_path):
    script = 'echo "workers $PENSTOCK_WORKERS on $PENSTOCK_DEVICES"; ' + FOREVER
    store.submit([shell("e", script, min_gpus=1, gpus=1, max_gpus=3)], "me")
    async with running(service(store, tmp_path / "jobs", "penstock", count=3)):
        await until(lambda: "workers 3" in read_log(store.get("e").folder).text)
        store.submit([shell("two", "sleep 0.3", gpus=2, duration=1)], "me")
        await until(lambda: "workers 1" in read_log(store.get("e").folder).text)
        await until(lambda: states(store)["two"] == "finished")
        await until(lambda: read_log(store.get("e").folder).text.count("workers 3") >= 2)
        store.cancel("e", "me")
        await until(lambda: not store.live())


@live
async def test_a_job_whose_stop_is_known_before_it_is_over_starts_again(store, tmp_path):
    store.submit([shell("e", FOREVER, min_gpus=1, gpus=1, max_gpus=3)], "me")
    queue = service(store, tmp_path / "jobs", "penstock", count=3)
    stop = queue._attendant.stop

    async def stop_and_linger(*step):
        await stop(*step)
        queue.wake()
        await asyncio.sleep(0.5)

    queue._attendant.stop = stop_and_linger
    async with running(queue):
        await until(lambda: len(store.get("e").devices) == 3)
        store.submit([shell("two", "sleep 0.3", gpus=2, duration=1)], "me")
        await until(lambda: states(store)["two"] == "finished")
        await until(lambda: len(store.get("e").devices) == 3)


class InPlace:
    """A runner whose jobs change their devices without a restart; nothing runs."""

    def __init__(self):
        self.devices = {}

    def start(self, record):
        self.devices[record.id] = [record.devices]
        return Process(1, 1)

    def look(self, record):
        return Running(Process(1, 1)) if record.id in self.devices else Exited(0, True)

    def stop(self, record):
        self.devices.pop(record.id, None)

    def kill(self, record):
        return self.look(record)

    def can_resize(self, record, devices):
        return True

    def resize(self, record, devices):
        self.devices[record.id].append(tuple(devices))


@live
async def test_growing_and_shrinking_in_place(store, tmp_path):
    runner = InPlace()
    store.submit([shell("e", "-", min_gpus=1, gpus=1, max_gpus=3)], "me")
    async with running(service(store, tmp_path / "jobs", "penstock", runner=runner, count=3)):
        await until(lambda: len(store.get("e").devices) == 3)
        store.submit([shell("two", "-", gpus=2, duration=1)], "me")
        await until(lambda: states(store)["two"] == "running")
        assert len(store.get("e").devices) == 1
        assert not set(store.get("e").devices) & set(store.get("two").devices)
        store.cancel("two", "me")
        await until(lambda: len(store.get("e").devices) == 3)
    assert [len(devices) for devices in (store.get("e").devices,)] == [0]
    assert store.get("e").attempts == 1
    assert store.get("e").observed.resizes == 2


@live
async def test_a_server_that_stops_suspends_and_one_that_starts_goes_on(store, tmp_path):
    store.submit([witness(tmp_path, "a", 40)], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: "step 3" in read_log(store.get("a").folder).text)
    assert (store.get("a").state, store.get("a").why) == ("suspended", "the server stops")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: not store.live())
    assert store.get("a").state == "finished"
    assert not (tmp_path / "twice").exists()


@live
async def test_one_whose_loop_just_ended_finds_its_jobs_again(store, tmp_path):
    store.submit([witness(tmp_path, "a", 40)], "me")
    async with running(service(store, tmp_path / "jobs"), suspends=False) as first:
        await until(lambda: states(store)["a"] == "running")
        await asyncio.to_thread(first._attendant.claims.release)
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: not store.live())
    assert (store.get("a").state, store.get("a").attempts) == ("finished", 1)


@live
async def test_a_second_controller_of_the_same_name_waits(store, tmp_path):
    store.submit([witness(tmp_path, "a", 20)], "me")
    second_store = open_store(f"sqlite:///{tmp_path}/q.db")
    told = []
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: states(store)["a"] == "running")
        second = service(second_store, tmp_path / "jobs")
        second._note = lambda what, facts: told.append(facts)
        task = asyncio.create_task(second.run())
        await until(lambda: told)
        await until(lambda: not store.live())
    assert "has a controller 'c0' already" in told[0]["reason"]
    store.submit([shell("b", "true")], "me")
    await until(lambda: states(store)["b"] == "finished")  # now it is its turn
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await second.stop()
    second_store.close()


@live
async def test_processes_that_vanish_are_started_again(store, tmp_path):
    store.submit([witness(tmp_path, "a", 40)], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: "step 5" in read_log(store.get("a").folder).text)
        os.kill(store.get("a").process.pid, signal.SIGKILL)
        await until(lambda: not store.live())
    record = store.get("a")
    assert (record.state, record.losses, record.attempts) == ("finished", 1, 2)
    assert not (tmp_path / "twice").exists()


@live
async def test_jobs_of_a_controller_that_is_gone(store, tmp_path):
    store.submit([witness(tmp_path, "a", 5)], "me")
    other = register(store, "elsewhere", cluster(), lease_s=0.2)
    async with running(service(store, tmp_path / "jobs", lease_s=0.3, devices=OwnDevices([]))):
        from tests.training.queue.test_store import start

        start(other, "a")
        await until(lambda: states(store)["a"] == "suspended")
    assert store.get("a").why == "controller elsewhere is gone"


@live
async def test_device_quotas(store, tmp_path):
    store.set_quotas({ANYBODY: Quota(devices=1), "ann": Quota(devices=2)})
    store.submit([shell(f"a{n}", "sleep 0.1", user="ann") for n in range(4)], "me")
    store.submit([shell(f"b{n}", "sleep 0.1", user="bob", max_gpus=3) for n in range(2)], "me")
    most = {"ann": 0, "bob": 0}
    async with running(service(store, tmp_path / "jobs", "penstock", count=4)):
        while alive := store.live():
            for user in most:
                held = sum(len(record.devices) for record in alive if record.user == user)
                most[user] = max(most[user], held)
            await asyncio.sleep(0.01)
    assert most == {"ann": 2, "bob": 1}


@live
async def test_jobs_wait_for_their_time_and_for_somebody_who_can(store, tmp_path):
    store.submit([shell("later", "true", arrival=0.6), job("now", "true")], "me")
    from training.queue import Submission

    store.submit([Submission(id="model", type="lm", lm={"steps": 1})], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: len(store.live()) == 1)
    later = store.get("later")
    assert later.observed.first_start - later.submitted >= 0.6
    assert states(store) == {"later": "finished", "now": "finished", "model": "queued"}


@live
async def test_what_a_command_gets(store, tmp_path):
    os.environ["PENSTOCK_ADMIN_KEY"] = "a-secret-key"
    try:
        script = "env; pwd; cat"
        store.submit([shell("a", script, env={"MINE": "1"}, directory=str(tmp_path), gpus=2)], "me")
        runner = CommandRunner({"n0/0": "cuda:4", "n0/1": "cuda:6"})
        async with running(service(store, tmp_path / "jobs", runner=runner)):
            await until(lambda: not store.live())
    finally:
        del os.environ["PENSTOCK_ADMIN_KEY"]
    text = read_log(store.get("a").folder).text
    assert "a-secret-key" not in text
    lines = set(text.splitlines())
    folder = tmp_path / "jobs" / "a"
    expected = {"MINE=1", "PENSTOCK_JOB_ID=a", "PENSTOCK_WORKERS=2", "PENSTOCK_DEVICES=n0/0,n0/1", str(tmp_path)}
    expected |= {f"PENSTOCK_CHECKPOINT_DIR={folder}/checkpoint", "PENSTOCK_ATTEMPT=1", "CUDA_VISIBLE_DEVICES=4,6"}
    assert expected <= lines
    assert folder.stat().st_mode & 0o777 == 0o700


@live
async def test_nothing_of_a_job_is_left_behind(store, tmp_path):
    pids = tmp_path / "pids"
    script = f"setsid sleep 1000 & echo $! >> {pids}; sleep 1000 & echo $! >> {pids}; sleep 0.2"
    store.submit([shell("a", script)], "me")
    async with running(service(store, tmp_path / "jobs")):
        await until(lambda: not store.live())
    assert states(store) == {"a": "finished"}
    for pid in pids.read_text().split():
        assert find_process(int(pid)) is None


@live
async def test_a_log_keeps_its_end(store, tmp_path):
    script = "import sys\nfor n in range(200000): sys.stdout.write(f'{n:07d}\\n')"
    store.submit([job("a", sys.executable, "-S", "-c", script)], "me")
    async with running(service(store, tmp_path / "jobs", runner=CommandRunner(log_bytes=2**18))):
        await until(lambda: not store.live())
    folder = store.get("a").folder
    kept = sum(file.stat().st_size for file in (tmp_path / "jobs/a/log").iterdir())
    assert kept <= 2**18 + 4 * 2**16
    part = read_log(folder)
    written = b"".join(b"%07d\n" % number for number in range(200000))
    assert part.end == len(written)
    assert part.data == written[part.start :]
    assert read_log(folder, -8).data == b"0199999\n"
    assert read_log(folder, part.end).data == b""
    assert read_log(folder, 10**12) == read_log(folder, part.end)
    first = read_log(folder, 0, 1000)
    assert (first.data + read_log(folder, first.end).data) == part.data


@live
async def test_a_run_that_nobody_looks_after_ends(store, tmp_path):
    """As it must where another machine's controller would start it again."""
    store.submit([witness(tmp_path, "a", 1000)], "me")
    runner = CommandRunner(fence_s=0.5)
    async with running(service(store, tmp_path / "jobs", runner=runner, lease_s=60), suspends=False) as queue:
        await until(lambda: states(store)["a"] == "running")
    record = store.get("a")
    await until(lambda: not isinstance(runner.look(record), Running))
    assert runner.look(record) == Exited(0, True)
    await queue.stop()
    assert store.get("a").state == "suspended"


def test_a_policy_that_fails_stops_nothing(store, tmp_path):
    class Broken:
        name, information, round_s = "broken", "none", 0.0

        def allocate(self, view):
            raise ZeroDivisionError("no")

    async def run():
        queue = service(store, tmp_path / "jobs")
        told = []
        queue._note = lambda what, facts: told.append((what, facts))
        queue._decider.policy = Broken()
        store.submit([shell("a", "true")], "me")
        async with running(queue):
            await until(lambda: told)
            assert told == [("failed", {"reason": "ZeroDivisionError: no"})]
            from training.policies import policy_named

            queue._decider.policy = policy_named("fcfs")
            await until(lambda: not store.live())

    asyncio.run(run())
