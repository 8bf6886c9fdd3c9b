"""Engines, lanes and sequences as plain objects, and the estimate of first_token.py restated on them: for
generation_reference.py. docs/generation.md tells the same in words."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from placement.generation.first_token import HALVINGS
from placement.generation.intake import (
    LATE_SHARE,
    LEAST_STRETCH,
    MOST_STRETCH,
    PRIOR_OUTPUT,
    PRIOR_WEIGHT,
    STRETCH_STEP,
    UNUSED,
)
from placement.profile import StepCost

Spans = list[tuple[float, float]]


@dataclass(eq=False)
class Sequence:
    """A request of a generating model; `output` is what will come, and only its end is acted on."""

    request: int
    model: Learner
    prompt: int
    output: int
    arrival: float
    deadline: float = math.inf
    latest: float = math.inf
    expected: float = 0.0
    made: int = 0
    done: int = 0
    cached: int = 0
    pulled: int = 0
    first: float = math.nan
    finish: float = math.nan
    status: str = "refused"
    group: int | None = None
    began: Spans = field(default_factory=list)
    ended: Spans = field(default_factory=list)
    preempted: int = 0

    @property
    def tokens(self) -> int:
        """To prefill when it is pulled."""
        return self.prompt + self.made


@dataclass(eq=False)
class Learner:
    """A model's goals, and what its requests have shown so far."""

    slack: float
    finish_slack: float
    tpot: float
    outputs: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    stretch: float = 1.0

    @property
    def mean_output(self) -> float:
        return (PRIOR_WEIGHT * PRIOR_OUTPUT + sum(self.outputs)) / (PRIOR_WEIGHT + len(self.outputs))

    def learn_wait(self, sequence: Sequence, first: float) -> None:
        wait = sequence.expected - sequence.arrival
        if self.slack < math.inf and wait >= 0.5 * self.slack:
            late = float(first > sequence.expected)
            self.stretch = self.stretch + STRETCH_STEP * (late - LATE_SHARE)
            self.stretch = min(max(self.stretch, LEAST_STRETCH), MOST_STRETCH)


@dataclass(eq=False)
class Lane:
    """Sequences that step together; `spans` are the last step's times in each stage."""

    engine: Engine
    end: float = 0.0
    in_flight: bool = False
    decoding: list[Sequence] = field(default_factory=list)
    fresh: list[Sequence] = field(default_factory=list)
    prefilling: Sequence | None = None
    spans: Spans = field(default_factory=list)
    slowest: float = 0.0

    @property
    def size(self) -> int:
        return len(self.decoding) + len(self.fresh)

    @property
    def cached(self) -> int:
        return sum(sequence.cached for sequence in self.decoding)

    @property
    def busy(self) -> bool:
        return self.size > 0 or self.prefilling is not None


@dataclass(eq=False)
class Engine:
    group: int
    model: Learner
    costs: tuple[StepCost, ...]
    capacity: int
    line: list[Sequence]
    wake: float | None = None
    """Seconds to be awake, of one that takes turns on its group."""
    is_asleep: bool = False
    lanes: list[Lane] = field(default_factory=list)

    @property
    def sleep_s(self) -> float:
        return self.wake if self.is_asleep and self.wake is not None else 0.0

    @property
    def running(self) -> int:
        return sum(lane.size + (lane.prefilling is not None) for lane in self.lanes)

    @property
    def used(self) -> int:
        """Tokens in the cache, with those that steps in flight add, or promised to a prefill."""
        total = 0
        for lane in self.lanes:
            total += lane.cached + (len(lane.decoding) if lane.in_flight else 0)
            total += sum(sequence.tokens for sequence in lane.fresh)
            total += lane.prefilling.tokens if lane.prefilling else 0
        return total

    @property
    def taken(self) -> float:
        return self.used + self.running * UNUSED

    def fits(self, tokens: float) -> bool:
        return self.taken + UNUSED + tokens <= self.capacity

    @property
    def others_s(self) -> float:
        return sum((lane.slowest for lane in self.lanes if lane.busy), 0.0)

    def step_s(self, prefill: float, sequences: float, context: float, cached: float) -> list[float]:
        return [cost.seconds(prefill, sequences, context, cached) for cost in self.costs]

    def prefill_s(self, tokens: int, chunk: int, sequences: int, cached: int) -> float:
        total, done = 0.0, 0
        while done < tokens:
            take = min(chunk, tokens - done)
            total += sum(self.step_s(take, sequences, take * done, cached))
            done += take
        return total


@dataclass(eq=False)
class Outlook:
    """What a newcomer can expect of a model's engines; `free`: when the first stage of each one's group has
    done what is scheduled; `lanes`: when each can begin a prompt, in which chunks, at what rate, beside how
    much else."""

    engines: list[Engine]
    everybody: list[Engine]
    free: list[float]
    step_tokens: int
    lanes: list[tuple[Lane, float, int, float, float]] = field(default_factory=list)

    def wait(self, prompt: int, now: float) -> float:
        """Seconds from now to the first token of a newcomer."""
        model, line = self.engines[0].model, self.engines[0].line
        self.look_out(now)
        turn = max(self.line_gone(sum(waiting.tokens for waiting in line)), now + self.room_s(prompt))
        waits = [math.inf]
        for lane, open_at, chunk, _, others in self.lanes:
            engine = lane.engine
            if prompt > engine.capacity or chunk == 0:
                continue
            pace = sum(engine.step_s(0, lane.size + 1, 0, lane.cached + prompt))
            if lane.size == 0 and pace > model.tpot:
                continue
            wait = max(turn, open_at) - now
            wait += engine.prefill_s(prompt, chunk, lane.size, lane.cached)
            wait += math.ceil(prompt / chunk) * others
            if wait + (model.mean_output - 1.0) * pace <= model.finish_slack:
                waits.append(wait)
        return min(waits)

    def look_out(self, now: float) -> None:
        line = self.engines[0].line
        context = sum(waiting.tokens for waiting in line) / (2.0 * len(line)) if line else 0.0
        for engine, free in zip(self.engines, self.free, strict=True):
            group = [other for other in self.everybody if other.group == engine.group]
            others = sum((other.others_s for other in group if other is not engine), 0.0)
            for lane in engine.lanes:
                chunk = self.usual_chunk(lane, others)
                seconds = others
                for stage_s in engine.step_s(chunk, lane.size, context * chunk, lane.cached):
                    seconds += stage_s
                open_at = max(now, free, lane.end if lane.in_flight else now) + engine.sleep_s
                if lane.prefilling and chunk:
                    open_at += (lane.prefilling.tokens - lane.prefilling.done) * seconds / chunk
                self.lanes.append((lane, open_at, chunk, chunk / seconds if chunk else 0.0, others))

    def usual_chunk(self, lane: Lane, others: float) -> int:
        engine, room = lane.engine, self.step_tokens - lane.size
        if lane.size == 0 or room == 0:
            return room
        if others + sum(engine.step_s(0, lane.size, 0, lane.cached)) > engine.model.tpot:
            return 0
        compute = sum(c.fixed + c.sequence * lane.size + c.cached_token * lane.cached for c in engine.costs)
        token = sum(cost.prefill_token for cost in engine.costs)
        spare = engine.model.tpot - others - compute
        chunk = room if spare >= room * token else int(spare / token)
        if not any(cost.experts for cost in engine.costs):
            return chunk

        def in_time(tokens: int) -> bool:
            return others + sum(engine.step_s(tokens, lane.size, 0, lane.cached)) <= engine.model.tpot

        return bisect_left(range(1, chunk + 1), True, key=lambda tokens: not in_time(tokens))

    def line_gone(self, tokens: int) -> float:
        level = math.inf
        while True:
            work, rate = float(tokens), 0.0
            for _, open_at, _, lane_rate, _ in self.lanes:
                if open_at < level:
                    work, rate = work + lane_rate * open_at, rate + lane_rate
            if rate == 0.0 or work / rate >= level:
                return level
            level = work / rate

    def room_s(self, prompt: int) -> float:
        model, line = self.engines[0].model, self.engines[0].line
        output, usual_prompt = model.mean_output, sum(model.prompts) / len(model.prompts)
        usual = usual_prompt + 0.5 * output + UNUSED
        lacking = sum(waiting.tokens for waiting in line) + prompt + (len(line) + 1) * (output + UNUSED)
        freed = 0.0
        for engine in self.engines:
            room = _useful_capacity(engine, usual)
            if room <= 0.0:
                continue
            lacking -= max(room - engine.taken, 0.0)
            lane_room = room / len(engine.lanes)
            sequences = lane_room / usual
            prefill = sequences * usual_prompt / output
            seconds = 0.0
            for stage_s in engine.step_s(prefill, sequences, prefill * 0.5 * usual_prompt, lane_room):
                seconds += stage_s
            freed += room / (output * seconds)
        if lacking <= 0.0:
            return 0.0
        return lacking / freed if freed > 0.0 else math.inf


def _useful_capacity(engine: Engine, sequence_tokens: float) -> float:
    share = engine.model.tpot / len(engine.lanes)
    least = math.inf
    for cost in engine.costs:
        free = share - cost.fixed
        least = min(least, free / (cost.sequence / sequence_tokens + cost.cached_token + 1e-30))
        least = min(least, (free - cost.weights) / (cost.cached_token + 1e-30))
    most = min(max(least, 0.0) * len(engine.lanes), float(engine.capacity))
    for cost in engine.costs:
        if cost.experts > 0:
            most = _in_time(cost, share, sequence_tokens, most, len(engine.lanes))
    return most


def _in_time(cost: StepCost, limit: float, sequence_tokens: float, most: float, lanes: int) -> float:
    low, high, middle = 0.0, most, most
    for _ in range(HALVINGS):
        lane_room = middle / lanes
        fits = cost.seconds(0, lane_room / sequence_tokens, 0, lane_room) <= limit
        low, high = (middle, high) if fits else (low, middle)
        middle = 0.5 * (low + high)
    return low
