"""What an operator is told: status, explanations, figures for metrics. Reads the controller; changes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from router import Refusal
from serving.controller.controller import Controller
from serving.controller.journal import Event
from serving.controller.parking import ParkingGroup
from serving.controller.runner import GroupRunner
from serving.http import Family, Histogram

Figures = dict[tuple[str, ...], float | Histogram]


def status(controller: Controller) -> dict[str, Any]:
    """Devices and owners, groups, models, queue."""
    now = time.monotonic()
    statistics, unready = controller.router.statistics, controller.unready()
    return {
        "devices": {device: str(owner) for device, owner in controller.ledger.owners.items()},
        "groups": [group_view(runner, now) for runner in controller.runners.values()],
        "models": {model.name: _model(controller, model.name, unready) for model in controller.problem.models},
        "queue": {"waiting": controller.router.waiting, "running": controller.router.running},
        "classes": statistics.summary(now),
        "plan": {"why": controller.in_force.why, "at": controller.in_force.at},
    }


def explain_plan(controller: Controller) -> dict[str, Any]:
    """The plan in force, why, and what was expected of it."""
    in_force, problem = controller.in_force, controller.problem
    workload = problem.workload
    counts = workload.counts(len(problem.models))
    duration = max(workload.duration, 1e-9)
    return {
        "plan": msgspec.to_builtins(in_force.plan),
        "why": in_force.why,
        "at": in_force.at,
        "predicted": {key: value for key, value in in_force.plan.planner.items() if key != "alternatives"},
        "alternatives": in_force.plan.planner.get("alternatives", []),
        "not_as_planned": {
            f"{model} on {runner.name}": reason
            for runner in controller.runners.values()
            for model, reason in (runner.experts.failed | runner.failed).items()
        },
        "inputs": {
            model.name: {
                "planned_rate_per_s": round(float(counts[index]) / duration, 4),
                "slo": finite(vars(model.slo)),
                "target": model.target,
                "weight": model.weight,
                "sources": sorted({shape.source or "given" for shape in model.profile.shapes}),
            }
            for index, model in enumerate(problem.models)
        },
    }


def explain_moves(controller: Controller) -> dict[str, Any]:
    return {"moves": [_event(event) for event in controller.journal.events()]}


def explain_refusals(controller: Controller) -> dict[str, Any]:
    """The last requests that were not served: what was weighed."""
    refusals, now, unix = controller.router.statistics.refusals, time.monotonic(), time.time()
    return {"refusals": [refusal_view(one, unix - now) for one in refusals]}


def figures(controller: Controller) -> Iterator[Family]:
    """For /metrics, beside what the endpoint counts itself."""
    owners = controller.ledger.owners
    owned: Figures = {(device, owner.kind, owner.name): 1.0 for device, owner in owners.items()}
    yield Family("device_owner", "1 for who has the device.", "gauge", ("device", "kind", "owner"), owned)
    runners = list(controller.runners.values())
    up: Figures = {(one.name,): float(one.state == "serving") for one in runners}
    yield Family("group_up", "1 while the group serves.", "gauge", ("group",), up)
    nodes: Figures = {(one.name, device.rpartition("/")[0]): 1.0 for one in runners for device in one.spec.devices}
    yield Family("group_node", "1 for each node that the group has devices of.", "gauge", ("group", "node"), nodes)
    deaths: Figures = {(one.name,): float(one.deaths) for one in runners}
    yield Family("group_deaths", "How often the group was lost.", "counter", ("group",), deaths)
    busy: Figures = {(one.name, f"{stage}"): s for one in runners for stage, s in enumerate(busy_s(one))}
    yield Family("group_busy_seconds", "Time that a stage computed.", "counter", ("group", "stage"), busy)
    blocks: Figures = {
        (one.name, model): float(state.blocks_used)
        for one in runners
        if one.group is not None
        for model, state in one.group.states.items()
        if one.spec.kv_bytes.get(model)
    }
    yield Family("kv_cache_blocks_used", "Cache blocks that sequences hold.", "gauge", ("group", "model_name"), blocks)
    factors: Figures = {key: factor for key, factor in controller.router.factors().items()}  # noqa: C416  (wider keys)
    yield Family("profile_factor", "Time taken over time profiled.", "gauge", ("group", "model_name"), factors)


def group_view(runner: GroupRunner, now: float) -> dict[str, Any]:
    states = {} if runner.group is None else runner.group.states
    return {
        "name": runner.name,
        "devices": list(runner.spec.devices),
        "tp": runner.spec.tp,
        "pp": runner.spec.pp,
        "state": "lent" if runner.is_lent else runner.state,
        "kind": "" if runner.group is None else runner.group.kind,
        "models": {
            model: {
                "ready": model in runner.ready,
                "parked": model in runner.spec.parked,
                "proven_s_ago": round(now - runner.proven[model], 1) if model in runner.proven else None,
                "running": states[model].running if model in states else 0,
                "waiting": states[model].waiting if model in states else 0,
                "blocks_used": states[model].blocks_used if model in states else 0,
                "error": runner.failed.get(model),
            }
            for model in runner.spec.models + runner.spec.parked
        },
        "awake": runner.handle.awake if isinstance(runner.handle, ParkingGroup) else None,
        "wake_s": dict(runner.handle.wake_s) if isinstance(runner.handle, ParkingGroup) else {},
        "deaths": runner.deaths,
        "last_death": runner.last_death or None,
        "pids": [] if runner.group is None else [handle.pid for handle in runner.group.handles],
        "busy_s": [round(seconds, 3) for seconds in busy_s(runner)],
    }


def _model(controller: Controller, name: str, unready: Mapping[str, str]) -> dict[str, Any]:
    groups = controller.router.ready_groups(name)
    return {"state": controller.state_of(name), "groups": groups, "reason": unready.get(name)}


def busy_s(runner: GroupRunner) -> list[float]:
    """Of each stage, all its models together."""
    states = [] if runner.group is None else [state for state in runner.group.states.values() if state.busy_s]
    return [sum(each) for each in zip(*(state.busy_s for state in states), strict=True)] or [0.0] * runner.spec.pp


def _event(event: Event) -> dict[str, Any]:
    return {"at": event.at, event.subject: event.name, "what": event.what} | event.facts


def refusal_view(one: Refusal, offset_s: float) -> dict[str, Any]:
    def unix(at: float | None) -> float | None:
        return None if at is None or not math.isfinite(at) else round(at + offset_s, 4)

    return {
        "at": unix(one.at),
        "request": one.request,
        "model": one.model,
        "class": one.priority,
        "tenant": one.tenant,
        "reason": one.reason,
        "message": one.message,
        "tokens": one.tokens,
        "deadline": unix(one.deadline),
        "predicted": unix(one.predicted),
        "retry_after_s": one.retry_after_s,
        "waiting": one.waiting,
        "alternatives": [{"group": group, "free_at": unix(at)} for group, at in one.replicas],
    }


def finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
