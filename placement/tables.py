"""Turns a problem and a plan into the arrays that dispatch and the simulator work on."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from placement.clocks import Floats, Ints, Tables
from placement.cluster import Cluster
from placement.dispatch import EAGER_SHARE
from placement.plan import Group, Plan
from placement.problem import Problem
from placement.profile import Profile, Shape, ShapeProfile


@dataclass(frozen=True)
class GroupClass:
    """Groups on which every model costs the same: one shape on one device kind, within a node or across."""

    shape: Shape
    kind: str
    span: str


class Catalogue:
    """What every model costs on every class of group, as arrays; made once for a problem, used for all its plans."""

    def __init__(self, problem: Problem, kinds: Collection[str] | None = None) -> None:
        """`kinds`: of the devices of a cluster that may grow: then all that could ever be on them is known."""
        self.problem = problem
        profiles: dict[int, Profile] = {id(model.profile): model.profile for model in problem.models}
        self.profiles = tuple(profiles.values())
        position = {key: index for index, key in enumerate(profiles)}
        self.profile_of_model: Ints = np.array([position[id(model.profile)] for model in problem.models], np.int64)
        self.classes = _classes(problem, self.profiles) if kinds is None else _all_classes(kinds, self.profiles)
        self.class_index = {entry: index for index, entry in enumerate(self.classes)}
        self.entries: list[list[ShapeProfile | None]] = [
            [profile.find(entry.shape, entry.kind, entry.span) for profile in self.profiles] for entry in self.classes
        ]
        self.model_index = {model.name: index for index, model in enumerate(problem.models)}
        batches = {batch for row in self.entries for entry in row if entry for batch in entry.stage_latency}
        self.batch_size: Ints = np.array(sorted(batches | {1}), np.int64)
        self.stages = max((entry.shape.pp for entry in self.classes), default=1)

    def move(self, cluster: Cluster) -> None:
        """The devices are these from now on; classes stay what they were."""
        self.problem = replace(self.problem, cluster=cluster)

    @cached_property
    def latency(self) -> Floats:
        """float64 [classes, profiles, batch sizes, stages], inf where a profile has no such entry."""
        shape = (len(self.classes), len(self.profiles), len(self.batch_size), self.stages)
        latency = np.full(shape, np.inf)
        for c, row in enumerate(self.entries):
            for p, entry in enumerate(row):
                if entry is not None:
                    for b, batch in enumerate(self.batch_size):
                        if batch in entry.stage_latency:
                            latency[c, p, b, : entry.pp] = entry.stage_latency[int(batch)]
        return latency

    @cached_property
    def memory(self) -> Floats:
        """float64 [classes, profiles, stages] bytes per device; inf where a model has no such shape."""
        memory = np.full((len(self.classes), len(self.profiles), self.stages), np.inf)
        for c, row in enumerate(self.entries):
            for p, entry in enumerate(row):
                if entry is not None:
                    memory[c, p, :] = 0
                    memory[c, p, : entry.pp] = entry.stage_memory
        return memory

    @cached_property
    def device_seconds(self) -> Floats:
        """float64 [classes, profiles]: seconds of device time one request costs, alone."""
        seconds = self.latency[:, :, 0, :].copy()
        for c, entry in enumerate(self.classes):
            seconds[c, :, entry.shape.pp :] = 0
            seconds[c] *= entry.shape.tp
        total: Floats = seconds.sum(axis=2)
        return total

    @cached_property
    def request_seconds(self) -> Floats:
        """float64 [classes, models]: device time of a usual request; for a generating model its prompt and, of steps
        shared by eight sequences, its part."""
        seconds = self.device_seconds[:, self.profile_of_model].copy()
        for m, model in enumerate(self.problem.models):
            if model.generates:
                prompt, output = self._usual_tokens(m)
                for c, entry in enumerate(row[self.profile_of_model[m]] for row in self.entries):
                    if entry is not None and entry.generation is not None:
                        steps = entry.generation.stages
                        prefill = sum(step.seconds(prompt, 0, 0, 0) for step in steps)
                        decode = sum(step.seconds(0, 8, 0, 8 * prompt) for step in steps) / 8
                        seconds[c, m] = entry.tp * (prefill + output * decode)
        return seconds

    def _usual_tokens(self, model: int) -> tuple[float, float]:
        """Mean prompt and output tokens of a model's requests; 0 where it has none."""
        workload = self.problem.workload
        rows = workload.model == model
        if workload.prompt_tokens is None or workload.output_tokens is None or not rows.any():
            return 0.0, 0.0
        return float(workload.prompt_tokens[rows].mean()), float(workload.output_tokens[rows].mean())

    @cached_property
    def cost(self) -> Floats:
        """float64 [models]: the least device time of one request over its weight."""
        weights = np.array([model.weight for model in self.problem.models])
        least = self.device_seconds.min(axis=0)[self.profile_of_model]
        cost: Floats = np.where(np.isfinite(least), least, 0.0) / weights
        return cost

    @cached_property
    def least_cache(self) -> Floats:
        """float64 [classes, models]: cache bytes per device without which a generating model is of no use on a group
        (room for eight of its usual requests); 0 for one-pass models."""
        least = np.zeros((len(self.classes), len(self.problem.models)))
        for m, model in enumerate(self.problem.models):
            if model.generates:
                for c, entry in enumerate(row[self.profile_of_model[m]] for row in self.entries):
                    if entry is not None and entry.generation is not None:
                        least[c, m] = 8 * sum(self._usual_tokens(m)) * max(entry.generation.kv_bytes_per_token)
        return least

    @cached_property
    def slack(self) -> Floats:
        """float64 [models]: seconds from arrival to when the last stage must be done."""
        return np.array([model.slo.first_token - self.problem.overhead for model in self.problem.models])

    def class_of(self, group: Group) -> int:
        found = self.find_class(group)
        assert found is not None, group
        return found

    def find_class(self, group: Group) -> int | None:
        """The class of a group of this cluster's devices; None where no model knows its shape."""
        cluster = self.problem.cluster
        members = [cluster.devices[cluster.device_index[name]] for name in group.devices]
        span = "node" if len({device.node for device in members}) == 1 else "cluster"
        return self.class_index.get(GroupClass(group.shape, members[0].kind, span))

    def tables(self, plan: Plan) -> Tables:
        """The arrays of one plan."""
        group_class = np.array([self.class_of(group) for group in plan.groups], np.int64)
        bandwidth = np.array([self._bandwidth(group) for group in plan.groups])
        replicas = sorted(
            (self.model_index[name], index, parked)
            for index, group in enumerate(plan.groups)
            for names, parked in ((group.models, False), (group.parked, True))
            for name in names
        )
        wake = np.zeros((len(self.classes), len(self.profiles), self.stages))
        for index, kind in enumerate(group_class):
            load = self.memory[kind] / bandwidth[index]
            for profile, entry in enumerate(self.entries[kind]):
                if entry is not None and entry.wake is not None:
                    load[profile] = entry.wake
            wake[kind] = np.maximum(wake[kind], np.where(np.isfinite(load), load, 0.0))
        return self.assemble(
            group_class,
            np.array([model for model, _, _ in replicas], np.int64),
            np.array([group for _, group, _ in replicas], np.int64),
            np.array([parked for _, _, parked in replicas], np.bool_),
            wake,
        )

    def wake_s(self, group: Group, model: str) -> float:
        """Seconds until a parked model is awake on all stages of the group."""
        entry = self.entries[self.class_of(group)][self.profile_of_model[self.model_index[model]]]
        assert entry is not None
        seconds: float = entry.memory / self._bandwidth(group) if entry.wake is None else entry.wake
        return seconds

    def assemble(
        self,
        group_class: Ints,
        replica_model: Ints,
        replica_group: Ints,
        replica_parked: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
        wake: Floats | None = None,
    ) -> Tables:
        """Tables from plain arrays, replicas sorted by model: the quick way, for search."""
        models = len(self.problem.models)
        counts = np.bincount(replica_model, minlength=models)
        return Tables(
            latency=self.latency,
            through=self._through,
            wake=self._no_wake if wake is None else wake,
            batch_size=self.batch_size,
            group_class=group_class,
            stages=self._class_stages[group_class],
            lead=self._lead(group_class, replica_model, replica_group),
            profile=self.profile_of_model,
            cost=self.cost,
            slack=self.slack,
            batch_from=self._batch_from(group_class, replica_model, replica_group),
            first_replica=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            replica_group=replica_group,
            replica_ready=np.zeros(len(replica_group)),
            loading=np.zeros(1, np.bool_),
            replica_parked=np.zeros(len(replica_group), np.bool_) if replica_parked is None else replica_parked,
        )

    @cached_property
    def batch_from(self) -> Ints:
        """int64 [classes, profiles]: the fewest waiting requests that a batch clears sooner than one by one."""
        stages = self._class_stages
        alone = self.latency[:, :, 0, :]
        never = np.iinfo(np.int64).max
        result = np.full(alone.shape[:2], never, np.int64)
        inside = np.arange(self.stages)[None, None, :] < stages[:, None, None]
        first = np.where(inside, alone, 0.0)
        for b, size in list(enumerate(self.batch_size))[1:]:
            batch = np.where(inside, self.latency[:, :, b, :], 0.0)
            for c, p in zip(*np.nonzero(np.isfinite(batch.sum(axis=2))), strict=True):
                one, many = first[c, p], batch[c, p]
                # Full batches only: the fewest n = k * size with clear(many) < EAGER_SHARE * clear(one).
                gain = EAGER_SHARE * size * one.max() - many.max()
                if gain > 0:
                    fill = many.sum() - many.max() - EAGER_SHARE * (one.sum() - one.max())
                    rounds = math.floor(fill / gain) + 1
                    result[c, p] = min(result[c, p], max(rounds, 1) * size)
        return result

    def _lead(self, group_class: Ints, replica_model: Ints, replica_group: Ints) -> Floats:
        """Half of the group's shortest first stage, so that no device waits for a message, nor one that is done early,
        and one batch at most waits there. Nothing where messages take no time."""
        if not self.problem.overhead:
            return np.zeros(len(group_class))
        lead = np.full(len(group_class), np.inf)
        first = self.latency[group_class[replica_group], self.profile_of_model[replica_model], 0, 0]
        np.minimum.at(lead, replica_group, np.where(np.isfinite(first), first / 2, np.inf))
        return np.where(np.isfinite(lead), lead, 0.0)

    def _batch_from(self, group_class: Ints, replica_model: Ints, replica_group: Ints) -> Ints:
        result = np.full(len(self.problem.models), np.iinfo(np.int64).max, np.int64)
        each = self.batch_from[group_class[replica_group], self.profile_of_model[replica_model]]
        np.minimum.at(result, replica_model, each)
        return result

    @cached_property
    def _through(self) -> Floats:
        inside = np.arange(self.stages) < self._class_stages[:, None]
        total: Floats = np.where(inside[:, None, :], self.latency[:, :, 0, :], 0.0).sum(axis=2)
        return total * (1 - 1e-12)

    @cached_property
    def _no_wake(self) -> Floats:
        return np.zeros((len(self.classes), len(self.profiles), self.stages))

    @cached_property
    def _class_stages(self) -> Ints:
        return np.array([entry.shape.pp for entry in self.classes], np.int64)

    def _bandwidth(self, group: Group) -> float:
        cluster = self.problem.cluster
        return min(
            cluster.nodes[cluster.devices[cluster.device_index[name]].node].load_bandwidth for name in group.devices
        )


def _all_classes(kinds: Collection[str], profiles: tuple[Profile, ...]) -> tuple[GroupClass, ...]:
    """Every class of a shape that some model knows on these kinds, however many devices there are."""
    shapes = sorted({entry.shape for profile in profiles for entry in profile.shapes})
    every = (GroupClass(shape, kind, span) for kind in kinds for shape in shapes for span in ("node", "cluster"))
    return tuple(one for one in every if one.span == "node" or one.shape.devices > 1)


def _classes(problem: Problem, profiles: tuple[Profile, ...]) -> tuple[GroupClass, ...]:
    """Every class a group of this cluster could have: a shape some model knows, a kind, a span that can occur."""
    shapes = sorted({entry.shape for profile in profiles for entry in profile.shapes})
    nodes = problem.cluster.nodes
    classes = []
    for kind in dict.fromkeys(node.kind for node in nodes if node.devices):
        largest = max(node.devices for node in nodes if node.kind == kind)
        total = sum(node.devices for node in nodes if node.kind == kind)
        for shape in shapes:
            if shape.devices <= largest:
                classes.append(GroupClass(shape, kind, "node"))
            if shape.devices <= total and total > largest and shape.devices > 1:
                classes.append(GroupClass(shape, kind, "cluster"))
    return tuple(classes)
