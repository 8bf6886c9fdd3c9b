"""The training queue beside the models: runs jobs on devices that no group has, by the controller's ledger."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from placement.cluster import Cluster
from placement.errors import InputError
from serving.config import SQLITE, TrainingConfig
from serving.controller.ledger import IDLE, Ledger, Owner
from serving.controller.swaps import is_done
from serving.http import get_log
from serving.http.job_desk import JobDesk
from training.elastic.runner import LmRunner
from training.elastic.task import MODEL
from training.lending import Held
from training.policies import live_policy
from training.queue import CommandRunner, Quota, Runner, open_store
from training.queue.claims import LEASE_S
from training.queue.decision import warm_up
from training.queue.service import QueueService, QueueSettings

LEASE_WAIT_S = 10.0
LATEST = 1000
"""Finished jobs that are looked through for models which do not serve yet."""
_LOOK_S = 0.02
OnTrained = Callable[[str, Path], None]
"""(name of a served model, directory of the one to take its place)"""


class LedgerDevices:
    """What is idle, or the queue's already. A device that a group takes over, or that is recalled, is missing from then
    on, and the queue takes it from the job that had it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: dict[str, list[str]] = {}
        """Jobs on each device, in parts of it where they are several."""
        self.recalled: set[str] = set()
        """Lent devices that are wanted back; nobody's when jobs have given them up."""

    def open(self) -> Collection[str]:
        owners = self._ledger.owners
        self.recalled = {name for name in self.recalled if name in owners and owners[name].kind != "group"}
        return [name for name, owner in owners.items() if owner.kind != "group" and name not in self.recalled]

    def can_take(self, job: str, devices: Collection[str]) -> bool:
        return set(devices) <= set(self.open())

    def take(self, job: str, devices: Collection[str]) -> None:
        assert self.can_take(job, devices)
        for device in [device for device, jobs in self._jobs.items() if job in jobs and device not in devices]:
            self._change(device, [one for one in self._jobs[device] if one != job])
        for device in devices:
            if job not in self._jobs.get(device, []):
                self._change(device, [*self._jobs.get(device, []), job])

    def give_back(self, job: str) -> None:
        self.take(job, ())

    def _change(self, device: str, jobs: list[str]) -> None:
        before = _owner(self._jobs.pop(device, []))
        if jobs:
            self._jobs[device] = jobs
        if self._ledger.can_move([device], before):  # unless a group has it by now
            self._ledger.move([device], before, _owner(jobs))


class TrainingQueue:
    """The queue's store is open from the beginning; its jobs run between `start` and `stop`."""

    def __init__(
        self,
        config: TrainingConfig,
        cluster: Cluster,
        ledger: Ledger,
        places: Mapping[str, str],
        models: Collection[str],
        on_trained: OnTrained = lambda name, directory: None,
        ray: str | None = None,
    ) -> None:
        """`places`: what each device is on this machine, or in the cluster at `ray`; `models`: the directories of those
        that are served; `on_trained`: a job is done whose model shall be served."""
        if ray is not None and config.commands:
            raise InputError("training: commands run on one machine; with --launcher ray, set `commands: false`")
        self.loans = config.loans
        policy, folder = live_policy(config.policy, config.durations), jobs_folder(config)
        warm_up(policy, cluster)
        store = open_store(config.store)
        store.set_quotas({user: Quota(quota.jobs, quota.devices) for user, quota in config.quotas.items()})
        fence_s = 0.0 if store.database.is_local else LEASE_S / 2
        runners: dict[str, Runner] = {"lm": LmRunner(places, (*config.data, *models), fence_s=fence_s, ray=ray)}
        if config.commands:
            runners["command"] = CommandRunner(places, fence_s=fence_s)
        log = get_log("training")
        self._devices = LedgerDevices(ledger)
        self._service = QueueService(
            store,
            cluster,
            self._devices,
            runners,
            policy,
            QueueSettings(name=config.name or socket.gethostname(), folder=folder),
            self._note,
        )
        self._store, self._log, self._on_trained = store, log, on_trained
        self.desk = JobDesk(store, self._service.types, self._service.wake)
        self._task: asyncio.Task[None] | None = None

    async def start(self, needed: Collection[str]) -> None:
        """Before groups take the devices they `need`: jobs that a server before this one has left running there go on
        elsewhere, or wait."""
        self._devices.recalled.update(needed)
        self._task = asyncio.create_task(self._service.run(), name="training queue")
        with suppress(TimeoutError):  # another controller of this name is there: its jobs are on its devices
            async with asyncio.timeout(LEASE_WAIT_S):
                while not self._service.has_lease:
                    await asyncio.sleep(_LOOK_S)
        await self._service.recall()

    def serve_trained(self) -> None:
        """Models that were to serve when their jobs were done, which a server before this one did not live to see."""
        latest: dict[str, tuple[float, Path]] = {}
        for record in self._store.ended(LATEST):
            name, ended = record.job.lm.get("serve_as"), record.ended or 0.0
            if name and record.folder is not None and ended >= latest.get(str(name), (0.0, Path()))[0]:
                latest[str(name)] = ended, Path(record.folder) / MODEL
        for name, (_, directory) in latest.items():
            if directory.is_dir() and not is_done(directory):
                self._on_trained(name, directory)

    def move(self, cluster: Cluster) -> None:
        """The devices are these from now on."""
        self._service.move(cluster)

    def open_to_jobs(self, devices: Collection[str]) -> None:
        """They are lent."""
        self._devices.recalled.difference_update(devices)
        self._service.wake()

    def recall(self, devices: Collection[str]) -> None:
        """Jobs give them up; the ledger says when they are idle."""
        self._devices.recalled.update(devices)
        self._service.wake()

    def held(self) -> list[Held]:
        """What jobs have now."""
        return self._service.held()

    def wants(self) -> bool:
        """Whether there is a job that could train."""
        return self._service.wants()

    def _note(self, what: str, facts: dict[str, Any]) -> None:
        self._log.info(what, **facts)
        if what == "finished":
            record = self._store.get(str(facts["job"]))
            if record.job.lm.get("serve_as") and record.folder is not None:
                self._on_trained(str(record.job.lm["serve_as"]), Path(record.folder) / MODEL)

    async def stop(self) -> None:
        """Its jobs are suspended, to go on when the server is back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._service.stop()
        self.desk.store.close()


def open_training(
    config: TrainingConfig | None,
    cluster: Cluster,
    ledger: Ledger,
    places: Mapping[str, str],
    models: Collection[str],
    on_trained: OnTrained = lambda name, directory: None,
    ray: str | None = None,
) -> TrainingQueue | None:
    """None where the configuration has no training."""
    return None if config is None else TrainingQueue(config, cluster, ledger, places, models, on_trained, ray)


def jobs_folder(config: TrainingConfig) -> Path:
    """Beside a store that is a file; elsewhere it must be named, since other machines need it too."""
    if config.folder is not None:
        return Path(config.folder)
    if not config.store.startswith(SQLITE):
        raise InputError("training: a store that is no file needs `folder`, where the jobs' checkpoints and logs are")
    path = Path(config.store.removeprefix(SQLITE))
    return path.with_name(f"{path.stem}-jobs")


def _owner(jobs: list[str]) -> Owner:
    return Owner("job", ", ".join(jobs)) if jobs else IDLE
