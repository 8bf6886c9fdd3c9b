"""An `lm` job on devices that are lent: it shrinks, waits in memory and goes on within moments, and nothing is left of
it when its job, its controller or its coordinator is gone."""

import asyncio
import multiprocessing
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from placement.units import Seconds
from tests.training.elastic.worlds import JobFolder, check_same, spec_of
from tests.training.queue.controllers import wait_for_silence
from tests.training.queue.worlds import Lent, cluster, running, states, until
from training.elastic.door import ask
from training.elastic.runner import LmRunner
from training.policies import policy_named
from training.queue import Submission, open_store
from training.queue.command_runner import FOLDER
from training.queue.processes import with_variable
from training.queue.service import QueueService, QueueSettings

WAIT_S = 60.0
NAMES = ("n0/0", "n0/1")


class LentByFile(Lent):
    """All are wanted back while a file is there."""

    def __init__(self, path):
        super().__init__(NAMES)
        self._path = path

    def open(self):
        return () if self._path.exists() else super().open()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/q.db"


@pytest.fixture
def store(url):
    opened = open_store(url)
    yield opened
    opened.close()


def queue(store, folder, devices, **more):
    runners = {"lm": LmRunner({name: f"cpu:{n}" for n, name in enumerate(NAMES)}, **more)}
    settings = QueueSettings(name="c0", folder=folder, look_s=0.05)
    return QueueService(store, cluster(2), devices, runners, policy_named("lyra"), settings)


def submit(store, spec, **more):
    lm = msgspec.to_builtins(spec, enc_hook=float)
    store.submit([Submission(id="a", type="lm", lm=lm, **{"min_gpus": 1, "max_gpus": 2} | more)], "me")


def processes(folder):
    return {process.pid for process in with_variable(FOLDER, str(folder))}


def wait_for_checkpoint(seen):
    step = f"step-{seen.steps()[-1]:010d}-"
    return until(lambda: any(path.name.startswith(step) for path in (seen.folder / "checkpoint").iterdir()), WAIT_S)


def test_it_is_lent_recalled_and_lent_again(world, store, tmp_path):
    spec = spec_of(world)
    seen, devices = JobFolder(tmp_path / "jobs" / "a"), Lent(NAMES)

    async def recall(*names):
        devices.wanted_back = set(names)
        began = time.monotonic()
        await service.recall()
        assert time.monotonic() - began < 1

    async def live():
        async with running(service):
            await until(lambda: seen.trains_with(2), WAIT_S)
            before = processes(seen.folder)
            await recall("n0/0")
            assert devices.held == {"a": ("n0/1",)}
            await until(lambda: seen.trains_with(1), WAIT_S)
            await recall(*NAMES)
            assert devices.held == {}
            assert states(store) == {"a": "suspended"}
            await asyncio.sleep(0.2)
            steps = seen.steps()
            await recall("n0/1")  # the other is lent again
            await until(lambda: len(seen.steps()) > len(steps) and states(store) == {"a": "running"}, 5)
            devices.wanted_back = set()
            await until(lambda: seen.trains_with(2), WAIT_S)
            assert processes(seen.folder) == before
            assert store.get("a").attempts == 1

    submit(store, spec)
    service = queue(store, tmp_path / "jobs", devices)
    asyncio.run(live())
    told = [(event.before, event.state, event.why) for event in store.events("a")]
    assert ("running", "running", "resized from 2 to 1 workers") in told
    assert ("running", "suspended", "its devices are others' now; waits in memory") in told
    assert ("suspended", "starting", "from memory with 1 workers") in told
    assert told[-1] == ("running", "suspended", "the server stops")
    record = store.get("a")
    assert (record.observed.preemptions, record.observed.starts) == (1, 2)
    wait_for_silence(tmp_path / "jobs", 0)
    check_same(seen, spec, tmp_path)


def test_a_server_that_stops_leaves_nothing_in_memory(world, store, tmp_path):
    spec = spec_of(world)
    seen, devices = JobFolder(tmp_path / "jobs" / "a"), Lent(NAMES)

    async def live():
        async with running(queue(store, tmp_path / "jobs", devices)) as service:
            await until(lambda: seen.trains_with(1), WAIT_S)
            devices.wanted_back = set(NAMES)
            await service.recall()

    submit(store, spec, max_gpus=1)
    asyncio.run(live())
    wait_for_silence(tmp_path / "jobs", 0)
    check_same(seen, spec, tmp_path)


def test_cancelled_while_it_waits_in_memory(world, store, tmp_path):
    seen, devices = JobFolder(tmp_path / "jobs" / "a"), Lent(NAMES)

    async def live():
        async with running(queue(store, tmp_path / "jobs", devices)) as service:
            await until(lambda: seen.trains_with(1), WAIT_S)
            devices.wanted_back = set(NAMES)
            await service.recall()
            assert processes(seen.folder)
            store.cancel("a", "me")
            await until(lambda: not processes(seen.folder), 5)

    submit(store, spec_of(world), max_gpus=1)
    asyncio.run(live())
    assert states(store) == {"a": "cancelled"}


@pytest.mark.parametrize("ends", ["too long", "killed"])
def test_a_run_that_is_no_longer_in_memory_is_started_again(world, store, tmp_path, ends):
    spec = spec_of(world)
    seen, devices = JobFolder(tmp_path / "jobs" / "a"), Lent(NAMES)

    async def live():
        service = queue(store, tmp_path / "jobs", devices, parked_s=0.5 if ends == "too long" else 60)
        async with running(service):
            await until(lambda: seen.trains_with(1), WAIT_S)
            devices.wanted_back = set(NAMES)
            await service.recall()
            await wait_for_checkpoint(seen)
            if ends == "killed":
                record = store.get("a")
                os.kill(ask(Path(record.folder), record.run).parked[0], signal.SIGKILL)
                for process in with_variable(FOLDER, record.folder):
                    os.kill(process.pid, signal.SIGKILL)
            await until(lambda: not processes(seen.folder), 5)
            steps = seen.steps()
            devices.wanted_back = set()
            await until(lambda: len(seen.steps()) > len(steps), WAIT_S)

    submit(store, spec, max_gpus=1)
    asyncio.run(live())
    record = store.get("a")
    assert (record.state, record.attempts, record.losses) == ("suspended", 2, 0)
    check_same(seen, spec, tmp_path)


def test_a_controller_that_is_killed_while_it_waits_in_memory(world, url, store, tmp_path):
    spec = spec_of(world, checkpoint=Seconds(600))
    seen, back = JobFolder(tmp_path / "jobs" / "a"), tmp_path / "back"
    submit(store, spec, max_gpus=1)
    first = _controller(url, tmp_path, back)
    _wait(lambda: seen.trains_with(1))
    back.touch()
    _wait(lambda: states(store) == {"a": "suspended"})
    asyncio.run(wait_for_checkpoint(seen))
    assert store.get("a").why.endswith("waits in memory")
    first.kill()
    first.join()
    left, before = processes(seen.folder), seen.steps()
    assert left
    second = _controller(url, tmp_path, back)
    _wait(lambda: not processes(seen.folder) & left)  # although it has no device to offer
    assert states(store) == {"a": "suspended"}
    back.unlink()
    _wait(lambda: len(seen.steps()) > len(before))
    assert store.get("a").attempts == 2
    second.terminate()
    second.join(WAIT_S)
    wait_for_silence(tmp_path / "jobs", 0)
    check_same(seen, spec, tmp_path)  # no step was made twice


def _wait(is_so):
    asyncio.run(until(is_so, WAIT_S))


def _controller(url, folder, back):
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(url, folder, back))
    process.start()
    return process


def _serve(url, folder, back):
    """Until SIGTERM, as a server."""
    store = open_store(url)

    async def live():
        ends = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
        async with running(queue(store, folder / "jobs", LentByFile(back))):
            await ends.wait()

    asyncio.run(live())
    store.close()
