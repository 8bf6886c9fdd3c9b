"""Which models miss their goal, and why: what an operator should know first."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from placement.problem import Slo
from router.statistics import WINDOW_S
from serving.controller.controller import Controller
from serving.dashboard import Totals

MORE_THAN_PLANNED = 1.2


def find_trouble(
    controller: Controller, recent: Mapping[str, Totals], planned: Mapping[str, float], unready: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Models that cannot be served, or of which too few were answered in time in the last minute, the worst first."""
    now, ended, met = time.monotonic(), dict.fromkeys(recent, 0), dict.fromkeys(recent, 0)
    for (name, _), one in controller.router.statistics.classes.items():
        all_of_them, in_time = one.window.sums(now)
        ended[name] += all_of_them
        met[name] += in_time
    found = []
    for model in controller.problem.models:
        name = model.name
        share = met[name] / ended[name] if ended[name] else None
        if name not in unready and (share is None or share >= model.target):
            continue
        why = list(_reasons(controller, name, recent[name], planned[name], unready, model.slo))
        found.append({"model": name, "in_time": share, "target": model.target, "why": why})
    return sorted(found, key=lambda one: (one["in_time"] is not None, one["in_time"] or 0.0))


def _reasons(
    controller: Controller, name: str, recent: Totals, planned: float, unready: Mapping[str, str], slo: Slo
) -> Iterator[str]:
    if name in unready:
        yield f"cannot be served: {unready[name]}"
    counted = {reason: count for reason, count in recent.refusals.items() if reason != "cancelled"}
    if counted:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items(), key=lambda one: -one[1]))
        yield f"not served in the last minute: {told}"
        message = _last_message(controller, name)
        if message:
            yield f"the last of them: {message}"
    late = recent.judged - recent.met - sum(counted.values())
    if late > 0:
        yield f"answered, but late, in the last minute: {late} ({_pace(recent, slo)})"
    if recent.rate_per_s > MORE_THAN_PLANNED * planned:
        yield f"{recent.rate_per_s:.3g} requests a second come; the plan was made for {planned:.3g}"
    for runner in controller.runners.values():
        if name not in runner.spec.models:
            continue
        if runner.is_lent:
            yield f"{runner.name} ({', '.join(runner.spec.devices)}), which holds it, is lent to training"
        elif runner.state != "serving":
            yield f"{runner.name} ({', '.join(runner.spec.devices)}), which holds it, is {runner.state}"


def _pace(recent: Totals, slo: Slo) -> str:
    """How slow the slowest were beside each goal."""
    slowest = {"end_to_end": recent.latency_s(0.99), "ttft": recent.ttft_s(0.99), "tpot": recent.token_s(0.99)}
    names = {"end_to_end": "p99", "ttft": "TTFT p99", "tpot": "TPOT p99"}
    told = [
        f"{names[goal]} {1e3 * took:.0f} ms, goal {1e3 * value:.0f} ms"
        for goal, value in vars(slo).items()
        if math.isfinite(value) and (took := slowest[goal]) is not None
    ]
    return "; ".join(told) or "nothing was measured"


def _last_message(controller: Controller, name: str) -> str:
    oldest = time.monotonic() - WINDOW_S
    for one in reversed(controller.router.statistics.refusals):
        if one.at < oldest:
            break
        if one.model == name and one.reason != "cancelled":
            return one.message
    return ""
