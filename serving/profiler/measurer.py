"""One measuring process: pinned and single-threaded like a worker, it does what the profiler orders, in order.

python -m serving.profiler.measurer, with its document on stdin
"""

from __future__ import annotations

import asyncio
import queue
import time

import numpy as np

from serving.parallel import Alone, Layout, Parallel
from serving.parallel import connect as connect_parallel
from serving.profiler.messages import (
    PATIENT,
    Done,
    End,
    Follow,
    Join,
    LoadStage,
    MeasureOrder,
    MeasurerDocument,
    MeasureReport,
    Run,
    StageWord,
    Timed,
    TimeSteps,
)
from serving.profiler.stage import Stage, plan_stage
from serving.worker.connect import connect
from serving.worker.link import Link
from serving.worker.listener import listen
from serving.worker.mail import Mail
from serving.worker.member import decode_step

CONNECT_S = 60.0
STEP_WAIT_S = 120.0
"""The longest that a device of a split stage waits for the next step."""


class Measurer:
    """The main thread's work."""

    def __init__(self, document: MeasurerDocument, mail: Mail) -> None:
        self._document, self._mail = document, mail
        self._crews: dict[int, _Crew] = {}
        """By the number of devices."""
        self._stage: Stage | None = None
        self._crew = _Crew(rank=0)

    def carry_out(self, order: MeasureOrder) -> MeasureReport:
        match order:
            case Join(tp, rank, rendezvous):
                self._crews[tp] = self._join(tp, rank, rendezvous)
                return Done()
            case LoadStage():
                return self._load(order)
            case TimeSteps():
                return Timed(self._time(order))
            case Follow():
                self._follow()
                return Done()
        raise AssertionError(order)

    def close(self) -> None:
        for crew in self._crews.values():
            if crew.parallel is not None:
                crew.parallel.close()

    def _join(self, tp: int, rank: int, rendezvous: str) -> _Crew:
        on_cpu = self._document.torch_device == "cpu"
        where = rendezvous if on_cpu else f"file://{rendezvous}/store"
        parallel = connect_parallel(Layout(tp, 1, rank), where, "shared" if on_cpu else "nccl", CONNECT_S)
        crew = _Crew(rank, parallel)
        address = f"unix:{rendezvous}/words/steps"
        self._mail.call(crew.listen(address, tp) if rank == 0 else crew.connect(address))
        return crew

    def _load(self, order: LoadStage) -> MeasureReport:
        self._stage = None
        self._crew = self._crews[order.tp] if order.tp > 1 else _Crew(rank=0, parallel=Parallel(Alone()))
        assert self._crew.parallel is not None
        plan = plan_stage(order, self._crew.rank, self._document.torch_device)
        if plan.loaded.fits:
            self._stage = Stage(plan, self._crew.parallel)
        return plan.loaded

    def _time(self, order: TimeSteps) -> list[list[float]]:
        assert self._stage is not None
        random = np.random.default_rng(1)
        rounds: list[list[float]] = []
        self._round(order, random)
        began = time.perf_counter()
        while len(rounds) < order.most_rounds:
            if len(rounds) >= order.least_rounds and time.perf_counter() - began > order.budget_s:
                break
            rounds.append(self._round(order, random))
        self._stage.end()
        self._say(End())
        return rounds

    def _round(self, order: TimeSteps, random: np.random.Generator) -> list[float]:
        assert self._stage is not None
        seconds = [0.0] * len(order.points)
        for place in random.permutation(len(order.points)).tolist():
            engine, step = self._stage.prepare(order.points[place])
            seconds[place] = self._stage.time(engine, step, lambda data: self._say(Run(data)))
        return seconds

    def _say(self, word: StageWord) -> None:
        for link in self._crew.links:
            link.post(word)

    def _follow(self) -> None:
        """As a worker that is not the leader: run each step that comes."""
        stage = self._stage
        assert stage is not None
        while True:
            if stage.shard.is_first:
                stage.meet()
            word = self._crew.inbox.get(timeout=STEP_WAIT_S)
            if isinstance(word, End):
                return
            if not stage.shard.is_first:
                stage.meet()
            stage.run(decode_step(word.step))


class _Crew:
    """The devices of a split stage, as one of them sees them: the first has links to all others, they to it."""

    def __init__(self, rank: int, parallel: Parallel | None = None) -> None:
        self.rank = rank
        self.parallel = parallel
        self.links: list[Link[StageWord, StageWord]] = []
        self.inbox: queue.SimpleQueue[StageWord] = queue.SimpleQueue()

    async def listen(self, address: str, tp: int) -> None:
        """Until all others have come."""
        await listen(address, StageWord, self.links.append, lambda *_: None, lambda *_: None, settings=PATIENT)
        async with asyncio.timeout(CONNECT_S):
            while len(self.links) < tp - 1:
                await asyncio.sleep(0.005)

    async def connect(self, address: str) -> None:
        link: Link[StageWord, StageWord] = await connect(
            address,
            StageWord,
            lambda _, word: self.inbox.put(word),
            lambda *_: self.inbox.put(End()),
            deadline_s=CONNECT_S,
            settings=PATIENT,
        )
        self.links.append(link)
