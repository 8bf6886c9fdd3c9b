"""A plan as search handles it: a class for each group and which models each holds, without device names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from placement.clocks import Bools, Floats, Ints, Tables
from placement.plan import Group, Plan
from placement.tables import Catalogue


@dataclass(frozen=True, eq=False)
class Candidate:
    """`classes` [groups]: indices into Catalogue.classes; `holds` [groups, models]."""

    classes: tuple[int, ...]
    holds: Bools

    def __post_init__(self) -> None:
        assert len(self.classes) == len(self.holds)

    @property
    def key(self) -> tuple[object, ...]:
        return (self.classes, self.holds.tobytes())

    def with_replica(self, group: int, model: int, present: bool) -> Candidate:
        holds = self.holds.copy()
        holds[group, model] = present
        return replace(self, holds=holds)


class Space:
    """What candidates of a problem must respect: device counts per kind, nodes, memory."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.problem = catalogue.problem
        self.generates = any(model.generates for model in self.problem.models)
        nodes = self.problem.cluster.nodes
        self.kinds = tuple(dict.fromkeys(entry.kind for entry in catalogue.classes))
        self.memory_of_kind = {
            kind: min(int(node.memory) for node in nodes if node.kind == kind and node.devices) for kind in self.kinds
        }
        self.devices_of_kind = {kind: sum(node.devices for node in nodes if node.kind == kind) for kind in self.kinds}
        self.sizes = np.array([entry.shape.devices for entry in catalogue.classes], np.int64)
        models = catalogue.profile_of_model
        # [classes, models, stages] bytes per device; what a generating model needs to be of use includes some cache.
        self.need: Floats = catalogue.memory[:, models, :] + catalogue.least_cache[:, :, None]
        self.limit: Floats = np.array([self.memory_of_kind[entry.kind] for entry in catalogue.classes], np.float64)
        self.fits_alone: Bools = np.all(self.need <= self.limit[:, None, None], axis=2)
        self._bare_need: Floats = self.need
        alone = np.array([model.alone for model in self.problem.models], np.bool_)
        if alone.any():  # it takes whole devices, so that nothing fits beside it
            self.need = np.where((self.fits_alone & alone)[:, :, None], self.limit[:, None, None], self.need)
        counts = self.problem.workload.counts(len(self.problem.models))
        least = catalogue.request_seconds.min(axis=0, initial=np.inf)
        self.demand: Floats = counts * np.nan_to_num(least, posinf=0.0)

    def used(self, candidate: Candidate) -> Floats:
        """[groups, stages] bytes per device."""
        return (
            np.stack(
                [
                    self.need[kind, row].sum(axis=0) if row.any() else np.zeros(self.need.shape[2])
                    for kind, row in zip(candidate.classes, candidate.holds, strict=True)
                ]
            )
            if candidate.classes
            else np.zeros((0, self.need.shape[2]))
        )

    def has_room(self, candidate: Candidate, group: int, model: int, used: Floats) -> bool:
        kind = candidate.classes[group]
        return bool((used[group] + self.need[kind, model] <= self.limit[kind]).all())

    def valid(self, candidate: Candidate) -> bool:
        return bool((self.used(candidate) <= self.limit[list(candidate.classes), None]).all()) and (
            self.pack(candidate.classes) is not None
        )

    def pack(
        self, classes: tuple[int, ...], kept: Mapping[int, tuple[int, ...]] | None = None
    ) -> list[tuple[int, ...]] | None:
        """Devices (indices) for each group: those it keeps; groups of one node first, largest first, in the node they
        fill best; then those across nodes from what is left, in file order. None when they do not fit."""
        cluster = self.problem.cluster
        kept = kept or {}
        result = [kept.get(group, ()) for group in range(len(classes))]
        used = {index for devices in result for index in devices}
        free: list[list[int]] = [[] for _ in cluster.nodes]
        for index, device in enumerate(cluster.devices):
            if index not in used:
                free[device.node].append(index)
        spans = [self.catalogue.classes[kind] for kind in classes]
        loose = [group for group in range(len(classes)) if group not in kept]
        order = sorted(loose, key=lambda g: (spans[g].span != "node", -spans[g].shape.devices, g))
        for group in order:
            entry = spans[group]
            need = entry.shape.devices
            pools = [n for n, node in enumerate(cluster.nodes) if node.kind == entry.kind]
            if entry.span == "node":
                fitting = [n for n in pools if len(free[n]) >= need]
                if not fitting:
                    return None
                node = min(fitting, key=lambda n: (len(free[n]), n))
                result[group] = tuple(free[node][:need])
                free[node] = free[node][need:]
            else:
                pool = [index for n in sorted(pools, key=lambda n: -len(free[n])) for index in free[n]][:need]
                if len(pool) < need or len({cluster.devices[i].node for i in pool}) == 1:
                    return None
                taken = set(pool)
                result[group] = tuple(sorted(pool))
                free = [[index for index in row if index not in taken] for row in free]
        return result

    def tables(self, candidate: Candidate) -> Tables:
        # np.nonzero gives columns of one array; strided ones would be compiled for once more, and run slower.
        model, group = map(np.ascontiguousarray, np.nonzero(candidate.holds.T))
        return self.catalogue.assemble(np.array(candidate.classes, np.int64), model, group)

    def plan(self, candidate: Candidate, previous: Plan | None = None) -> Plan:
        """The candidate with device names, those of the previous plan's groups where they are alike; groups that hold
        nothing are left out."""
        kept = {} if previous is None else self._alike(candidate, previous)
        devices = self.pack(candidate.classes, kept) or self.pack(candidate.classes)
        assert devices is not None
        cluster, models = self.problem.cluster, self.problem.models
        groups = []
        for group, kind in enumerate(candidate.classes):
            held = np.flatnonzero(candidate.holds[group])
            if not len(held):
                continue
            shape = self.catalogue.classes[kind].shape
            groups.append(
                Group(
                    devices=tuple(cluster.devices[index].name for index in devices[group]),
                    tp=shape.tp,
                    pp=shape.pp,
                    models=tuple(models[m].name for m in held),
                    kv_bytes=self.cache(kind, held),
                )
            )
        return Plan(tuple(groups))

    def _alike(self, candidate: Candidate, previous: Plan) -> dict[int, tuple[int, ...]]:
        """Groups that can stay where a previous one was: same class, most models in common first."""
        before = self.candidate(previous)
        pairs = sorted(
            (-int((candidate.holds[new] & before.holds[old]).sum()), new, old)
            for new, kind in enumerate(candidate.classes)
            for old, other in enumerate(before.classes)
            if kind == other
        )
        kept: dict[int, tuple[int, ...]] = {}
        taken: set[int] = set()
        index = self.problem.cluster.device_index
        for _, new, old in pairs:
            if new not in kept and old not in taken:
                kept[new] = tuple(index[name] for name in previous.groups[old].devices)
                taken.add(old)
        return kept

    def cache(self, kind: int, held: Ints) -> dict[str, int]:
        """Cache bytes per device for each generating model: its least, and its part of what is spare by demand."""
        used = self._bare_need[kind, held].sum(axis=0)
        spare = float((self.limit[kind] - used[: self.catalogue.classes[kind].shape.pp]).min())
        models = self.problem.models
        generating = [m for m in held if models[m].generates]
        total = sum(self.demand[m] for m in generating) or 1.0
        least = self.catalogue.least_cache
        return {models[m].name: int(least[kind, m] + spare * self.demand[m] / total) for m in generating}

    def candidate(self, plan: Plan) -> Candidate:
        """A plan as a candidate; its parked models are left out."""
        index = self.catalogue.model_index
        holds = np.zeros((len(plan.groups), len(index)), np.bool_)
        for group, entry in enumerate(plan.groups):
            holds[group, [index[name] for name in entry.models]] = True
        return Candidate(tuple(self.catalogue.class_of(entry) for entry in plan.groups), holds)

    def leftover(self, classes: tuple[int, ...]) -> dict[str, int]:
        """Devices of each kind that the groups leave unused."""
        taken = Counter[str]()
        for kind in classes:
            taken[self.catalogue.classes[kind].kind] += int(self.sizes[kind])
        return {kind: count - taken[kind] for kind, count in self.devices_of_kind.items()}
