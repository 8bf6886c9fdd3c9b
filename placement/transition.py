"""One plan replaced by another while requests come: what is served meanwhile, with the cost of loading.

The groups of all plans are numbered one after the other, and the Outcome's plan holds them in that order:
group 0 of the second plan follows the last of the first. A request carries the number of the plan that was in
force when its batch began (`shortest-queue`: when it was bound). docs/simulator.md has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Clocks, Floats, Ints, Tables, with_ready
from placement.compiled import entry_point
from placement.dispatch import EXPIRED, State, _adopt, _copy_row, insert, new_state, try_schedules
from placement.errors import InputError
from placement.outcome import Outcome
from placement.plan import Group, Plan, check_plan, replica_profile
from placement.problem import Problem
from placement.rules import Rule
from placement.simulate import DEFAULT_MAX_BATCH, collect, new_stage_times, replay
from placement.simulator import OVERTAKE_SHARE, QUEUE_CAPACITY, Records, new_records, serve_span
from placement.simulator import serve_shortest_queue as serve_bound
from placement.tables import Catalogue
from placement.workload import Workload

Groups = dict[int, Group]
Ready = dict[tuple[str, int], float]
"""(model, group) -> when it is loaded; absent: from the start."""


def simulate_transition(
    problem: Problem,
    plans: Sequence[tuple[float, Plan]],
    workload: Workload | None = None,
    rule: Rule = "deadline",
    max_batch: int = DEFAULT_MAX_BATCH,
) -> Outcome:
    """Serve the workload with each plan from its time on; the first from 0, with its models loaded."""
    moments = [at for at, _ in plans]
    if not moments or moments[0] != 0 or any(not a < b < math.inf for a, b in pairwise(moments)):
        raise InputError(f"plans are in force from {moments} seconds; give the first from 0, then ascending")
    for at, plan in plans:
        check_plan(plan, problem, f"plan from {at:g} s")
    workload = problem.workload if workload is None else workload
    whole = Plan(tuple(group for _, plan in plans for group in plan.groups))
    times, group = new_stage_times(len(workload), whole), np.full(len(workload), NOBODY, np.int64)
    serving = _Serving(problem, whole, workload, rule, max_batch)
    for (at, plan), end in zip(plans, [*moments[1:], math.inf], strict=True):
        serving.replace_plan(plan, at)
        free, drained, awake = serving.state.clocks
        clocks = Clocks(free.copy(), drained.copy(), awake.copy())
        ran = serving.serve(at, end)
        group[ran] = serving.tables.replica_group[serving.records.replica[ran]]
        replay(serving.tables, workload, serving.records, ran, clocks, times)
    return collect(problem, whole, workload, serving.records, group, times)


class _Serving:
    """Dispatch over the groups of all plans, of which those of the plan in force hold replicas."""

    def __init__(self, problem: Problem, whole: Plan, workload: Workload, rule: Rule, max_batch: int) -> None:
        self.problem, self.whole, self.workload, self.rule = problem, whole, workload, rule
        self.catalogue = Catalogue(problem)
        self.tables = self.catalogue.tables(whole)
        self.sizes = max(int(np.searchsorted(self.tables.batch_size, max_batch, side="right")), 1)
        models = len(problem.models)
        self.state = new_state(len(whole.groups), self.catalogue.stages, models, QUEUE_CAPACITY)
        self.records = new_records(len(workload))
        self.served = np.zeros(models, np.int64)
        self.batches = self.next_group = 0
        self.groups: Groups = {}
        self.ready: Ready = {}

    def serve(self, at: float, end: float) -> Ints:
        """What arrives from `at` to before `end`, and batches that begin before `end`; returns who ran."""
        first, last = (int(index) for index in np.searchsorted(self.workload.arrival, (at, end)))
        arrival, model = self.workload.arrival, self.workload.model
        records, began = self.records, self.batches
        if self.rule == "shortest-queue":
            status, replica, start, batch, size = (column[first:last] for column in records)
            part = Records(status, replica, start, batch, size)  # type: ignore[arg-type]
            serve_bound(arrival[first:last], model[first:last], self.tables, self.state.clocks, self.served, part)
            batch[batch != NOBODY] += began
            self.batches = int(records.batch.max(initial=NOBODY)) + 1
        else:
            until = math.nextafter(end, 0.0) if math.isfinite(end) else end
            bounds = (first, last, until, self.sizes, began)
            self.batches = serve_phase(arrival, model, bounds, self.tables, self.state, self.served, records)
        return np.flatnonzero(records.batch >= began)

    def replace_plan(self, plan: Plan, at: float) -> None:
        """Let this plan take over from the one in force (at first: none)."""
        old, old_tables = self.groups, self.tables
        self.groups = dict(enumerate(plan.groups, self.next_group))
        self.next_group += len(plan.groups)
        before = {(group.devices, group.shape): number for number, group in old.items()}
        kept = {n: before[g.devices, g.shape] for n, g in self.groups.items() if (g.devices, g.shape) in before}
        self._take_over_clocks(kept, at)
        self.ready = self._load(old, kept, at) if at > 0 else {}
        self.tables = self._make_tables()
        if not self._keep_schedule(old, old_tables, kept):
            reschedule(self.tables, self.state, at, self.sizes, self.records.status)

    def _take_over_clocks(self, kept: dict[int, int], at: float) -> None:
        """Kept groups keep their clocks; a stage of another is free when its devices did what they began."""
        free, drained, awake = self.state.clocks
        done: dict[str, float] = {}
        for number in range(min(self.groups, default=0)):
            group = self.whole.groups[number]
            for index, device in enumerate(group.devices):
                done[device] = max(done.get(device, at), float(free[number, index // group.tp]))
        for number, group in self.groups.items():
            if number in kept:
                free[number] = free[kept[number]]
                model = awake[kept[number]]
                if model != NOBODY and self.problem.models[model].name in group.parked:
                    awake[number] = model
            else:
                for stage in range(group.pp):
                    free[number, stage] = max(done.get(name, at) for name in group.stage_devices(stage))
            drained[number] = free[number, group.pp - 1]

    def _load(self, old: Groups, kept: dict[int, int], at: float) -> Ready:
        """When each replica can be used: one that stays, as before; a parked one whose weights are in the
        nodes' host memory, at once; others when loaded, one after the other once the devices are free."""
        ready: Ready = {}
        in_host = {(name, self._nodes(group)) for group in old.values() for name in group.parked}
        for number, group in self.groups.items():
            loaded = max(at, float(self.state.clocks.free[number, : group.pp].max()))
            for name in group.models + group.parked:
                if number in kept and _stays(name, old[kept[number]], group):
                    ready[name, number] = self.ready.get((name, kept[number]), 0.0)
                elif name in group.parked and (name, self._nodes(group)) in in_host:
                    ready[name, number] = at
                else:
                    entry = replica_profile(group, name, self.problem)
                    assert entry is not None
                    nodes = self._nodes(group)[2:]
                    loaded += entry.memory / min(self.problem.cluster.nodes[n].load_bandwidth for n in nodes)
                    ready[name, number] = loaded
        return ready

    def _nodes(self, group: Group) -> tuple[int, ...]:
        """Shape, then the node of each shard: groups alike in this find the same weights in host memory."""
        cluster = self.problem.cluster
        return *group.shape, *(cluster.devices[cluster.device_index[name]].node for name in group.devices)

    def _make_tables(self) -> Tables:
        """All groups, but the replicas of the plan in force alone."""
        tables, index = self.tables, self.catalogue.model_index
        replicas = sorted(
            (index[name], number, name in group.parked, self.ready.get((name, number), 0.0))
            for number, group in self.groups.items()
            for name in group.models + group.parked
        )
        models, groups, parked, ready = (np.array([row[i] for row in replicas]) for i in range(4))
        tables = self.catalogue.assemble(
            tables.group_class,
            models.astype(np.int64),
            groups.astype(np.int64),
            parked.astype(np.bool_),
            tables.wake,
        )
        return with_ready(tables, ready.astype(np.float64))

    def _keep_schedule(self, old: Groups, old_tables: Tables, kept: dict[int, int]) -> bool:
        """If the replica of each who waits stays, so does the schedule; else False, and nothing is done."""
        queue, tail, clocks = self.state.queue, self.state.tail, self.state.clocks
        number_of = {before: number for number, before in kept.items()}
        replicas = []
        for row in range(int(queue.length[0])):
            model, before = queue.model[row], int(old_tables.replica_group[queue.replica[row]])
            number = number_of.get(before)
            if number is None or not _stays(self.problem.models[model].name, old[before], self.groups[number]):
                return False
            start, stop = self.tables.first_replica[model : model + 2]
            replicas.append(start + self.tables.replica_group[start:stop].tolist().index(number))
        queue.replica[: len(replicas)] = replicas
        for number in self.groups:
            source, place = (tail, kept[number]) if number in kept else (clocks, number)
            for mine, theirs in zip(tail, source, strict=True):
                mine[number] = theirs[place]
        return True


def _stays(name: str, old: Group, new: Group) -> bool:
    return (name in old.models and name in new.models) or (name in old.parked and name in new.parked)


@entry_point
def serve_phase(
    arrival: Floats,
    model: NDArray[np.int32],
    bounds: tuple[int, int, float, int, int],
    tables: Tables,
    state: State,
    served: Ints,
    records: Records,
) -> int:
    """The deadline rule from the state as it is; returns how many batches have begun."""
    first, last, until, sizes, began = bounds
    return serve_span(arrival, model, first, last, until, tables, state, sizes, OVERTAKE_SHARE, began, served, records)


@entry_point
def reschedule(tables: Tables, state: State, now: float, sizes: int, status: NDArray[np.int8]) -> None:
    """Place all who wait anew; if that fails, one by one by deadline, and who finds no place expires."""
    queue, trial = state.queue, state.trial
    count = queue.length[0]
    for row in range(count):
        _copy_row(queue, row, trial, row)
    trial.length[0] = count
    if try_schedules(tables, state, now, sizes):
        _adopt(tables, state)
        return
    for row in range(count):
        state.alone[queue.model[row]] = 0
    queue.length[0] = state.totals[3] = 0
    for row in range(count):  # adopting writes no row after this one
        request = queue.request[row]
        insert(queue, trial, request, queue.model[row], queue.deadline[row])
        if try_schedules(tables, state, now, sizes):
            _adopt(tables, state)
        else:
            status[request] = EXPIRED
