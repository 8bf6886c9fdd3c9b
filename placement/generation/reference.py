"""The simulator of generating models restated plainly: what serve.py must do, to read and to test
against.

Objects and lists, every sequence counted token by token; no speed. docs/generation.md tells the same in
words.
"""

from __future__ import annotations

import math
from itertools import count

from placement.generation.intake import MOST_SKIPPED
from placement.generation.reference_engine import Engine, Lane, Learner, Outlook, Sequence
from placement.plan import Plan, replica_profile, takes_turns
from placement.problem import MAX_SLO_S, Model, Problem
from placement.reference import Clock, Fate, Replica, Waiting, _Deadline, begin, describe, finish, run
from placement.tables import Catalogue
from placement.workload import Workload


class Reference:
    """Serves a workload; `sequences` tell what became of generating requests, `fates` of one-pass ones."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        workload: Workload,
        rule: str,
        max_batch: int,
        step_tokens: int = 512,
    ) -> None:
        self.workload, self.step_tokens = workload, step_tokens
        self.early = rule == "shortest-queue"
        self.generates = [model.generates for model in problem.models]
        self.models = [self._learner(model, problem.overhead) for model in problem.models]
        self.clocks = [Clock([0.0] * group.pp) for group in plan.groups]
        self.engines = self._engines(problem, plan)
        self.one_pass: _Deadline | None = None
        self.replicas: list[list[Replica]] = []
        if not all(self.generates):
            world = describe(problem, plan, max_batch, {})
            self.replicas = world.replicas
            self.slack = world.slack
            self.one_pass = _Deadline(world, self.clocks, 0.005, 4096)
        self.fates: dict[int, Fate] = {}
        self.sequences: dict[int, Sequence] = {}
        self.wake = [math.inf] * len(plan.groups)
        self.pulls, self.steps, self.preemptions = count(), 0, 0
        self.most_used = 0.0

    def _learner(self, model: Model, overhead: float) -> Learner:
        if self.early:
            return Learner(math.inf, math.inf, MAX_SLO_S)
        slo = model.slo
        return Learner(slo.first_token - overhead, slo.end_to_end - overhead, min(slo.tpot, MAX_SLO_S))

    def _engines(self, problem: Problem, plan: Plan) -> list[Engine]:
        catalogue = Catalogue(problem)
        lines: dict[int, list[Sequence]] = {index: [] for index in range(len(problem.models))}
        engines = []
        for index, group in enumerate(plan.groups):
            for m, model in enumerate(problem.models):
                if not model.generates or model.name not in group.models + group.parked:
                    continue
                entry = replica_profile(group, model.name, problem)
                assert entry is not None
                assert entry.generation is not None
                sizes = entry.generation.kv_bytes_per_token
                capacity = min(int(group.kv_bytes[model.name] / size) for size in sizes)
                line = [] if self.early else lines[m]
                engine = Engine(index, self.models[m], entry.generation.stages, capacity, line)
                if model.name in takes_turns(group, problem):
                    engine.wake = catalogue.wake_s(group, model.name)
                    engine.is_asleep = model.name in group.parked
                engine.lanes = [Lane(engine) for _ in range(group.pp)]
                engines.append(engine)
        return engines

    def serve(self) -> None:
        """Event by event: at one time, one-pass batches begin first, then requests arrive, then groups
        step."""
        arrivals = list(zip(self.workload.arrival.tolist(), self.workload.model.tolist(), strict=True))
        request = 0
        passed = -math.inf
        while True:
            now = arrivals[request][0] if request < len(arrivals) else math.inf
            starts = max(self.one_pass.next_due(), passed) if self.one_pass else math.inf
            group = min(range(len(self.wake)), key=lambda g: (self.wake[g], self.tokens(g), g))
            if self.wake[group] < min(starts, now):
                self.visit(group, self.wake[group])
            elif starts <= now and starts < math.inf:
                assert self.one_pass is not None
                self.one_pass.launch(starts)
                self.rewake_all(starts)
                passed = starts
            elif request == len(arrivals):
                break
            else:
                model = arrivals[request][1]
                if self.generates[model]:
                    self.arrive(request, self.models[model], now)
                else:
                    self.arrive_one_pass(request, model, now)
                passed = now
                request += 1

    def arrive_one_pass(self, request: int, model: int, now: float) -> None:
        assert self.one_pass is not None
        if not self.early:
            self.one_pass.fates += [Fate("refused") for _ in range(len(self.one_pass.fates), request + 1)]
            fate = self.fates[request] = self.one_pass.fates[request]
            fate.status = self.one_pass.offer(Waiting(now + self.slack[model], request, model), now)
            self.rewake_all(now)
            return
        fate = self.fates[request] = Fate("refused" if self.replicas[model] else "no-replica")
        if self.replicas[model]:
            chosen = min(self.replicas[model], key=lambda replica: self.clocks[replica.group].free[-1])
            clock = self.clocks[chosen.group]
            if finish(chosen, clock, 1, now) <= now + self.slack[model]:
                start = begin(chosen, clock, now)
                self.fates[request] = Fate("served", chosen.group, 0, start, run(chosen, clock, 1, now))

    def tokens(self, group: int) -> int:
        return sum(engine.used for engine in self.engines if engine.group == group)

    def lanes_of(self, group: int) -> list[Lane]:
        return [lane for engine in self.engines if engine.group == group for lane in engine.lanes]

    def booked(self, group: int) -> bool:
        return self.one_pass is not None and any(b.replica.group == group for b in self.one_pass.schedule)

    def rewake(self, group: int, now: float, idle: bool = True) -> None:
        times = [lane.end for lane in self.lanes_of(group) if lane.in_flight]
        if idle and not self.booked(group) and any(_has_work(lane) for lane in self.lanes_of(group)):
            times.append(max(now, self.clocks[group].free[0]))
        self.wake[group] = min(times, default=math.inf)

    def rewake_all(self, now: float) -> None:
        for group in range(len(self.wake)):
            self.rewake(group, now)

    def visit(self, group: int, now: float) -> None:
        for lane in self.lanes_of(group):
            if lane.in_flight and lane.end <= now:
                self.end_step(lane)
        began, before = False, self.preemptions
        open_now = not self.booked(group) and self.clocks[group].free[0] <= now
        if open_now:
            for lane in sorted(self.lanes_of(group), key=lambda lane: (lane.engine.is_asleep, lane.end)):
                if _has_work(lane) and self.begin_step(lane, now):
                    began = True
                    break
        if self.preemptions > before:
            for other in range(len(self.wake)):
                if other != group:
                    self.rewake(other, now)
        self.rewake(group, now, began or not open_now)

    def begin_step(self, lane: Lane, now: float) -> bool:
        self.make_room(lane)
        engine, model = lane.engine, lane.engine.model
        decoding, cached = len(lane.decoding), lane.cached
        limit = math.inf
        if decoding:
            due = min(s.first + s.made * model.tpot for s in lane.decoding)
            limit = max(due, lane.end + model.tpot)
        lane.in_flight = True  # those who decode have their cache from here on
        prefill = context = 0
        while decoding + prefill < self.step_tokens:
            sequence = lane.prefilling or self.next_in_line(lane, now)
            if sequence is None or (decoding and not lane.prefilling and self.another_is_sooner(lane, sequence, now)):
                break
            left = sequence.tokens - (sequence.done if lane.prefilling else 0)
            done = sequence.tokens - left
            most = min(left, self.step_tokens - decoding - prefill)
            fitting = (
                take
                for take in range(most, 0, -1)
                if limit == math.inf
                or self.step_end(lane, now, prefill + take, decoding, context + take * done, cached) <= limit
            )
            take = next(fitting, 0)
            if take == 0:
                break
            if lane.prefilling is None:
                if engine.is_asleep:
                    self.wake_up(engine, now)
                engine.line.remove(sequence)
                sequence.pulled, sequence.group = next(self.pulls), engine.group
            prefill, context, sequence.done = prefill + take, context + take * done, done + take
            lane.prefilling = sequence
            if sequence.done < sequence.tokens:
                break
            lane.prefilling = None
            lane.fresh.append(sequence)
        self.most_used = max(self.most_used, engine.used / engine.capacity)
        if decoding + prefill == 0:
            lane.in_flight = False
            return False
        self.run_step(lane, now, engine.step_s(prefill, decoding, context, cached))
        return True

    def wake_up(self, engine: Engine, now: float) -> None:
        for other in self.turns(engine):
            other.is_asleep = True
        clock = self.clocks[engine.group]
        clock.free = [max(now, free) + engine.sleep_s for free in clock.free]
        engine.is_asleep = False

    def turns(self, engine: Engine) -> list[Engine]:
        """The others with which the engine takes turns."""
        group = [other for other in self.engines if other.group == engine.group and other is not engine]
        return [other for other in group if other.wake is not None and engine.wake is not None]

    def waits_its_turn(self, engine: Engine, sequence: Sequence, now: float) -> bool:
        for other in self.turns(engine):
            if engine.is_asleep and other.running:
                return True
            head = self.first_suited(other, 0, now, 0)
            if head is not None and head.request < sequence.request:
                return True
        return False

    def step_end(self, lane: Lane, now: float, prefill: int, decoding: int, context: int, cached: int) -> float:
        clock, x = self.clocks[lane.engine.group], now
        for stage, seconds in enumerate(lane.engine.step_s(prefill, decoding, context, cached)):
            x = max(x, clock.free[stage]) + seconds
        return x

    def run_step(self, lane: Lane, now: float, seconds: list[float]) -> None:
        clock, x = self.clocks[lane.engine.group], now
        lane.spans = []
        for stage, stage_s in enumerate(seconds):
            start = max(x, clock.free[stage])
            x = clock.free[stage] = start + stage_s
            lane.spans.append((start, x))
        lane.end, lane.slowest = x, max(seconds)
        self.steps += 1
        for sequence in [*lane.fresh, *([lane.prefilling] if lane.prefilling else [])]:
            sequence.began = sequence.began or lane.spans

    def end_step(self, lane: Lane) -> None:
        lane.in_flight = False
        for sequence in lane.decoding:
            sequence.cached, sequence.made = sequence.cached + 1, sequence.made + 1
        for sequence in lane.fresh:
            sequence.cached = sequence.tokens
            if sequence.made == 0:
                sequence.first = lane.end
                sequence.model.learn_wait(sequence, lane.end)
            sequence.made += 1
        everybody = lane.decoding + lane.fresh
        lane.decoding, lane.fresh = [s for s in everybody if s.made < s.output], []
        for sequence in everybody:
            if sequence.made == sequence.output:
                sequence.status, sequence.finish, sequence.ended = "served", lane.end, lane.spans
                sequence.model.outputs.append(sequence.output)

    def make_room(self, lane: Lane) -> None:
        engine = lane.engine
        while lane.decoding and engine.used + len(lane.decoding) > engine.capacity:
            alone = engine.running == 1
            if lane.prefilling:
                youngest, lane.prefilling = lane.prefilling, None
            else:
                youngest = max(lane.decoding, key=lambda sequence: sequence.pulled)
                lane.decoding.remove(youngest)
            youngest.cached = youngest.done = 0
            holds = max(other.capacity for other in self.engines if other.line is engine.line)
            if alone or youngest.tokens > holds:
                youngest.status = "failed"
            else:
                self.preemptions += 1
                youngest.preempted += 1
                engine.line.insert(0, youngest)

    def next_in_line(self, lane: Lane, now: float) -> Sequence | None:
        engine, model = lane.engine, lane.engine.model
        if lane.size + 1 > math.ceil((engine.running + len(engine.line)) / len(engine.lanes)):
            return None
        will_cache = lane.cached + len(lane.decoding) + sum(sequence.tokens for sequence in lane.fresh)
        sequence = self.first_suited(engine, lane.size, now, will_cache)
        if sequence is None or self.waits_its_turn(engine, sequence, now):
            return None
        tokens = sequence.tokens
        if engine.running and not engine.fits(tokens + model.mean_output):
            return None
        if self.too_slow(engine, lane.size + 1, will_cache + tokens + model.mean_output):
            return None
        return None if self.holds_up_another(engine, sequence.deadline) else sequence

    def too_slow(self, engine: Engine, sequences: int, cached: float) -> bool:
        seconds = engine.step_s(0, sequences, 0, cached)
        interval, goal = max(sum(seconds), max(seconds) * len(seconds)), engine.model.tpot
        others = [e for e in self.engines if e.group == engine.group and e is not engine and e.running]
        for other in others:
            interval, goal = interval + other.others_s, min(goal, other.model.tpot)
        return bool(engine.running or others) and interval > goal

    def holds_up_another(self, engine: Engine, deadline: float) -> bool:
        for other in self.engines:
            if other.group != engine.group or other is engine or not other.line or other.line[0].deadline >= deadline:
                continue
            tokens, lanes = other.line[0].tokens, len(other.lanes)
            cached = other.used / lanes + tokens + other.model.mean_output
            if tokens <= other.capacity and self.too_slow(other, other.running // lanes + 1, cached):
                return True
        return False

    def another_is_sooner(self, lane: Lane, sequence: Sequence, now: float) -> bool:
        will_cache = lane.cached + len(lane.decoding) + sum(fresh.tokens for fresh in lane.fresh)
        soonest = now + lane.engine.prefill_s(sequence.tokens, self.step_tokens, lane.size, will_cache)
        for engine in self.engines:
            needed = sequence.tokens + engine.model.mean_output
            if engine.line is not lane.engine.line or not engine.fits(needed):
                continue
            for other in engine.lanes:
                if other is lane or not other.in_flight or other.prefilling:
                    continue
                held = other.cached + other.size
                at = other.end + engine.prefill_s(sequence.tokens, self.step_tokens, other.size, held)
                if at < soonest and not self.too_slow(engine, other.size + 1, held + needed):
                    return True
        return False

    def first_suited(self, engine: Engine, size: int, now: float, cached: int) -> Sequence | None:
        skipped = 0
        for sequence in list(engine.line):
            if skipped == MOST_SKIPPED:
                return None
            if sequence.made == 0 and now > sequence.latest:
                self.expire(engine.line, sequence)
                continue
            wait = -math.inf
            if sequence.made == 0:
                wait = engine.prefill_s(sequence.tokens, self.step_tokens - size, size, cached)
            if sequence.tokens <= engine.capacity and now + engine.sleep_s + wait <= sequence.deadline:
                return sequence
            skipped += 1
        return None

    def expire(self, line: list[Sequence], sequence: Sequence) -> None:
        line.remove(sequence)
        sequence.model.learn_wait(sequence, math.inf)

    def arrive(self, request: int, model: Learner, now: float) -> None:
        assert self.workload.prompt_tokens is not None
        assert self.workload.output_tokens is not None
        prompt, output = self.workload.prompt_tokens[request], self.workload.output_tokens[request]
        sequence = Sequence(request, model, max(int(prompt), 1), max(int(output), 1), now)
        self.sequences[request] = sequence
        engines = [engine for engine in self.engines if engine.model is model]
        fitting = [engine for engine in engines if sequence.prompt <= engine.capacity]
        if not engines:
            sequence.status = "no-replica"
        elif self.early and fitting:
            chosen = min(fitting, key=lambda e: e.used + sum(waiting.tokens for waiting in e.line))
            self.wait(sequence, chosen.line, engines, now)
        elif not self.early:
            self.admit(sequence, engines, fitting)

    def wait(self, sequence: Sequence, line: list[Sequence], engines: list[Engine], now: float) -> None:
        sequence.status = "expired"
        line.append(sequence)
        for engine in engines:
            self.rewake(engine.group, now)

    def free_at(self, group: int) -> float:
        """When the group's first stage has done what is scheduled on it."""
        clock = self.clocks[group].copy()
        for batch in self.one_pass.schedule if self.one_pass else []:
            if batch.replica.group == group:
                run(batch.replica, clock, len(batch.members), batch.start)
        return clock.free[0]

    def admit(self, sequence: Sequence, engines: list[Engine], fitting: list[Engine]) -> None:
        now, model, line = sequence.arrival, sequence.model, engines[0].line
        lone = min((e.prefill_s(sequence.prompt, self.step_tokens, 0, 0) for e in fitting), default=math.inf)
        sequence.deadline = now + model.slack
        sequence.latest = sequence.deadline - lone
        model.prompts.append(sequence.prompt)
        while line and line[0].made == 0 and now > line[0].latest:
            self.expire(line, line[0])
        if len(line) >= 4096:
            sequence.status = "queue-full"
        elif fitting:
            view = Outlook(engines, self.engines, [self.free_at(engine.group) for engine in engines], self.step_tokens)
            wait = view.wait(sequence.prompt, now)
            if wait > lone:
                wait = lone + (wait - lone) * model.stretch
            sequence.expected = now + wait
            if now + wait <= sequence.deadline:
                self.wait(sequence, line, engines, now)


def _has_work(lane: Lane) -> bool:
    return not lane.in_flight and (lane.busy or bool(lane.engine.line))
