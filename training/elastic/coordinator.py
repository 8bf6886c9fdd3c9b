"""Who trains: the coordinator of an `lm` job starts a worker on each of its devices, says who trains together, and sees
to it that the job goes on when one joins, leaves or dies. Imports no torch; the steps themselves do not pass here.

Workers train in generations. To change who takes part, those that train are paused behind a step, and all that are
there go on together; whoever has fewer steps than the others gets their state. A worker whose device is taken away is
parked: it waits in memory, to go on there or on another device. A job goes on from the newest state that is in memory
or on the disk, whoever has it.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import write_json
from serving.parallel import Backend
from serving.worker.address import TcpAddress
from serving.worker.launcher import Exit, Launcher, WorkerSpec
from serving.worker.link import Link
from serving.worker.listener import listen
from serving.worker.scratch import Scratch
from training.elastic.checkpoint_names import newest_step
from training.elastic.history import History
from training.elastic.member import Member
from training.elastic.messages import (
    Done,
    Finish,
    Finished,
    Go,
    Leave,
    Move,
    Orders,
    Parted,
    Pause,
    Ready,
    Reports,
    Saved,
    Yield,
)
from training.elastic.seats import seats
from training.elastic.spec import LmSpec
from training.elastic.task import CHECKPOINT, FINISHED, Task, WorkerTask
from training.elastic.worker_link import LINK

LEAVE_S = 0.3
"""What a worker gets to come to the end of its step; its state is the others' too, so that killing it costs a step. One
that finishes gets it to end."""
MOST_FAILURES, MOST_KILLS = 5, 100
"""Workers that end, or are killed, on a device without a step in between: then the job fails, unless others train."""
MEET_S, LONGEST_MEET_S = 0.5, 8.0
"""All that are told to go are there and wait; where one dies just then, the others find out after this. Doubled after
a generation that did not come to a step."""
REMOTE_MEET_S = 20.0
"""The same for workers of several machines, who also wait so long for one that is behind in a step."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 60.0
WORKER = "training.elastic.worker_process"
SECRET_BYTES = 32


class JobFailed(RuntimeError):  # noqa: N818  (it says what happened)
    """Its workers die again and again."""


class Coordinator:
    def __init__(
        self, task: Task, spec: LmSpec, folder: Path, tokens: Path, launcher: Launcher, host: str | None = None
    ) -> None:
        """`host`: this machine, as workers on others reach it; without it, all are here."""
        self._task, self._spec, self._folder, self._tokens, self._launcher = task, spec, folder, tokens, launcher
        self._secret = None if host is None else secrets.token_hex(SECRET_BYTES)
        self._scratch = Scratch()
        self._meetings = self._scratch.path
        self._address = f"unix:{self._meetings}/workers.sock" if host is None else str(TcpAddress(host, 0))
        self._history = History(folder)
        self._wanted = dict(task.devices)
        self._members: list[Member] = []
        self._generation = self._size = 0
        self._paused = -1
        self._started = 0
        self._meet_s = MEET_S
        self._losses: Counter[str] = Counter()
        """How often a worker has ended on each device since one last made a step there."""
        self._is_stopping = False
        self._moved = asyncio.Event()
        """A worker has ended, or is parked."""
        self._patience: asyncio.TimerHandle | None = None
        """Ends the job when it has had no devices for too long."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def door(self) -> Path:
        return self._meetings / "door.sock"

    @property
    def workers(self) -> dict[str, int]:
        """Process of each device that a worker is on."""
        return {
            member.device: member.handle.pid
            for member in self._members
            if member.handle is not None and not member.is_aside
        }

    @property
    def parked(self) -> tuple[int, ...]:
        """Processes that wait without a device."""
        return tuple(one.handle.pid for one in self._members if one.is_aside and one.handle is not None)

    @property
    def step(self) -> int:
        return self._history.step

    async def run(self) -> None:
        """Until the job is done or has been stopped; an InputError or JobFailed says why it cannot go on."""
        secret = None if self._secret is None else self._secret.encode()
        listener = await listen(
            self._address, Reports, lambda link: None, self._take, self._lose, secret=secret, settings=LINK
        )
        self._address = listener.address
        try:
            self._want(self._wanted)  # where it was to begin, unless somebody has come to the door before
            await self._end
        finally:
            for member in self._members:
                member.kill()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            listener.close()
            self._history.close()
            self._scratch.remove()

    def stop(self) -> None:
        """Write a checkpoint and end: in time, or with the last checkpoint there is."""
        self._is_stopping = True
        asyncio.get_running_loop().call_later(0.8 * self._task.grace_s, self._finish)
        self._consider()

    async def resize(self, devices: Mapping[str, str]) -> None:
        """Train on these devices from now on, or wait in memory where there are none; returns when the others are
        free."""
        self._want(devices)
        while any(member.device not in self._wanted and not member.is_aside for member in self._members):
            self._moved.clear()
            await self._moved.wait()

    # What happens

    def _take(self, link: Link[Orders, Reports], report: Reports) -> None:
        member = next((member for member in self._members if member.link is link), None)
        if isinstance(report, Ready):
            member = next((member for member in self._members if member.name == report.name), None)
        if member is None:
            link.close("not a worker of this job")
            return
        match report:
            case Ready():
                member.link = link
                self._history.note("ready", worker=member.name)
                member.state = "waiting" if member.state == "starting" else member.state
                if member.state == "leaving":
                    member.send(Leave())
            case Done(generation=generation, step=step, loss=loss, squared=squared):
                member.step, self._meet_s = step, MEET_S
                self._losses.pop(member.device, None)
                self._history.note_step(step, loss, squared, generation, self._size)
                return
            case Parted(step=step, leaves=leaves):
                member.step = step
                if member.state in ("training", "parking") and leaves:
                    member.state = "leaving"
                elif member.state == "training":
                    member.state = "waiting"
                elif member.state == "parking":
                    self._park(member)
                    self._start_missing()
            case Saved(step=step):
                member.saved, member.is_saving = step, False
            case Finished(step=step):
                if step >= self._spec.steps:
                    write_json(self._folder / FINISHED, {"step": step})
                    self._finish()
                elif self._is_stopping:
                    self._finish()
        self._consider()

    def _lose(self, link: Link[Orders, Reports], reason: str) -> None:
        for member in self._members:
            if member.link is link:
                member.kill()  # it may hang; where it has ended, this does nothing

    async def _live(self, member: Member) -> None:
        """One worker, from its start to its end."""
        task = WorkerTask(
            spec=self._spec,
            name=member.name,
            device=_device(self._wanted[member.device]),
            folder=str(self._folder),
            tokens=str(self._tokens),
            coordinator=self._address,
            secret=self._secret,
        )
        document = msgspec.to_builtins(task, enc_hook=float)
        spec = WorkerSpec(name=member.name, device=task.device, module=WORKER, document=document, node=member.node)
        try:
            member.handle = await self._launcher.start(spec)
        except InputError as error:
            self._remove(member)
            self._finish(error)
            return
        if member.state == "leaving" or self._end.done():
            member.kill()
        ended = await member.handle.wait()
        self._remove(member)
        if member.state != "leaving" and not self._end.done():
            await self._mourn(member, ended)
        self._start_missing()
        self._consider()

    def _remove(self, member: Member) -> None:
        member.stop_waiting()
        self._members.remove(member)
        self._moved.set()

    async def _mourn(self, member: Member, ended: Exit) -> None:
        """It ended by itself: another takes its place after a while, unless that has been to no avail."""
        self._history.note("lost", worker=member.name, why=ended.reason)
        if member.is_aside:
            return
        if ended.code == 2:
            self._finish(InputError(ended.lines[-1] if ended.lines else ended.reason))
            return
        self._losses[member.device] = losses = self._losses[member.device] + 1
        if losses > (MOST_FAILURES if ended.signal is None else MOST_KILLS) and all(
            one.step < 0 for one in self._members
        ):
            self._finish(JobFailed(f"{losses} workers ended without a step; the last: {ended.reason}"))
            return
        self._consider()  # the others need not wait
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (losses - 1), LONGEST_PAUSE_S))

    # What follows

    def _want(self, devices: Mapping[str, str]) -> None:
        self._wanted = dict(devices)
        if self._patience is not None:
            self._patience.cancel()
        if not self._wanted:
            self._patience = asyncio.get_running_loop().call_later(self._task.parked_s, self.stop)
        for member in self._members:
            if member.device not in self._wanted:
                self._set_aside(member)
            elif member.state in ("parking", "finishing", "yielding"):
                member.state = "training" if member.state == "parking" else "finishing"
                member.stop_waiting()
        self._start_missing()
        self._consider()

    def _start_missing(self) -> None:
        """On devices without a worker: one that is parked, or about to be, else a new one."""
        if self._is_stopping or self._end.done():
            return
        idle = [member for member in self._members if member.state in ("parking", "parked")]
        held = {one.device for one in self._members if one not in idle and one.state not in ("yielding", "leaving")}
        free = {device: _node(place) for device, place in self._wanted.items() if device not in held}
        taken = seats(free, idle)
        for device in free:
            if device not in taken:
                self._start(device)
            elif taken[device].state == "parked":
                self._return(taken[device], device)

    def _start(self, device: str) -> None:
        self._started += 1
        member = Member(f"worker-{self._started}", device, _node(self._wanted[device]))
        self._members.append(member)
        task = asyncio.create_task(self._live(member), name=member.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_aside(self, member: Member) -> None:
        """Its device is another's now: it stops behind its step, and is parked."""
        match member.state:
            case "starting":
                self._dismiss(member)
            case "waiting":
                self._park(member)
            case "training":
                member.state = "parking"
                member.send(Pause(self._generation))
                member.wait(LEAVE_S, self._hurry)
            case "finishing":
                member.wait(LEAVE_S, self._yield)

    def _yield(self, member: Member) -> None:
        """What it still has to write takes no device."""
        member.state = "yielding"
        member.send(Yield())
        self._moved.set()

    def _hurry(self, member: Member) -> None:
        """Its step takes too long: what it knows others know too, unless it alone has the newest state."""
        if member.state != "parking":
            return
        others = (one for one in self._members if one is not member and one.state not in ("starting", "leaving"))
        if member.step < 0 or any(one.step >= member.step for one in others):
            self._dismiss(member)
        else:
            member.wait(self._task.grace_s - LEAVE_S, self._dismiss)

    def _park(self, member: Member) -> None:
        member.state = "parked"
        member.wait(self._task.parked_s, self._expire)
        self._history.note("parks", worker=member.name, step=member.step)
        self._moved.set()

    def _return(self, member: Member, device: str) -> None:
        if member.device != device:
            member.device = device
            member.send(Move(_device(self._wanted[device])))
        member.state = "waiting"
        member.stop_waiting()
        self._history.note("returns", worker=member.name, device=device)

    def _expire(self, member: Member) -> None:
        """It has been parked for too long; a job that is parked as a whole ends as a whole."""
        if not self._wanted:
            member.wait(self._task.parked_s, self._expire)
            return
        self._let_go(member)
        member.send(Leave())
        member.wait(LEAVE_S, Member.kill)

    def _dismiss(self, member: Member) -> None:
        self._let_go(member)
        member.kill()

    def _let_go(self, member: Member) -> None:
        member.state = "leaving"
        self._history.note("leaves", worker=member.name)

    def _consider(self) -> None:
        """Bring about who shall train together, once nobody trains."""
        if self._end.done():
            return
        training = [member for member in self._members if member.state == "training"]
        waiting = [member for member in self._members if member.state == "waiting"]
        if training:
            if (waiting or self._is_stopping) and self._paused < self._generation:
                self._paused = self._generation
                for member in training:
                    member.send(Pause(self._generation))
            return
        best = max((member.step for member in waiting), default=-1)
        if not self._is_newest(best):
            return
        if self._is_stopping or best >= self._spec.steps:
            self._conclude([member for member in waiting if member.step == best])
        else:
            self._form(waiting, best)

    def _is_newest(self, best: int) -> bool:
        """Whether all that was learned is on the disk, where those that wait do not know it: one that is in a step is
        waited for, one that ends may be about to write it down, and the newest of those that are parked is asked to."""
        for one in self._members:
            if one.state == "parking" or (one.state in ("finishing", "yielding", "leaving") and one.step > best):
                return False
        newest = max((one for one in self._members if one.state == "parked"), key=lambda one: one.step, default=None)
        if newest is None or newest.step <= best or newest.is_saved:
            return True
        newest.save()
        return False

    def _conclude(self, best: list[Member]) -> None:
        """One writes down what all have; where that one is lost, another does."""
        if any(member.state in ("finishing", "yielding") for member in self._members):
            return
        if best and best[0].step >= 0:
            best[0].state = "finishing"
            best[0].send(Finish())
        elif self._is_stopping:
            self._finish()

    def _form(self, members: list[Member], best: int) -> None:
        if not members:
            return
        self._generation, self._size = self._generation + 1, len(members)
        meeting, backend = self._meet()
        meet_s = self._meet_s if backend == "shared" else REMOTE_MEET_S
        source = next(rank for rank, member in enumerate(members) if member.step == best)
        saved = newest_step(self._folder / CHECKPOINT)
        first = max(best, saved, 0)
        behind = tuple(rank for rank, one in enumerate(members) if rank != source and one.step < first)
        self._history.note("goes on", generation=self._generation, workers=[member.name for member in members])
        for rank, member in enumerate(members):
            member.state = "training"
            member.send(Go(self._generation, rank, len(members), source, behind, meeting, meet_s, backend, saved))
        self._meet_s = min(2 * self._meet_s, LONGEST_MEET_S)

    def _meet(self) -> tuple[str, Backend]:
        """Where the workers of this generation meet; of several machines, in a file beside their checkpoints."""
        if self._secret is not None:
            meeting, last = (self._folder / f"meeting-{number}" for number in (self._generation, self._generation - 1))
            last.unlink(missing_ok=True)
            meeting.unlink(missing_ok=True)
            return f"file://{meeting}", "gloo"
        meeting = self._meetings / f"meeting-{self._generation}"
        meeting.mkdir(mode=0o700)
        shutil.rmtree(self._meetings / f"meeting-{self._generation - 1}", ignore_errors=True)
        return str(meeting), "shared"

    def _finish(self, trouble: Exception | None = None) -> None:
        if self._end.done():
            return
        if trouble is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(trouble)


def _device(place: str) -> str:
    """cpu:0, wherever that is."""
    return place.partition("@")[0]


def _node(place: str) -> str:
    """Of a cluster, by id; none of this machine."""
    return place.partition("@")[2]
