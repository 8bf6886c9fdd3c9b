"""Small queues for the tests: jobs, devices, and a controller's run to a given end."""

import asyncio
import contextlib
import time

from placement.cluster import Cluster, Node
from placement.units import Bytes
from training.policies import policy_named
from training.queue import CommandRunner, OwnDevices, Submission
from training.queue.service import QueueService, QueueSettings


def cluster(devices=2, kind="cpu"):
    return Cluster((Node("n0", devices, Bytes(2**30), kind=kind),))


def job(name, *command, **more):
    return Submission(id=name, command=command or ("true",), **{"grace": 2.0} | more)


def shell(name, script, **more):
    return job(name, "sh", "-c", script, **more)


class Lent(OwnDevices):
    """Devices that are wanted back now and then."""

    def __init__(self, names):
        super().__init__(names)
        self.wanted_back = set()

    def open(self):
        return [name for name in super().open() if name not in self.wanted_back]

    def can_take(self, job, devices):
        return set(devices) <= set(self.open())


def service(store, folder, policy="fcfs", devices=None, runner=None, count=2, name="c0", **settings):
    machines = cluster(count)
    devices = devices or OwnDevices([device.name for device in machines.devices])
    settings = QueueSettings(name=name, folder=folder, **{"look_s": 0.02} | settings)
    runners = {"command": runner or CommandRunner()}
    return QueueService(store, machines, devices, runners, policy_named(policy), settings)


@contextlib.asynccontextmanager
async def running(queue, suspends=True):
    """The queue's loop; when the block is left it stops as a server does, or just ends."""
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if suspends:
            await queue.stop()


async def until(holds, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        await asyncio.sleep(0.01)


def states(store):
    return {record.id: record.state for record in store.jobs()}
