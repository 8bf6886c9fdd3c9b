"""How the planner's commands show plans, outcomes and the demo to people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placement.text import columns, device_range, percent, shortened

if TYPE_CHECKING:
    from placement.comparison import Comparison
    from placement.outcome import Outcome
    from placement.plan import Group, Plan
    from placement.problem import Problem


def plan_summary(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """plan.json's fields beside each other, and how each model fares."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(plan)
    models = outcome.summary()["models"]
    return {
        **fields.pop("planner"),
        **fields,
        "models": {name: {key: entry[key] for key in ("attainment", "replicas")} for name, entry in models.items()},
    }


def parked_names(plan: Plan, group: Group) -> list[str]:
    """With how long waking each takes, where the plan says so."""
    wake_s = plan.planner.get("wake_s", {})
    return [f"{name} (wakes in {wake_s[name]:.2g} s)" if name in wake_s else name for name in group.parked]


def plan_text(problem: Problem, plan: Plan, outcome: Outcome, compile_s: float) -> str:
    claims = plan.planner
    parks = any(group.parked for group in plan.groups)
    rows = [["group", "devices", "shape", "models", *(["parked"] if parks else [])]]
    rows += [
        [
            *(str(index), device_range(group.devices), str(group.shape), shortened(group.models, 4)),
            *([shortened(parked_names(plan, group), 4)] if parks else []),
        ]
        for index, group in enumerate(plan.groups)
    ]
    name, worst = outcome.worst_model
    target = next(model.target for model in problem.models if model.name == name)
    verdict = "target" if worst >= target else "below its target of"
    steps = f", {claims['steps']} plans tried" if claims["steps"] else ""
    facts = [
        f"attainment   {percent(outcome.attainment)} of {len(outcome.workload)} requests"
        f" (no plan exceeds {percent(claims['upper_bound'])})",
        f"worst model  {name}: {percent(worst)}, {verdict} {percent(target)}",
        f"search       {claims['policy']}, {claims['seconds']:.1f} s{steps}; compiling {compile_s:.1f} s",
    ]
    return "\n".join([*columns(rows), "", *facts])


def outcome_text(summary: dict[str, Any]) -> str:
    rows = [("model", "requests", "attainment", "p50", "p99", "replicas", "not served")]
    for name, model in summary["models"].items():
        reasons = [f"{count} {reason}" for reason, count in model["reasons"].items() if reason != "served"]
        attainment = "" if model["attainment"] is None else percent(model["attainment"])
        spread = [_seconds(model["latency"][point]) for point in ("p50", "p99")]
        rows.append((name, str(model["requests"]), attainment, *spread, str(model["replicas"]), ", ".join(reasons)))
    groups = [("group", "devices", "shape", "models", "requests", "busy")]
    for index, group in enumerate(summary["groups"]):
        shape = "tp{} x pp{}".format(*group["shape"])
        held, requests = str(group["models"]), str(group["requests"])
        devices = device_range(group["devices"])
        groups.append((str(index), devices, shape, held, requests, percent(group["utilisation"])))
    worst, least = summary["worst_model"]
    latency = ", ".join(f"{point} {_seconds(value)}" for point, value in summary["latency"].items())
    facts = [
        f"attainment   {percent(summary['attainment'])} of {summary['requests']} requests,"
        f" {summary['goodput']:.1f} a second in time",
        f"worst model  {worst}: {percent(least)}",
        f"latency      {latency}",
    ]
    return "\n".join([*columns(rows), "", *columns(groups), "", *facts])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def demo_text(problem: Problem, duration_s: float, comparison: Comparison, save: Path | None) -> str:
    """What was asked, one row a policy, the groups of the best plan, and where to go next."""
    rows = [("policy", "groups", "attainment", "worst model", "under shortest-queue")]
    for name, plan in comparison.plans.items():
        ours, theirs = (
            next(point for point in comparison.base if point.policy == name and point.rule == rule)
            for rule in ("deadline", "shortest-queue")
        )
        shapes = [str(group.shape) for group in plan.groups]
        kinds = ", ".join(f"{shapes.count(shape)} of {shape}" for shape in dict.fromkeys(shapes))
        worst, least = ours.worst_model
        rows.append((name, kinds, percent(ours.attainment), f"{worst}: {percent(least)}", percent(theirs.attainment)))
    intro = (
        f"{len(problem.models)} models on {len(problem.cluster.devices)} devices, "
        f"{len(problem.workload)} requests in {duration_s:g} s, in bursts. Planned on one draw of\n"
        f"this traffic, judged on {comparison.inputs['held_out']} others; "
        "attainment is the share of requests answered in time."
    )
    if save is None:
        after = ["penstock compare --save demo", "    leaves this problem and its plan in demo/"]
    else:
        after = [
            f"penstock plan {save}/problem.json --explain",
            "    plans it again, and says what limits each model",
            f"penstock simulate {save}/problem.json --plan {save}/plan.json",
            "    serves its traffic with the plan: every model, every group",
        ]
    return "\n".join(
        [
            intro,
            "",
            *columns(rows),
            "",
            "An example chosen to show what parallel groups are for; penstock compare judges a problem of yours.",
            "",
            "Next:",
            *(f"  {line}" for line in after),
        ]
    )
