"""One worker of an `lm` job, which is a process of its own (worker_process.py): it does what the coordinator orders.

Between orders it trains with the others, step by step, without asking anybody: that all stop at the same step is agreed
among them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from serving.parallel import Collectives, Layout, PeerLost
from serving.parallel import connect as connect_parallel
from serving.worker.connect import connect
from serving.worker.link import Link
from serving.worker.mail import Mail
from training.elastic.checkpoints import Checkpoints
from training.elastic.cores import Cores
from training.elastic.exchange import any_of, hand_state, sum_parts, take_state, warm_up
from training.elastic.learner import Learner
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
    Save,
    Saved,
    Yield,
)
from training.elastic.samples import parts_of
from training.elastic.state import pack, unpack
from training.elastic.task import MODEL, WorkerTask
from training.elastic.worker_link import LINK

NO_HURRY = 19
"""The priority (nice) of what a worker does that has no device."""
_log = logging.getLogger(__name__)


class Worker:
    def __init__(self, task: WorkerTask, cores: Cores) -> None:
        self._task, self._cores = task, cores
        self._mail = Mail()
        self._checkpoints = Checkpoints(task.checkpoints, task.spec.keep)
        self._writing: threading.Thread | None = None
        self._is_packed = threading.Event()
        self._is_packed.set()
        """No other thread reads the learner's state."""
        self._saved_at = time.monotonic()
        self._pausing = -1
        """The generation that shall stop."""
        self._thread = threading.get_native_id()
        self._is_leaving = False
        """By itself; nobody may have its state."""
        self._learner = Learner(task.spec, Path(task.tokens))
        self._learner.warm_up()
        warm_up()
        self._link: Link[Reports, Orders] = self._mail.call(
            connect(
                task.coordinator,
                Orders,
                lambda _, order: self._take(order),
                lambda _, reason: self._mail.lost(f"the coordinator is gone: {reason}"),
                secret=task.secret.encode() if task.secret else None,
                settings=LINK,
            )
        )
        self._link.post(Ready(task.name))

    def work(self) -> None:
        while True:
            match self._mail.inbox.get():
                case Go() as go:
                    self._is_packed.wait()
                    self._train(go)
                case Move(device=device):
                    self._cores.move(device)
                case Save():
                    self._save_aside()
                case Finish():
                    self._finish()
                    break
                case Leave():
                    if self._is_leaving and self._learner.step >= 0:
                        self._save(self._learner.step, pack(self._learner.state()))
                    break
        self._mail.end()

    def leave(self) -> None:
        """Write a checkpoint behind the step, and end; for a signal."""
        self._is_leaving = True
        self._mail.inbox.put(Leave())

    def _take(self, order: Orders) -> None:
        """On the mail's thread."""
        if isinstance(order, Pause):
            self._pausing = order.generation
        elif isinstance(order, Yield):
            self._cores.leave()
            os.setpriority(os.PRIO_PROCESS, self._thread, NO_HURRY)
        else:
            self._mail.inbox.put(order)

    def _train(self, go: Go) -> None:
        try:
            parallel = connect_parallel(Layout(go.size, 1, go.rank), go.meeting, go.backend, go.meet_s)
            try:
                self._level(parallel.tensor, go)
                while not self._learner.is_done and not self._step(parallel.tensor, go.generation):
                    self._save_in_time(go.rank)
            finally:
                parallel.close()
        except PeerLost as lost:
            _log.info("generation %d: %s", go.generation, lost)
        self._link.post(Parted(go.generation, self._learner.step, self._is_leaving))

    def _level(self, group: Collectives, go: Go) -> None:
        """All have the state of the source."""
        learner = self._learner
        if go.rank == go.source and (learner.step < 0 or learner.step < go.saved):
            self._read()
        if not go.behind:
            return
        if go.rank == go.source:
            hand_state(group, pack(learner.state()), go.behind)
        elif state := take_state(group):
            learner.load(unpack(state))

    def _read(self) -> None:
        """The newest checkpoint, if that is newer than what it knows."""
        learner = self._learner
        if learner.step < 0:
            self._checkpoints.sweep()
        found = self._checkpoints.latest(beyond=learner.step)
        if found is not None:
            learner.load(found)
        elif learner.step < 0:
            learner.begin()

    def _step(self, group: Collectives, generation: int) -> bool:
        """Make one step; whether all stop behind it."""
        learner, parts = self._learner, self._task.spec.parts
        end = time.monotonic() + self._task.spec.pace
        own = learner.gradients(parts_of(group.rank, group.size, parts))
        time.sleep(max(end - time.monotonic(), 0))
        is_told = self._pausing == generation or not self._mail.inbox.empty()
        is_last = any_of(group, is_told)
        loss = learner.take(sum_parts(group, own, parts, learner.size))
        self._link.post(Done(generation, learner.step, loss, learner.squared))
        return is_last

    def _save_in_time(self, rank: int) -> None:
        """Beside the training; a checkpoint that is still being written is waited for by none."""
        if rank or time.monotonic() - self._saved_at < self._task.spec.checkpoint:
            return
        if self._writing is None or not self._writing.is_alive():
            self._saved_at = time.monotonic()
            state = pack(self._learner.state())
            self._writing = threading.Thread(target=self._save, args=(self._learner.step, state))
            self._writing.start()

    def _save_aside(self) -> None:
        self._is_packed.clear()
        self._writing = threading.Thread(target=self._save_slowly, args=(self._writing,))
        self._writing.start()

    def _save_slowly(self, before: threading.Thread | None) -> None:
        """On any core: its own is somebody else's."""
        thread = threading.get_native_id()
        self._cores.free(thread)
        os.setpriority(os.PRIO_PROCESS, thread, NO_HURRY)
        step, state = self._learner.step, pack(self._learner.state())
        self._is_packed.set()
        if before is not None:
            before.join()
        self._save(step, state)
        self._link.post(Saved(step))

    def _save(self, step: int, state: bytes) -> None:
        try:
            self._checkpoints.write(step, state)
        except OSError as error:
            _log.error("no checkpoint at step %d: %s", step, error.strerror)

    def _finish(self) -> None:
        if self._writing is not None:
            self._writing.join()
        self._checkpoints.write(self._learner.step, pack(self._learner.state()))
        if self._learner.is_done:
            self._learner.export(Path(self._task.folder) / MODEL)
        self._link.post(Finished(self._learner.step))
