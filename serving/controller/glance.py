"""What the dashboard shows of the controller, its loans, plans, jobs and experts. Reads; changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from placement.problem import Model
from serving.controller.controller import Controller
from serving.controller.experts import ExpertKeeper
from serving.controller.glance_jobs import job_curves, job_view
from serving.controller.glance_marks import Marks
from serving.controller.glance_steps import plan_steps
from serving.controller.lender import Lender
from serving.controller.replan import Replanner
from serving.controller.runner import GroupRunner
from serving.controller.training import TrainingQueue
from serving.controller.trouble import find_trouble
from serving.controller.views import busy_s, finite, group_view
from serving.dashboard import Holder, Mark, Totals
from training.queue import NoSuchJob
from training.queue.states import ENDED

MOST_JOBS, MOST_ENDED = 200, 20
BUSY_S = 0.9
MOST_CELLS = 50_000
"""Of one heat map."""


class Glance:
    """What serving.dashboard's Source asks for."""

    def __init__(
        self,
        controller: Controller,
        replanner: Replanner,
        keeper: ExpertKeeper,
        lender: Lender | None,
        training: TrainingQueue | None,
    ) -> None:
        self._controller, self._replanner, self._keeper = controller, replanner, keeper
        self._lender, self._training = lender, training
        self._marks = Marks(controller, lender)
        self._busy: dict[str, _Busy] = {}
        """By group."""
        workload = controller.problem.workload
        counts = workload.counts(len(controller.problem.models))
        self._planned = {
            model.name: round(float(count) / max(workload.duration, 1e-9), 3)
            for model, count in zip(controller.problem.models, counts, strict=True)
        }

    def holders(self) -> Mapping[str, Holder]:
        runners = self._controller.runners
        held = {}
        for device, owner in self._controller.ledger.owners.items():
            runner = runners.get(owner.name) if owner.kind == "group" else None
            held[device] = Holder("dead" if runner is not None and _is_dead(runner) else owner.kind, owner.name)
        return held

    def marks(self, after: float) -> Iterator[Mark]:
        return self._marks.after(after)

    def now(self, recent: Mapping[str, Totals]) -> dict[str, Any]:
        controller, now = self._controller, time.monotonic()
        cluster, unready = controller.problem.cluster, controller.unready()
        lent_by = {
            device: one.name for one in controller.runners.values() if one.is_lent for device in one.spec.devices
        }
        return {
            "nodes": [{"name": node.name, "kind": node.kind, "memory": int(node.memory)} for node in cluster.nodes],
            "devices": [
                {
                    "name": name,
                    "node": cluster.devices[cluster.device_index[name]].node,
                    "kind": holder.kind,
                    "owner": holder.name,
                    "lent_by": lent_by.get(name),
                }
                for name, holder in self.holders().items()
            ],
            "groups": [
                group_view(one, now) | {"busy": self._busy_share(one, now)} for one in controller.runners.values()
            ],
            "models": [self._model(model, unready) for model in controller.problem.models],
            "troubles": find_trouble(controller, recent, self._planned, unready),
            "queue": {"waiting": controller.router.waiting, "running": controller.router.running},
            "plan": {"why": controller.in_force.why, "at": controller.in_force.at, "changing": controller.is_changing},
            "planner": self._planner(),
            "loans": self._loans(),
            "training": self._training is not None,
        }

    async def jobs(self) -> list[dict[str, Any]]:
        if self._training is None:
            return []
        store = self._training.desk.store

        def read() -> list[dict[str, Any]]:
            live = store.live()[:MOST_JOBS]
            return [job_view(record) for record in [*live, *reversed(store.jobs(ENDED, limit=MOST_ENDED))]]

        return await asyncio.to_thread(read)

    async def job(self, name: str) -> dict[str, Any] | None:
        if self._training is None:
            return None
        store = self._training.desk.store

        def read() -> dict[str, Any] | None:
            try:
                record, events = store.get(name), store.events(name)
            except NoSuchJob:
                return None
            return job_view(record) | job_curves(None if record.folder is None else Path(record.folder), events)

        return await asyncio.to_thread(read)

    def experts(self) -> list[dict[str, Any]]:
        found = []
        for where in self._keeper.places():
            popularity = self._keeper.popularity.get(where.model)
            runner = self._controller.runners.get(where.group)
            placed = None if runner is None else runner.experts.placed.get(where.model)
            if popularity is None or popularity.last is None or placed is None:
                continue
            experts = popularity.last.shape[1]
            most = max(1, MOST_CELLS // experts)
            mean = popularity.last.mean(axis=1, keepdims=True)
            share = (popularity.last / mean.clip(1e-9))[:most]
            replicas = [
                [sum(device.count(e) for device in layer) for e in range(experts)] for layer in placed.now[:most]
            ]
            found.append(
                {
                    "model": where.model,
                    "group": where.group,
                    "load": share.round(3).tolist(),
                    "replicas": replicas,
                    "moves": self._keeper.moves[where],
                    "reason": self._keeper.reasons.get(where),
                }
            )
        return found

    def _busy_share(self, runner: GroupRunner, now: float) -> float | None:
        """Of the busiest stage, over the last second or so."""
        last, total_s = self._busy.get(runner.name), busy_s(runner)
        if last is None:
            self._busy = {name: one for name, one in self._busy.items() if name in self._controller.runners}
            self._busy[runner.name] = _Busy(now, total_s, None)
            return None
        if now - last.at < BUSY_S:
            return last.share
        most_s = max(after - before for before, after in zip(last.total_s, total_s, strict=False))
        share = round(min(max(most_s / (now - last.at), 0.0), 1.0), 3)
        self._busy[runner.name] = _Busy(now, total_s, share)
        return share

    def _model(self, model: Model, unready: Mapping[str, str]) -> dict[str, Any]:
        controller, name = self._controller, model.name
        return {
            "name": name,
            "state": controller.state_of(name),
            "reason": unready.get(name),
            "groups": controller.router.ready_groups(name),
            "goal": finite(vars(model.slo)),
            "target": model.target,
            "planned": self._planned[name],
            "generates": model.generates,
        }

    def _planner(self) -> dict[str, Any]:
        replanner = self._replanner
        looked, found = replanner.looked, replanner.suggestion
        told: dict[str, Any] = {
            "mode": replanner.mode,
            "looking": replanner.is_looking,
            "looked": None if looked is None else vars(looked),
            "suggestion": None,
        }
        if found is not None:
            running = {name: runner.spec for name, runner in self._controller.runners.items()}
            told["suggestion"] = {
                "at": found.at,
                "requests": found.requests,
                "now": vars(found.now),
                "then": vars(found.then),
                "steps": plan_steps(running, found.plan, self._controller.problem),
            }
        return told

    def _loans(self) -> dict[str, Any]:
        lender = self._lender
        if lender is None:
            return {"mode": "off", "loans": [], "lent_device_s": 0.0, "why": "no training is configured"}
        return {
            "mode": lender.mode,
            "loans": [vars(loan) for loan in lender.loans.values()],
            "lent_device_s": round(lender.lent_s, 1),
            "recalls": lender.recalls,
            "why": lender.verdict.why,
        }


class _Busy(NamedTuple):
    """When a group was looked at, how long its stages had computed, and the share of the time before."""

    at: float
    total_s: list[float]
    share: float | None


def _is_dead(runner: GroupRunner) -> bool:
    """Its processes were lost, and it does not serve again yet."""
    return runner.state == "down" or (runner.state == "starting" and runner.deaths > 0)
