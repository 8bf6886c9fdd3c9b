"""Controllers in processes of their own, which die by kill -9 at a given point, and jobs that notice everything."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from tests.training.queue.worlds import job, service
from training.queue import CommandRunner, open_store

STEPS = 8
WITNESS = """
import fcntl, os, signal, sys, time
folder, name, steps = sys.argv[1], os.environ["PENSTOCK_JOB_ID"], int(sys.argv[2])
lock = open(f"{folder}/{name}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{folder}/twice", "a").write(name + "\\n")
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
place = os.path.join(os.environ["PENSTOCK_CHECKPOINT_DIR"], "step")
done = int(open(place).read()) if os.path.exists(place) else 0
for step in range(done, steps):
    time.sleep(0.02)
    print(f"step {step} of {name}", flush=True)
    with open(place + ".new", "w") as file:
        file.write(str(step + 1))
    os.replace(place + ".new", place)
open(f"{folder}/done", "a").write(name + "\\n")
"""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.training.queue.controllers", "tests.training.queue.warm"])


def witness(folder, name, steps=STEPS, **more):
    """A job of so many steps that says which it has done, and complains when another of its name runs."""
    script = Path(folder) / "witness.py"
    if not script.exists():  # jobs of before may be about to read it
        script.write_text(WITNESS)
    return job(name, sys.executable, "-I", "-S", str(script), str(folder), str(steps), **more)


class Doom:
    """Kills this process at the n-th point it passes."""

    def __init__(self, at):
        self._left = at

    def point(self):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DoomedDatabase:
    """A point before each transaction that writes, one within it and one behind it."""

    def __init__(self, database, doom):
        self._database, self._doom = database, doom
        self.is_local = database.is_local
        self.read, self.close = database.read, database.close

    @contextlib.contextmanager
    def write(self):
        self._doom.point()
        with self._database.write() as transaction:
            yield transaction
            self._doom.point()
        self._doom.point()


class DoomedRunner(CommandRunner):
    """Points around starts and stops."""

    def __init__(self, doom, fence_s):
        super().__init__(fence_s=fence_s)
        self._doom = doom

    def start(self, record):
        self._doom.point()
        process = super().start(record)
        self._doom.point()
        return process

    def stop(self, record):
        self._doom.point()
        super().stop(record)
        self._doom.point()

    def kill(self, record):
        self._doom.point()
        seen = super().kill(record)
        self._doom.point()
        return seen


def _run(url, folder, at, policy, name, lease_s):
    doom = Doom(at)
    store = open_store(url)
    store = type(store)(DoomedDatabase(store.database, doom))

    async def run():
        runner = DoomedRunner(doom, 0 if store.database.is_local else lease_s / 2)
        queue = service(store, Path(folder), policy, runner=runner, count=3, name=name, lease_s=lease_s)
        task = asyncio.create_task(queue.run())
        while store.live() and not task.done():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def start_controller(url, folder, at=-1, policy="fcfs", name="c0", lease_s=30.0):
    process = _FORKS.Process(target=_run, args=(url, str(folder), at, policy, name, lease_s))
    process.start()
    return process


def run_controller(url, folder, at=-1, policy="fcfs", kill_after_s=None, patience_s=60):
    """A controller until all jobs have ended or it is killed: at its `at`-th point, or after so many seconds. Its
    exit code."""
    process = start_controller(url, folder, at, policy)
    process.join(patience_s if kill_after_s is None else kill_after_s)
    if process.is_alive() and kill_after_s is None:
        process.kill()
        raise AssertionError("the controller did not come to an end")
    process.kill()
    process.join()
    return process.exitcode


def wait_for_silence(folder, seconds=10):
    """Until nothing of any job runs any more."""
    from training.queue.command_runner import FOLDER
    from training.queue.processes import with_variable

    deadline = time.monotonic() + seconds
    folders = [str(one) for one in Path(folder).iterdir()] if Path(folder).is_dir() else []
    while any(with_variable(FOLDER, one) for one in folders):
        assert time.monotonic() < deadline, "a job still runs"
        time.sleep(0.05)
