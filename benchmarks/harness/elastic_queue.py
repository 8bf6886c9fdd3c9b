"""One `lm` job in a queue of two devices that are lent to it, and how long it takes to get them back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from placement.cluster import Cluster, Node
from placement.units import Bytes
from training.elastic.runner import LmRunner
from training.elastic.spec import LmSpec
from training.elastic.task import HISTORY
from training.policies import policy_named
from training.queue import OwnDevices, Submission, open_store
from training.queue.decision import warm_up
from training.queue.service import QueueService, QueueSettings

WAIT_S = 120.0
NAMES = ("local/0", "local/1")


class LentDevices(OwnDevices):
    """Some may be wanted back; knows when a job last gave or took any."""

    def __init__(self) -> None:
        super().__init__(NAMES)
        self.wanted_back: frozenset[str] = frozenset()
        self.changed_at = 0.0

    def open(self) -> Collection[str]:
        return [name for name in NAMES if name not in self.wanted_back]

    def can_take(self, job: str, devices: Collection[str]) -> bool:
        return set(devices) <= set(self.open())

    def take(self, job: str, devices: Collection[str]) -> None:
        super().take(job, devices)
        self.changed_at = time.time()

    def give_back(self, job: str) -> None:
        super().give_back(job)
        self.changed_at = time.time()


class LentJob:
    """While its block lasts."""

    def __init__(self, folder: Path, spec: LmSpec) -> None:
        folder.mkdir()
        self._folder, self._devices = folder, LentDevices()
        self._store = open_store(f"sqlite:///{folder}/queue.db")
        job = Submission(id="a", type="lm", lm=msgspec.to_builtins(spec, enc_hook=float), min_gpus=1, max_gpus=2)
        self._store.submit([job], "benchmark")
        cluster, policy = Cluster((Node("local", 2, Bytes(2**30), kind="cpu"),)), policy_named("penstock")
        warm_up(policy, cluster)
        runners = {"lm": LmRunner({name: f"cpu:{number}" for number, name in enumerate(NAMES)})}
        settings = QueueSettings(name="benchmark", folder=folder)
        self._service = QueueService(self._store, cluster, self._devices, runners, policy, settings)

    async def __aenter__(self) -> LentJob:
        self._run = asyncio.create_task(self._service.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self._service.stop()
        self._store.close()

    async def lend(self, *names: str) -> float:
        """From these on being lent, and no others, until the first step on so many."""
        began = self._change(names)
        await self._wait(lambda: self._first_step(len(names), began) is not None)
        return (self._first_step(len(names), began) or 0.0) - began

    async def recall(self, *left: str) -> float:
        """From all but these being wanted back until the job has given them back."""
        began = self._change(left)
        await self._wait(lambda: set(self._devices.held.get("a", ())) == set(left))
        return self._devices.changed_at - began

    def _change(self, lent: tuple[str, ...]) -> float:
        self._devices.wanted_back = frozenset(NAMES) - set(lent)
        self._service.wake()
        return time.time()

    def _first_step(self, workers: int, since: float) -> float | None:
        path = self._folder / "a" / HISTORY
        lines = path.read_bytes().splitlines() if path.exists() else []
        noted = (json.loads(line) for line in lines[-200:] if line.endswith(b"}"))
        steps = (one["at"] for one in noted if one["what"] == "step" and one["workers"] == workers)
        return next((float(at) for at in steps if at > since), None)

    async def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"the job did not go on: {self._store.get('a').why}")
            await asyncio.sleep(0.002)
