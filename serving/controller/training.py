"""The training queue beside the models: runs jobs on devices that no group has, by the controller's ledger."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from placement.cluster import Cluster
from placement.errors import InputError
from serving.config import SQLITE, TrainingConfig
from serving.controller.ledger import IDLE, Ledger, Owner
from serving.http import get_log
from serving.http.job_desk import JobDesk
from training.elastic.runner import LmRunner
from training.policies import policy_named
from training.queue import CommandRunner, Quota, Runner, open_store
from training.queue.claims import LEASE_S
from training.queue.decision import warm_up
from training.queue.service import QueueService, QueueSettings


class LedgerDevices:
    """What is idle, or the queue's already. A device that a group takes over is missing from then on, and the queue
    takes it from the job that had it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: dict[str, list[str]] = {}
        """Jobs on each device, in parts of it where they are several."""

    def open(self) -> Collection[str]:
        return [device for device, owner in self._ledger.owners.items() if owner.kind in ("idle", "job")]

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
    ) -> None:
        """`places`: what each device is on this machine; `models`: the directories of those that are served."""
        policy, folder = policy_named(config.policy), _folder(config)
        warm_up(policy, cluster)
        store = open_store(config.store)
        store.set_quotas({user: Quota(quota.jobs, quota.devices) for user, quota in config.quotas.items()})
        fence_s = 0.0 if store.database.is_local else LEASE_S / 2
        runners: dict[str, Runner] = {"lm": LmRunner(places, (*config.data, *models), fence_s=fence_s)}
        if config.commands:
            runners["command"] = CommandRunner(places, fence_s=fence_s)
        log = get_log("training")
        self._service = QueueService(
            store,
            cluster,
            LedgerDevices(ledger),
            runners,
            policy,
            QueueSettings(name=config.name or socket.gethostname(), folder=folder),
            lambda what, facts: log.info(what, **facts),
        )
        self.desk = JobDesk(store, self._service.types, self._service.wake)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Once every group has its devices: what is left is the queue's."""
        self._task = asyncio.create_task(self._service.run(), name="training queue")

    async def recall(self) -> None:
        """Returns when jobs have left the devices that are groups' now."""
        await self._service.recall()

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
) -> TrainingQueue | None:
    """None where the configuration has no training."""
    return None if config is None else TrainingQueue(config, cluster, ledger, places, models)


def _folder(config: TrainingConfig) -> Path:
    """Beside a store that is a file; elsewhere it must be named, since other machines need it too."""
    if config.folder is not None:
        return Path(config.folder)
    if not config.store.startswith(SQLITE):
        raise InputError("training: a store that is no file needs `folder`, where the jobs' checkpoints and logs are")
    path = Path(config.store.removeprefix(SQLITE))
    return path.with_name(f"{path.stem}-jobs")


def _owner(jobs: list[str]) -> Owner:
    return Owner("job", ", ".join(jobs)) if jobs else IDLE
