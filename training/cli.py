"""The training queue's commands: `penstock train simulate` and `penstock train policies`.

Heavy imports stand in the functions: --help needs none of them.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placement.errors import InputError
from training.cli_queue import add_queue_commands

if TYPE_CHECKING:
    from training.fleet import Fleet
    from training.jobs import Job
    from training.outcome import Outcome
    from training.speeds import Speeds

TUNING = ("pollux", "sia")
"""Policies that let jobs choose their batch size."""
GROWING = (*TUNING, "lyra", "optimus", "penstock", "themis")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_train_commands(app: typer.Typer) -> None:
    """Hang `train` into the program."""
    train = typer.Typer(help="The training queue.", no_args_is_help=True, rich_markup_mode=None)
    train.command()(simulate)
    train.command()(policies)
    add_queue_commands(train)
    app.add_typer(train, name="train")


def simulate(
    jobs: Annotated[Path, typer.Option(metavar="JOBS", help="jobs.csv (.gz) or jobs.yaml.")],
    policy: Annotated[str, typer.Option(metavar="NAME", help="See penstock train policies.")] = "penstock",
    gpus: Annotated[int | None, typer.Option(min=1, help="So many devices of one kind, on one node.")] = None,
    cluster: Annotated[Path | None, typer.Option(metavar="FILE", help="The cluster of a problem file.")] = None,
    objective: Annotated[str | None, typer.Option(metavar="NAME", help="Of policy gavel.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict/--backfill", help="Whether a job that does not fit blocks those behind it.")
    ] = False,
    speed: Annotated[
        list[str] | None, typer.Option(metavar="KIND=X", help="A worker's speed on a kind; several times.")
    ] = None,
    inference: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="time,servers that traffic needs: the rest is lent.")
    ] = None,
    lend: Annotated[str | None, typer.Option(metavar="KIND", help="The kind whose nodes are inference's.")] = None,
    reclaim: Annotated[str, typer.Option(metavar="RULE", help="cost, fewest-jobs or random.")] = "cost",
    throughputs: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="JOBS is a Gavel trace; its table of throughputs.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(metavar="DIR", help="JOBS is a Pollux workload; the applications' profiles.")
    ] = None,
    error: Annotated[float, typer.Option(min=0.0, help="Sigma of log-normal noise on known durations.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn at random.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write one row a job.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page to look at.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write its figures as a picture.")] = None,
    json: Json = False,
) -> None:
    """Run a queue of training jobs on simulated time."""
    from placement.cli.input import check_outputs

    check_outputs({"--out": out, "--report": report, "--png": png})

    from training.demand import read_demand
    from training.estimates import with_error
    from training.policies import policy_named
    from training.simulator import World
    from training.simulator import simulate as run

    options: dict[str, Any] = {"strict": True} if strict else {}
    if objective is not None:
        options["objective"] = objective
    chosen = policy_named(policy, **options)
    if error > 0 and chosen.information == "oracle":
        options["information"] = "predicted"
        chosen = policy_named(policy, **options)
    fleet = _fleet(gpus, cluster, speed or [], lend)
    if (inference is None) != (lend is None):
        raise InputError("--inference and --lend: loans need both, the demand and the kind of its nodes")
    demand = None if inference is None else read_demand(inference)
    read, speeds = _jobs(jobs, throughputs, profiles, policy)
    world = World(fleet, demand, _rule(reclaim), speeds, seed)
    outcome = run(read, world, chosen, with_error(read, error, seed))
    if out is not None:
        from training.outcome_file import write_jobs

        write_jobs(out, outcome)
    if report is not None or png is not None:
        from reports import command_line
        from training.report import write_report

        inputs = [("jobs", jobs), ("devices", len(fleet.cluster.devices)), ("policy", policy), ("seed", seed)]
        inputs += [(f"option {name}", value) for name, value in options.items()]
        write_report(report, png, outcome, command_line(), inputs)
    summary = outcome.summary()
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(summary).decode())
    else:
        typer.echo(_text(outcome, summary))


def policies(json: Json = False) -> None:
    """The policies, what each may know, and its options."""
    from training.policies import ENTRIES, policy_named

    entries = {name: policy_named(name) for name in ENTRIES}
    if json:
        import msgspec

        rows = {
            name: {
                "rule": ENTRIES[name].rule,
                "information": policy.information,
                "options": [option.name for option in fields(policy)],  # type: ignore[arg-type]  # all are dataclasses
            }
            for name, policy in entries.items()
        }
        typer.echo(msgspec.json.encode(rows).decode())
        return
    from placement.text import columns

    table = [["policy", "knows", "rule"]]
    table += [[name, policy.information, ENTRIES[name].rule] for name, policy in entries.items()]
    typer.echo("\n".join(columns(table)))


def _jobs(path: Path, throughputs: Path | None, profiles: Path | None, policy: str) -> tuple[list[Job], Speeds]:
    """The jobs of a file of ours, of Gavel's or of Pollux', and how fast they run."""
    from training.speeds import CurveSpeeds

    if throughputs is not None and profiles is not None:
        raise InputError(
            "--throughputs and --profiles: a file is a Gavel trace or a Pollux workload; give one of the two"
        )
    if profiles is not None:
        from training.pollux_trace import read_pollux

        return read_pollux(path, profiles, tuned=policy in TUNING, elastic=policy in GROWING)
    if throughputs is not None:
        from training.gavel_trace import read_gavel

        return read_gavel(path, throughputs), CurveSpeeds()
    from training.job_files import read_jobs

    return read_jobs(path), CurveSpeeds()


def _fleet(gpus: int | None, cluster: Path | None, speeds: list[str], lend: str | None) -> Fleet:
    from training.fleet import Fleet, read_cluster

    if (gpus is None) == (cluster is None):
        raise InputError("--gpus and --cluster: give one of the two")
    known: dict[str, float] = {}
    for text in speeds:
        kind, _, value = text.partition("=")
        try:
            known[kind] = float(value)
        except ValueError as error:
            raise InputError(f"--speed {text!r}: expected a kind and a number, such as t4=0.33") from error
    made = Fleet.of(gpus) if gpus is not None else Fleet(read_cluster(cluster)) if cluster is not None else None
    assert made is not None
    if lend is not None and lend not in made.kinds:
        raise InputError(f"--lend {lend!r}: the cluster has {', '.join(made.kinds)}")
    lendable = frozenset(node.name for node in made.cluster.nodes if node.kind == lend)
    return Fleet(made.cluster, known, lendable=lendable)


def _rule(name: str) -> Any:
    from training.loans import RULES

    if name not in RULES:
        raise InputError(f"--reclaim {name!r}: no such rule; give one of {', '.join(RULES)}")
    return name


def _text(outcome: Outcome, summary: dict[str, Any]) -> str:
    from placement.text import columns, percent

    table = [["seconds", "mean", "median", "p95", "p99"]]
    for label, key in (("completion", "jct"), ("queueing", "queue")):
        table.append([label, *(f"{summary[f'{name}_{key}']:.1f}" for name in ("mean", "median", "p95", "p99"))])
    facts = [
        f"makespan     {summary['makespan']:.1f} s for {summary['jobs']} jobs under {outcome.policy}",
        f"preemptions  {summary['preemptions']}, {summary['preempted_jobs']} jobs; migrations {summary['migrations']}",
        f"utilization  {percent(summary['utilization'])} of the devices open to training",
    ]
    return "\n".join([*columns(table), "", *facts])
