"""The planner's commands: plan, simulate, compare.

Heavy imports stand in the functions: --help needs none of them.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placement.cli.input import (
    budget_seconds,
    check_outputs,
    check_problem,
    make_folder,
    names,
    numbers,
    policy_named,
    rule_named,
    share,
    whole,
)
from placement.cli.views import demo_text, outcome_text, plan_summary, plan_text
from placement.errors import InputError

if TYPE_CHECKING:
    from placement.planner import Policy
    from placement.rules import Rule

DEMO_DRAWS = 4
"""Other draws of its traffic that the built-in problem's plans are judged on."""
FIRST_DEMO_DRAW = 100
"""Seeds from here on: the problem was chosen looking at those below."""

OnProgress = Callable[[float, str], None]

ProblemFile = Annotated[Path, typer.Argument(metavar="PROBLEM", help="problem.json or problem.yaml")]
Dispatch = Annotated[str, typer.Option(metavar="RULE", help="deadline or shortest-queue.")]
MaxBatch = Annotated[int, typer.Option(min=1, max=1024, help="Largest batch, under the rule deadline.")]
Seed = Annotated[int, typer.Option(min=0, help="Same seed and --steps: same plan.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Report = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page to look at.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Plans to try (policy penstock).")]


def add_commands(app: typer.Typer) -> None:
    for command in (plan, simulate, compare):
        app.command()(command)


def plan(
    problem: ProblemFile,
    policy: Annotated[
        str, typer.Option(help="penstock, or a baseline: alpaserve, replication, round-robin.")
    ] = "penstock",
    dispatch: Dispatch = "deadline",
    max_batch: MaxBatch = 16,
    devices: Annotated[int | None, typer.Option(min=1, help="Plan for the first so many devices.")] = None,
    steps: Steps = None,
    budget: Annotated[str | None, typer.Option(metavar="10s", help="Time to search for, instead of --steps.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="plan.json", help="Write the plan.")] = None,
    report: Report = None,
    seed: Seed = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what limits each model, and what more devices would bring.")
    ] = False,
    previous: Annotated[
        Path | None, typer.Option(metavar="plan.json", help="Plan from this one on (policy penstock).")
    ] = None,
    move_cost: Annotated[
        float, typer.Option(min=0.0, help="Attainment that a replica moved from --previous must bring.")
    ] = 0.0,
    apply: Annotated[
        str | None, typer.Option(metavar="URL", help="Let the server there, which serves these models, take it up.")
    ] = None,
    json: Json = False,
) -> None:
    """Search the best plan for a problem."""
    effort_s = budget_seconds(steps, budget)
    if previous is not None and policy != "penstock":
        raise InputError(f"--previous: policy {policy!r} starts anew each time; only penstock keeps to a plan")
    if move_cost and previous is None:
        raise InputError("--move-cost: what moves is told by --previous; give both")
    if not math.isfinite(move_cost):
        raise InputError(f"--move-cost {move_cost}: expected a finite number, 0 or more")
    check_outputs({"--out": out, "--report": report})

    from placement.files import read_document
    from placement.plan import Plan, write_plan
    from placement.planner import default_steps, make_plan
    from placement.problem import read_problem
    from placement.search.effort import Effort
    from placement.simulate import simulate as serve

    chosen, rule = policy_named(policy), rule_named(dispatch)
    read = read_problem(problem)
    if devices is not None:
        read = read.with_devices(devices)
    check_problem(read, problem)
    before = None if previous is None else read_document(previous, Plan)
    compile_s = _warm_up(chosen, rule, any(model.generates for model in read.models))
    with _progress("planning") as on_progress:
        effort = Effort(
            steps=None if effort_s is not None else steps or default_steps(read),
            seconds=effort_s,
            on_progress=lambda share, best: on_progress(share, f"best so far {best:.4f}"),
        )
        found = make_plan(
            read,
            chosen,
            rule=rule,
            max_batch=max_batch,
            effort=effort,
            seed=seed,
            previous=before,
            move_cost=move_cost,
        )
    if out is not None:
        write_plan(out, found)
    if apply is not None:
        from placement.cli.admin import ask_admin
        from placement.files import encode_json

        ask_admin(apply, "/admin/plan", encode_json(found))
    outcome = serve(read, found, rule=rule, max_batch=max_batch)
    if report is not None:
        from placement.report import write_plan_report
        from reports import command_line

        write_plan_report(report, read, found, outcome, command_line())
    explanation = None
    if explain:
        from placement.explain import explain as explain_plan

        explanation = explain_plan(read, found, outcome, rule, max_batch)
    if json:
        summary = plan_summary(found, outcome) | {"compile_seconds": compile_s}
        if explanation is not None:
            summary["explanation"] = explanation.summary()
        _print_json(summary)
        return
    typer.echo(plan_text(read, found, outcome, compile_s))
    if explanation is not None:
        typer.echo("\n" + explanation.text())
    for what, where in (("plan", out), ("report", report), ("applied to", apply)):
        if where is not None:
            typer.echo(f"{what:11}  {where}")


def simulate(
    problem: ProblemFile,
    plan: Annotated[Path, typer.Option(metavar="plan.json", help="The plan to serve with.")],
    workload: Annotated[
        Path | None, typer.Option(metavar="eval.npz", help="Other arrivals than the problem's.")
    ] = None,
    dispatch: Dispatch = "deadline",
    max_batch: MaxBatch = 16,
    requests: Annotated[
        Path | None, typer.Option(metavar="out.npz", help="Write one row a request: what became of it.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve a workload with a plan, on simulated time."""
    check_outputs({"--requests": requests})

    from placement.outcome import write_requests
    from placement.plan import read_plan
    from placement.problem import read_problem
    from placement.simulate import simulate as serve

    rule = rule_named(dispatch)
    read = read_problem(problem, workload)
    outcome = serve(read, read_plan(plan, read), rule=rule, max_batch=max_batch)
    if requests is not None:
        write_requests(requests, outcome)
    summary = outcome.summary() | {"dispatch": rule, "max_batch": max_batch}
    if json:
        _print_json(summary)
    else:
        typer.echo(outcome_text(summary))


def compare(
    problem: Annotated[
        Path | None, typer.Argument(metavar="[PROBLEM]", help="problem.json or problem.yaml; a built-in one if absent.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="A,B", help="Policies, and clockwork (a bound); all by default.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option(metavar="0.5,1,2", help="Times the recorded rate; none leaves an axis out.")
    ] = None,
    cvs: Annotated[str | None, typer.Option(metavar="1,4", help="Burstiness: CV of the gaps.")] = None,
    slo_scales: Annotated[str | None, typer.Option(metavar="1,2", help="Times each SLO.")] = None,
    devices: Annotated[str | None, typer.Option(metavar="4,8", help="The first so many devices.")] = None,
    at: Annotated[str, typer.Option(metavar="99%", help="The attainment that counts as holding.")] = "99%",
    workload: Annotated[
        list[Path] | None,
        typer.Option(metavar="eval.npz", help="Arrivals to judge plans on; may be given several times."),
    ] = None,
    max_batch: MaxBatch = 16,
    steps: Steps = None,
    seed: Seed = 0,
    report: Report = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write the curves as a picture.")] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave the built-in problem and its plan in this folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare policies over rate, burstiness, SLO scale and devices."""
    check_outputs({"--report": report, "--png": png})
    lists = {"rates": rates, "cvs": cvs, "slo_scales": slo_scales}
    asked: dict[str, Any] = {
        name: numbers(f"--{name.replace('_', '-')}", value) for name, value in lists.items() if value is not None
    }
    if devices is not None:
        asked["devices"] = [whole("--devices", value) for value in numbers("--devices", devices)]
    if policies is not None:
        asked["policies"] = names(policies)
    if steps is not None:
        asked["steps"] = steps

    if problem is None:
        if asked or workload or report or png:
            raise InputError("PROBLEM: missing; only the plain comparison has a built-in one")
        _compare_example(save, json)
        return
    if save is not None:
        raise InputError("--save: leaves the built-in problem, but a PROBLEM is given; leave one out")

    from placement.compare import compare_policies
    from placement.problem import read_problem
    from placement.workload import read_workload

    read = read_problem(problem)
    for count in asked.get("devices", []):
        read.with_devices(count)  # refuses what the cluster does not have
    check_problem(read, problem)
    asked["held_out"] = [read_workload(path, len(read.models)) for path in workload or []]
    with _progress("comparing") as on_progress:
        comparison = compare_policies(
            read, at=share("--at", at), max_batch=max_batch, seed=seed, on_progress=on_progress, **asked
        )
    if report is not None:
        from placement.report import write_comparison_report
        from reports import command_line

        write_comparison_report(report, comparison, command_line())
    if png is not None:
        from placement.report import write_comparison_png

        write_comparison_png(png, comparison)
    if json:
        _print_json(comparison.summary())
    else:
        typer.echo(comparison.text(), nl=False)
        for path in (report, png):
            if path is not None:
                typer.echo(f"\nwritten: {path}")


def _compare_example(save: Path | None, json: bool) -> None:
    """Plan a small built-in problem by every policy and compare them."""
    if save is not None:
        make_folder("--save", save)

    from placement.compare import compare_policies
    from placement.example import DURATION_S, example_problem, write_example
    from placement.plan import write_plan
    from placement.planner import POLICIES

    problem = example_problem()
    draws = [example_problem(seed).workload for seed in range(FIRST_DEMO_DRAW, FIRST_DEMO_DRAW + DEMO_DRAWS)]
    with _progress("planning (the first time, compiling)") as on_progress:
        comparison = compare_policies(
            problem,
            policies=POLICIES,
            rates=(),
            cvs=(),
            slo_scales=(),
            devices=(),
            held_out=draws,
            on_progress=on_progress,
        )
    if save is not None:
        write_example(save)
        write_plan(save / "plan.json", comparison.plans["penstock"])
    if json:
        _print_json(comparison.summary())
    else:
        typer.echo(demo_text(problem, DURATION_S, comparison, save))


def _warm_up(policy: Policy, rule: Rule, generates: bool) -> float:
    """Compile, or read from the cache, what planning will call; returns the seconds it took."""
    from placement.example import tiny_problem
    from placement.planner import make_plan
    from placement.search.effort import Effort

    with _progress("compiling (once)"):
        started = time.perf_counter()
        make_plan(tiny_problem(generates), policy, rule=rule, effort=Effort(steps=1))
        return time.perf_counter() - started


@contextmanager
def _progress(what: str) -> Iterator[OnProgress]:
    """A bar on stderr while the block runs, where somebody is looking."""
    if not sys.stderr.isatty():
        yield lambda share, note: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda share, note: bar.update(task, total=1.0, completed=share, note=note)


def _print_json(value: dict[str, Any]) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())
