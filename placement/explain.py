"""Why a plan serves each model as it does, by asking the simulator what would have been otherwise.

For every model with misses: a replica on every group whose shape it knows, memory or not; twice the SLO;
half the work on its groups; one more group. What helps most is what limits it. Knows nothing of how the plan
was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np

from placement.clocks import Floats
from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.outcome import Outcome
from placement.plan import Group, Plan, check_plan
from placement.problem import Problem
from placement.profile import Shape
from placement.rules import Rule
from placement.search.bound import upper_bound
from placement.search.candidate import Space
from placement.simulate import simulate
from placement.simulator import count_served
from placement.tables import Catalogue
from placement.text import columns, percent, shortened
from placement.units import Bytes
from placement.workload import Workload

Limit = Literal["nothing", "placement", "memory", "deadline", "capacity", "not examined"]

MOST_SIMULATED = 5_000_000
"""Requests in all simulations together; past it the models with the fewest misses are not examined."""
TRIALS = 4
"""Simulations that one model may need."""


@dataclass(frozen=True)
class OneMore:
    """What a further group would bring: a model on it with the others that miss most, as far as they fit."""

    devices: int
    shape: Shape
    kind: str
    models: tuple[str, ...]
    attainment: float
    """Of the model in question."""
    overall: float


@dataclass(frozen=True)
class ModelExplanation:
    """Where one model went and what keeps it from more.

    `instead`: its attainment in each counterfactual."""

    model: str
    groups: tuple[int, ...]
    shapes: tuple[Shape, ...]
    requests: int
    missed: int
    attainment: float | None
    target: float
    limit: Limit
    instead: dict[str, float]
    one_more: OneMore | None


@dataclass(frozen=True)
class Explanation:
    """All models, and how far the whole is from what any plan could reach."""

    requests: int
    attainment: float
    upper_bound: float
    models: tuple[ModelExplanation, ...]

    @property
    def gap(self) -> int:
        """Requests that a better plan might still serve; no plan serves more."""
        return max(round((self.upper_bound - self.attainment) * self.requests), 0)

    def summary(self) -> dict[str, Any]:
        """The `explanation` that `penstock plan --explain --json` prints."""
        summary: dict[str, Any] = msgspec.to_builtins(self)
        summary["gap"] = self.gap
        summary["models"] = {entry.pop("model"): entry for entry in summary["models"]}
        return summary

    def text(self) -> str:
        rows = [_HEADER, *map(_row, self.models)]
        gap = f"No plan can serve more than {percent(self.upper_bound)}: at most {self.gap} of "
        gap += f"{self.requests} requests more than this one ({percent(self.attainment)})."
        return "\n".join([*columns(rows), "", gap])


def explain(problem: Problem, plan: Plan, outcome: Outcome, rule: Rule, max_batch: int) -> Explanation:
    """Explain what came of serving the outcome's workload with the plan."""
    workload = outcome.workload
    trials = _Trials(problem, plan, workload, rule, max_batch)
    counts = workload.counts(len(problem.models))
    met = np.bincount(workload.model[outcome.met], minlength=len(problem.models))
    missed = counts - met
    troubled = [int(m) for m in np.argsort(-missed, kind="stable") if missed[m] > 0]
    examined = troubled[: max(MOST_SIMULATED // (TRIALS * len(workload)), 1)]
    entries = []
    for m, model in enumerate(problem.models):
        groups = tuple(plan.replicas(model.name))
        attainment = float(met[m] / counts[m]) if counts[m] else None
        limit: Limit = "nothing" if m not in troubled else "not examined"
        instead: dict[str, float] = {}
        one_more = None
        if m in examined:
            assert attainment is not None
            instead = trials.instead(m)
            limit = trials.limit(m, attainment, instead)
            one_more = trials.one_more(m, troubled)
        shapes = tuple(plan.groups[g].shape for g in groups)
        entries.append(
            ModelExplanation(
                model.name,
                groups,
                shapes,
                int(counts[m]),
                int(missed[m]),
                attainment,
                model.target,
                limit,
                instead,
                one_more,
            )
        )
    bound = upper_bound(problem, workload, max_batch if rule == "deadline" else 1)
    return Explanation(len(workload), outcome.attainment, bound, tuple(entries))


class _Trials:
    """Simulations of a plan with one thing changed."""

    def __init__(self, problem: Problem, plan: Plan, workload: Workload, rule: Rule, max_batch: int) -> None:
        self.problem = problem
        self.plan = plan
        self.workload = workload
        self.rule: Rule = rule
        self.max_batch = max_batch
        self.catalogue = Catalogue(problem)
        self.space = Space(self.catalogue)
        self._extended: dict[tuple[int, tuple[int, ...]], Floats] = {}

    def attainment(self, problem: Problem, plan: Plan, workload: Workload) -> Floats:
        """[models], and the overall one at the end."""
        if any(model.generates for model in problem.models):
            outcome = simulate(problem, plan, workload, self.rule, self.max_batch)
            return np.append(np.nan_to_num(outcome.model_attainment), outcome.attainment)
        catalogue = self.catalogue if problem is self.problem else Catalogue(problem)
        met = count_served(catalogue.tables(plan), catalogue.stages, workload, self.rule, self.max_batch)
        counts = workload.counts(len(problem.models))
        attainment: Floats = np.append(met, met.sum()) / np.maximum(np.append(counts, counts.sum()), 1)
        return attainment

    def instead(self, m: int) -> dict[str, float]:
        """The model's attainment with a replica everywhere (`memory`; absent where it has them), twice the
        SLO (`deadline`), every second request of the models on its groups left out (`capacity`)."""
        problem, plan, workload = self.problem, self.plan, self.workload
        result = {}
        everywhere = self._everywhere(m)
        if everywhere is not None:
            result["memory"] = float(self.attainment(problem, everywhere, workload)[m])
        models = list(problem.models)
        models[m] = replace(models[m], slo=models[m].slo.scaled(2))
        patient = replace(problem, models=tuple(models))
        result["deadline"] = float(self.attainment(patient, plan, workload)[m])
        lighter = workload.select(self._halved(m))
        result["capacity"] = float(self.attainment(problem, plan, lighter)[m])
        return result

    def limit(self, m: int, attainment: float, instead: dict[str, float]) -> Limit:
        """What helps most; of equals the first, which costs least."""
        best = max(instead, key=lambda what: instead[what])
        if instead[best] <= attainment:
            return "deadline" if self._hopeless(m) else "capacity"
        if best == "deadline":
            return "deadline"
        if best == "capacity":
            return "capacity"
        everywhere = self._everywhere(m)
        assert everywhere is not None
        return "placement" if self._fits(everywhere) else "memory"

    def one_more(self, m: int, troubled: list[int]) -> OneMore | None:
        """The best group of the fewest devices that can hold the model."""
        able = np.flatnonzero(self.space.fits_alone[:, m])
        able = np.array([c for c in able if self.catalogue.classes[c].span == "node"] or able, np.int64)
        if not len(able):
            return None
        fewest = int(self.space.sizes[able].min())
        options = [self._extend(int(c), m, troubled) for c in able if self.space.sizes[c] == fewest]
        return max(options, key=lambda option: (option.attainment, option.overall))

    def _extend(self, c: int, m: int, troubled: list[int]) -> OneMore:
        """The model and, as far as memory goes, the others with misses on one more group of class c."""
        entry, need = self.catalogue.classes[c], self.space.need[c]
        held: list[int] = []
        used = np.zeros(need.shape[1])
        for other in [m, *troubled]:
            if other not in held and (used + need[other] <= self.space.limit[c]).all():
                held.append(other)
                used = used + need[other]
        key = (c, tuple(sorted(held)))
        if key not in self._extended:
            self._extended[key] = self._with_group(c, key[1])
        attainment = self._extended[key]
        names = tuple(self.problem.models[other].name for other in held)
        return OneMore(entry.shape.devices, entry.shape, entry.kind, names, float(attainment[m]), float(attainment[-1]))

    def _with_group(self, c: int, held: tuple[int, ...]) -> Floats:
        entry = self.catalogue.classes[c]
        cluster = self.problem.cluster
        name = "one-more"
        while any(node.name == name for node in cluster.nodes):
            name += "-"
        node = Node(name, entry.shape.devices, Bytes(self.space.limit[c]), entry.kind)
        devices = tuple(f"{name}/{index}" for index in range(entry.shape.devices))
        group = self._filled(Group(devices, *entry.shape), c, held)
        problem = replace(self.problem, cluster=Cluster((*cluster.nodes, node)))
        plan = msgspec.structs.replace(self.plan, groups=(*self.plan.groups, group))
        return self.attainment(problem, plan, self.workload)

    def _everywhere(self, m: int) -> Plan | None:
        """The plan with the model on every group whose shape it knows; None where it is already."""
        name = self.problem.models[m].name
        groups = list(self.plan.groups)
        for g, group in enumerate(groups):
            c = self.catalogue.class_of(group)
            if name not in group.models and self.catalogue.entries[c][self.catalogue.profile_of_model[m]] is not None:
                groups[g] = self._filled(group, c, (m,))
        if all(new is old for new, old in zip(groups, self.plan.groups, strict=True)):
            return None
        return msgspec.structs.replace(self.plan, groups=tuple(groups))

    def _filled(self, group: Group, c: int, held: Iterable[int]) -> Group:
        """The group with these models too, each with the least cache it is of use with."""
        models = self.problem.models
        cache = {models[m].name: int(self.catalogue.least_cache[c, m]) for m in held if models[m].generates}
        names = tuple(models[m].name for m in held)
        return msgspec.structs.replace(
            group,
            models=group.models + names,
            parked=tuple(name for name in group.parked if name not in names),
            kv_bytes=group.kv_bytes | cache,
        )

    def _fits(self, plan: Plan) -> bool:
        try:
            check_plan(plan, self.problem, "")
        except InputError:
            return False
        return True

    def _halved(self, m: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """All requests but every second one of each model that shares a group with the model."""
        name = self.problem.models[m].name
        sharing = {other for g in self.plan.replicas(name) for other in self.plan.groups[g].models} | {name}
        keep = np.ones(len(self.workload), np.bool_)
        for other in sharing:
            keep[np.flatnonzero(self.workload.model == self.catalogue.model_index[other])[1::2]] = False
        return keep

    def _hopeless(self, m: int) -> bool:
        """Whether even an idle group answers too late."""
        alone = self.catalogue.latency[:, self.catalogue.profile_of_model[m], 0, :]
        stages = np.array([entry.shape.pp for entry in self.catalogue.classes])
        inside = np.arange(alone.shape[1])[None, :] < stages[:, None]
        quickest = np.where(inside, alone, 0.0).sum(axis=1).min()
        return bool(quickest > self.catalogue.slack[m]) and not self.problem.models[m].generates


def _row(entry: ModelExplanation) -> tuple[str, ...]:
    of_shape: dict[Shape, list[str]] = {}
    for g, shape in zip(entry.groups, entry.shapes, strict=True):
        of_shape.setdefault(shape, []).append(str(g))
    where = ", ".join(f"{shortened(groups, 4)} ({shape})" for shape, groups in of_shape.items())
    instead = [percent(entry.instead[what]) if what in entry.instead else "" for what in _COUNTERFACTUALS]
    more = ""
    if entry.one_more is not None:
        own, overall = percent(entry.one_more.attainment), percent(entry.one_more.overall)
        more = f"{entry.one_more.shape}: {own}, all {overall}"
    attainment = "no requests" if entry.attainment is None else percent(entry.attainment)
    return (entry.model, where or "nowhere", attainment, entry.limit, *instead, more)


_COUNTERFACTUALS = {"memory": "everywhere", "deadline": "SLO x2", "capacity": "half the work"}
_HEADER = ("model", "groups", "attainment", "limited by", *_COUNTERFACTUALS.values(), "one more group")
