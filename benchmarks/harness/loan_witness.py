"""Watches a server that lends devices from outside, by its status, its journal, its jobs' files and /proc, and says
what is not as it must be, however often anything of it is killed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.server import Server, is_alive
from placement.cli.admin import ask_admin
from placement.errors import InputError
from training.elastic.checkpoints import Checkpoints
from training.elastic.door import Answer, ask
from training.elastic.task import CHECKPOINT, HISTORY
from training.queue import Store
from training.queue.command_runner import FOLDER
from training.queue.processes import with_variable
from training.queue.record import Process, Record
from training.queue.states import ENDED, HOLDING

LOOK_S = 0.2
ASK_S = 2.0
_AGAIN_S = 0.05
"""A process that has just been forked looks like the one that forked it: who is seen twice is there."""


@dataclass(frozen=True)
class Step:
    job: str
    number: int
    workers: int
    at: float


@dataclass(frozen=True)
class Snapshot:
    """What the server, the store and the jobs say at one moment."""

    status: dict[str, Any]
    loans: dict[str, str]
    """The state of each, by group."""
    records: dict[str, Record]
    answers: dict[str, Answer]
    """Of those jobs that have somebody to answer."""

    @property
    def name(self) -> str:
        """In a word for the loan, and one for each job."""
        loan = next(iter(self.loans.values()), "home")
        return " ".join((loan, *(f"{job}:{record.state}" for job, record in self.records.items())))

    def is_like(self, other: Snapshot) -> bool:
        """Nothing has moved in between."""
        return (
            self.status["devices"] == other.status["devices"]
            and self.loans == other.loans
            and {job: (one.state, one.run, one.devices) for job, one in self.records.items()}
            == {job: (one.state, one.run, one.devices) for job, one in other.records.items()}
        )


@dataclass
class Witness:
    """`marks`: the folder of temporary files, which all processes of the server have in their environment."""

    store: Store
    folder: Path
    """Where jobs have theirs."""
    marks: Path
    jobs: tuple[str, ...]
    wrong: list[str] = field(default_factory=list)
    _events: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Of each server that ever ran, its journal."""
    _looked_at: dict[int, float] = field(default_factory=dict)
    _server: Server | None = None
    _epoch: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self, server: Server | None) -> None:
        """From now on; None: there is none at the moment."""
        with self._lock:
            self._server = server
            self._epoch += server is not None

    def run(self) -> None:
        """Until it is `end`ed: what must hold at any time."""
        while not self._over.wait(LOOK_S):
            with suppress(InputError):  # the server is being killed
                self.read_journal()
            for job in self.jobs:
                if more := self._runs_twice(job):
                    self.wrong.append(f"{job} runs twice: {more}")

    def end(self) -> None:
        self._over.set()

    def read_journal(self) -> None:
        with self._lock:
            if self._server is None:
                return
            at = time.time()
            for event in ask_admin(self._server.url, "/admin/explain/moves")["moves"]:
                self._events.setdefault(self._epoch, {})[json.dumps(event, sort_keys=True)] = event
            self._looked_at[self._epoch] = at

    # What is there

    def snapshot(self) -> Snapshot:
        """An InputError: the server does not answer."""
        assert self._server is not None
        status = self._server.status()
        told = ask_admin(self._server.url, "/admin/explain/loans")["loans"]
        records = {job: self.store.get(job) for job in self.jobs}
        answers = {}
        for job, record in records.items():
            with suppress(OSError):
                answers[job] = ask(self.folder / job, str(record.run), wait_s=ASK_S)
        return Snapshot(status, {loan["group"]: loan["state"] for loan in told}, records, answers)

    def processes(self, job: str, kind: str) -> list[Process]:
        """`kind`: keeper, coordinator or worker."""
        wanted = {"keeper": "keeper.py", "coordinator": "training.elastic", "worker": "training.elastic.worker_process"}
        all_of_it = with_variable(FOLDER, str(self.folder / job))
        return [one for one in all_of_it if wanted[kind] in (word.rpartition("/")[2] for word in _command(one.pid))]

    def newest_checkpoint(self, job: str) -> int:
        """Its step; -1: there is none."""
        names = [path.name for path in (self.folder / job / CHECKPOINT).glob("step-*.safetensors")]
        return max((int(name.split("-")[1]) for name in names), default=-1)

    def steps(self) -> Iterator[Step]:
        for job in self.jobs:
            with suppress(FileNotFoundError):
                for line in (self.folder / job / HISTORY).read_bytes().splitlines(keepends=True):
                    if line.endswith(b"\n") and (told := json.loads(line))["what"] == "step":
                        yield Step(job, told["step"], told["workers"], told["at"])

    # What is wrong

    def missing(self, since: float) -> str:
        """What is not as it is when all is well; nothing when it is. Waits for nothing."""
        try:
            before = self.snapshot()
            reason = self._not_well(before)
            if reason:
                return reason
            if not before.is_like(self.snapshot()):
                return "something moves"
        except InputError as error:
            return str(error)
        if not any(step.at > since for step in self.steps()):
            return "no job has made a step yet"
        return ""

    def lost(self) -> list[str]:
        """Jobs that are not there any more, and checkpoints that are torn."""
        found = []
        for job in self.jobs:
            record = self.store.get(job)
            if record.state in ENDED:
                found.append(f"{job} is {record.state}: {record.why}")
            found += [f"{job}: {name} is torn" for name in Checkpoints(self.folder / job / CHECKPOINT, 1).torn()]
        return found

    def gone_back(self, since: float, newest: Mapping[str, int]) -> list[str]:
        """Jobs that made a step again which the checkpoint of before had."""
        early = {step.job: step.number for step in self.steps() if step.at > since and step.number < newest[step.job]}
        return [f"{job} was at step {step} with a checkpoint of {newest[job]}" for job, step in early.items()]

    def loans(self, group: str) -> int:
        """How often its devices were lent."""
        events = (event for journal in self._events.values() for event in journal.values())
        return sum(event.get("loan") == group and event["what"] == "lent" for event in events)

    def home_s(self, group: str) -> float:
        """How long its devices were its own, of the time that was looked at."""
        return sum(end - begin for begin, end in self._at_home(group))

    def computed_for_two(self, group: str, spare: int) -> list[str]:
        """Steps that jobs made, on more devices than are nobody's, while the group had those that it lends."""
        steps = sorted(self.steps(), key=lambda step: step.at)
        found = []
        for begin, end in self._at_home(group):
            found += [
                f"{step.job} made step {step.number} {step.at - begin:.3f} s after {group} had its device back"
                for step in steps
                if begin < step.at < end and step.workers > spare
            ]
        return found

    def left(self) -> list[str]:
        """Processes and folders, when there should be none."""
        found = [
            f"process {process.pid}: {' '.join(_command(process.pid))}"
            for process in with_variable("TMPDIR", str(self.marks))
            if process.pid != os.getpid()
        ]
        return found + [f"folder {path.name}" for path in self.marks.glob("penstock-*")]

    def _not_well(self, seen: Snapshot) -> str:
        for group in seen.status["groups"]:
            reason = self._not_at_home(seen, group) if group["name"] not in seen.loans else self._not_lent(seen, group)
            if reason:
                return f"{group['name']}: {reason}"
        served = {device for group in seen.status["groups"] for device in group["devices"]}
        for device in seen.status["devices"].keys() - served:
            if reason := self._not_trained_on(seen, device):
                return reason
        for job, answer in seen.answers.items():
            record = seen.records[job]
            if record.state not in HOLDING and answer.workers:
                return f"{job} is {record.state}, but has workers on {list(answer.workers)}"
            known = {*answer.workers.values(), *answer.parked}
            strange = {one.pid for one in self.processes(job, "worker")} - known
            if strange:
                return f"{job} has workers that its coordinator does not know: {strange}"
        return self._strangers()

    def _not_at_home(self, seen: Snapshot, group: dict[str, Any]) -> str:
        owners = {seen.status["devices"][device] for device in group["devices"]}
        if owners != {f"group {group['name']}"}:
            return f"its devices are of {owners}"
        if group["state"] != "serving" or not all(one["ready"] for one in group["models"].values()):
            return f"is {group['state']}"
        if not group["pids"] or not all(map(is_alive, group["pids"])):
            return "its processes are gone"
        for job, answer in seen.answers.items():
            if both := set(group["devices"]) & answer.workers.keys():
                return f"{job} has workers on its devices {both}"
        return ""

    def _not_lent(self, seen: Snapshot, group: dict[str, Any]) -> str:
        if seen.loans[group["name"]] != "lent":
            return seen.loans[group["name"]]
        return next((reason for device in group["devices"] if (reason := self._not_trained_on(seen, device))), "")

    def _not_trained_on(self, seen: Snapshot, device: str) -> str:
        kind, _, job = seen.status["devices"][device].partition(" ")
        if kind != "job":
            return f"{device} is lent to nobody"
        record = seen.records[job]
        if record.state != "running" or device not in record.devices:
            return f"{device} is of {job}, which is {record.state} on {record.devices}"
        pid = seen.answers[job].workers.get(device) if job in seen.answers else None
        return "" if pid is not None and is_alive(pid) else f"{job} has no worker on {device}"

    def _runs_twice(self, job: str) -> list[int]:
        found = {one.pid for one in self.processes(job, "coordinator")}
        if len(found) > 1:
            time.sleep(_AGAIN_S)
            found &= {one.pid for one in self.processes(job, "coordinator")}
        return sorted(found) if len(found) > 1 else []

    def _strangers(self) -> str:
        """Processes that are neither the server's nor a job's."""
        assert self._server is not None
        server = self._server.process.pid
        jobs = {one.pid for job in self.jobs for one in with_variable(FOLDER, str(self.folder / job))}
        known = {server, os.getpid(), *jobs}
        strange = [
            " ".join(_command(process.pid))
            for process in with_variable("TMPDIR", str(self.marks))
            if process.pid not in known and not _descends(process.pid, server) and is_alive(process.pid)
        ]
        return f"processes of nobody: {strange}" if strange else ""

    def _at_home(self, group: str) -> Iterator[tuple[float, float]]:
        """When its devices were its own, as far as its servers could be asked."""
        for epoch, events in self._events.items():
            since: float | None = None
            for event in sorted(events.values(), key=lambda one: one["at"]):
                if group not in (event.get("group"), event.get("loan")):
                    continue
                if event["what"] in ("serving", "returned") and since is None:
                    since = event["at"]
                elif event["what"] == "lent" and since is not None:
                    yield since, event["at"]
                    since = None
            if since is not None:
                yield since, self._looked_at[epoch]


def _command(pid: int) -> list[str]:
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word]
    except OSError:
        return []


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return True  # it has ended
    return False
