"""The page about one plan: where it puts the models and what came of serving a workload with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placement.files import replace_file
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import Problem, Slo
from placement.report.figures import MOST_MODELS, latencies, requests_over_time, utilisation
from placement.report.picture import plan_picture
from reports import Page, percent, seconds


def write_plan_report(path: Path, problem: Problem, plan: Plan, outcome: Outcome, command: str) -> None:
    """One page, nothing outside it needed. `command` is what the user typed to get it."""
    summary = outcome.summary()
    page = Page(f"Plan for {len(problem.models)} models on {len(problem.cluster.devices)} devices")
    worst, share = outcome.worst_model
    page.facts(
        [
            ("attainment", percent(outcome.attainment)),
            (f"worst model: {worst}", percent(share)),
            ("goodput, requests per second", f"{summary['goodput']:.4g}"),
            ("latency, median", seconds(summary["latency"]["p50"])),
            ("latency, p99", seconds(summary["latency"]["p99"])),
        ]
    )
    page.heading("The plan on its devices", "Each group runs all its models with one shape (tp ways, pp stages).")
    page.picture(plan_picture(problem.cluster, plan))
    _groups(page, plan, summary)
    _models(page, problem, summary)
    page.heading("Latency of each model", "Of the requests that were served, from arrival to answer.")
    if len(problem.models) > MOST_MODELS:
        page.paragraph(f"The {MOST_MODELS} models with the lowest attainment.")
    page.figure(latencies(outcome))
    page.heading("Work over time", "The share of time that the stages of each group had work.")
    if any(model.generates for model in problem.models):
        page.paragraph("A request that generates counts as work from its first step to its last.")
    page.figure(utilisation(outcome), height=min(140 + 24 * len(plan.groups), 1200))
    page.heading("Requests over time", "By when they arrived and what became of them.")
    page.figure(requests_over_time(outcome))
    _reasons(page, problem, summary)
    _inputs(page, problem, plan, outcome, command)
    replace_file(path, page.html().encode())


def _groups(page: Page, plan: Plan, summary: dict[str, Any]) -> None:
    page.heading("Groups")
    parks = any(group.parked for group in plan.groups)
    rows = []
    for index, (group, entry) in enumerate(zip(plan.groups, summary["groups"], strict=True)):
        devices, models = " ".join(group.devices), ", ".join(group.models)
        work = [entry["requests"], entry["batches"], percent(entry["utilisation"])]
        parked = [", ".join(group.parked)] if parks else []
        rows.append([f"G{index}", f"tp {group.tp}, pp {group.pp}", devices, *work, models, *parked])
    header = ["group", "shape", "devices", "requests", "batches", "utilisation", "models"]
    page.table([*header, "parked"] if parks else header, rows)


def _models(page: Page, problem: Problem, summary: dict[str, Any]) -> None:
    page.heading(
        "Models",
        "Attainment is the share of requests answered within their SLO; refused ones count as missed.",
    )
    header = "model, requests, attainment, target, SLO, replicas, mean, p50, p90, p99, queue p99, goodput/s"
    rows = []
    for model in problem.models:
        entry = summary["models"][model.name]
        times = [seconds(entry["latency"][key]) for key in ("mean", "p50", "p90", "p99")]
        rows.append(
            [
                model.name,
                entry["requests"],
                percent(entry["attainment"]),
                percent(model.target),
                _slo(model.slo),
                entry["replicas"],
                *times,
                seconds(entry["queue"]["p99"]),
                f"{entry['goodput']:.4g}",
            ]
        )
    page.table(header.split(", "), rows)


def _reasons(page: Page, problem: Problem, summary: dict[str, Any]) -> None:
    page.heading("Why requests were not served")
    reasons = [reason for reason in summary["reasons"] if reason != "served"]
    if not reasons:
        page.paragraph("All were served.")
        return
    rows: list[list[object]] = [["all", *(summary["reasons"][reason] for reason in reasons)]]
    for model in problem.models:
        counts = summary["models"][model.name]["reasons"]
        if set(counts) & set(reasons):
            rows.append([model.name, *(counts.get(reason, 0) for reason in reasons)])
    page.table(["model", *reasons], rows)


def _inputs(page: Page, problem: Problem, plan: Plan, outcome: Outcome, command: str) -> None:
    workload = outcome.workload
    rows: list[tuple[str, object]] = [
        ("nodes", ", ".join(f"{n.name} ({n.devices} x {n.kind})" for n in problem.cluster.nodes)),
        ("models", len(problem.models)),
        ("requests served here", len(workload)),
        ("their duration", seconds(workload.duration)),
        ("overhead of a request", seconds(problem.overhead)),
        ("objective", problem.objective),
        *((f"planner: {name}", _plain(value)) for name, value in plan.planner.items()),
    ]
    page.made_by(command, rows)


def _slo(slo: Slo) -> str:
    parts = {"": slo.end_to_end, "TTFT ": slo.ttft, "TPOT ": slo.tpot}
    return ", ".join(f"{name}{seconds(value)}" for name, value in parts.items() if value != float("inf"))


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(map(_plain, value)) if isinstance(value, list) else str(value)
