"""The experts' commands: `penstock moe replicate`, and `profile`, which has a file of its own.

Heavy imports stand in the functions: --help needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moe.profile_command import OpenModel, make_profile_command
from placement.errors import InputError

if TYPE_CHECKING:
    from moe.expert_placement import ExpertPlacement
    from moe.pool import Pool
    from moe.replication import Policy

MOST_SLOTS = 10_000_000
"""Of all layers."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_moe_commands(app: typer.Typer, open_model: OpenModel) -> None:
    """Hang `moe` into the program; `open_model` runs what is to be profiled."""
    moe = typer.Typer(help="Experts and their replicas.", no_args_is_help=True, rich_markup_mode=None)
    moe.command()(replicate)
    moe.command()(make_profile_command(open_model))
    app.add_typer(moe, name="moe")


def replicate(
    loads: Annotated[Path, typer.Argument(metavar="LOADS", help="Loads [layers, experts]: .npz, .npy, .json or .csv.")],
    devices: Annotated[int, typer.Option(min=1, max=100_000, help="Devices that hold experts.")],
    slots: Annotated[int | None, typer.Option(min=1, help="Experts of a layer that fit, over all devices.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Instead of --slots: memory of each device for experts of all layers, such as 8GiB,4GiB.",
        ),
    ] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help="penstock, eplb, lina or static.")] = "penstock",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the devices are on; they count with --groups.")] = 1,
    speeds: Annotated[
        str | None, typer.Option(metavar="LIST", help="Speed of each device, such as 1,1,2,2; equal if not given.")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Groups of experts, each to stay on one node with all its replicas.")
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The placement held now: what --out or --json gave before.")
    ] = None,
    expert_bytes: Annotated[int, typer.Option(min=0, help="Weights of one expert in one layer.")] = 0,
    move_cost: Annotated[
        float, typer.Option(min=0.0, help="What a slot that changes must bring, in greatest over mean device load.")
    ] = 0.002,
    drift: Annotated[float, typer.Option(min=0.0, max=3.0, help="Sigma of what loads may become.")] = 0.3,
    steps: Annotated[int | None, typer.Option(min=0, help="Exchanges to try in each layer.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed: same placement.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the placement.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page to look at.")] = None,
    json: Json = False,
) -> None:
    """Say how many replicas each expert has, and on which devices."""
    from placement.cli.input import check_outputs, numbers

    check_outputs({"--out": out, "--report": report})

    from moe.expert_placement import read_placement
    from moe.loads import read_loads
    from moe.replicate import replicate as run
    from moe.replication import Task

    read = read_loads(loads)
    layers, experts = read.load.shape
    pool = _pool(devices, slots, memory, nodes, expert_bytes, layers, experts)
    held = None if previous is None else read_placement(previous)
    chosen = _policy(policy, move_cost=move_cost, drift=drift, steps=steps, seed=seed)
    if speeds is not None:
        pool = pool.with_speeds(numbers("--speeds", speeds))
    task = Task(read.load, pool, read.history, held, groups)
    outcome = run(task, chosen, drift, expert_bytes)
    if nodes > 1 and groups is None:
        typer.echo("--nodes: changes nothing without --groups, which keeps experts on nodes", err=True)
    summary: dict[str, Any] = {"policy": policy, **outcome.summary()}
    if out is not None:
        from placement.files import write_json

        write_json(out, {"placement": outcome.placement.lists(), **summary})
    if report is not None:
        from moe.report import write_report
        from reports import command_line

        write_report(report, task, outcome, policy, command_line())
    if json:
        from placement.files import encode_json

        typer.echo(encode_json({**summary, "placement": outcome.placement.lists()}).decode())
    else:
        typer.echo(_text(summary, outcome.placement))


def _pool(
    devices: int,
    slots: int | None,
    memory: str | None,
    nodes: int,
    expert_bytes: int,
    layers: int,
    experts: int,
) -> Pool:
    from moe.pool import Pool
    from moe.replicate import memory_pool
    from placement.cli.input import names
    from placement.units import parse_bytes

    if (slots is None) == (memory is None):
        raise InputError("--slots or --memory: give one of the two")
    if memory is not None:
        try:
            sizes = [int(parse_bytes(part)) for part in names(memory)]
        except ValueError as error:
            raise InputError(f"--memory: {error}") from error
        if len(sizes) != devices or expert_bytes == 0:
            raise InputError(f"--memory: {len(sizes)} sizes for {devices} devices, with --expert-bytes {expert_bytes}")
        pool = memory_pool(sizes, expert_bytes, layers, experts, nodes)
    else:
        assert slots is not None
        if slots > devices * experts:
            raise InputError(
                f"--slots {slots}: at most {devices * experts} are of use for {experts} experts on {devices} devices"
            )
        pool = Pool.even(devices, slots, nodes)
    if layers * pool.total > MOST_SLOTS:
        raise InputError(f"{pool.total} slots in each of {layers} layers: at most {MOST_SLOTS} in all are planned")
    return pool


def _policy(name: str, **options: Any) -> Policy:
    from moe.replication import Penstock, policy_named

    return Penstock(**options) if name == "penstock" else policy_named(name)


def _text(summary: dict[str, Any], placement: ExpertPlacement) -> str:
    replicas = placement.replicas
    return "\n".join(
        [
            f"balancedness  {summary['balancedness']:.4f} (before {summary['balancedness_before']:.4f}), worst layer"
            f" {summary['worst_layer']:.4f}; {summary['balancedness_even']:.4f} if tokens were split evenly",
            f"under drift   {summary['balancedness_drift']:.4f} (before {summary['balancedness_drift_before']:.4f}),"
            f" expected gain {100 * summary['expected_gain']:.1f}% of the greatest device load",
            f"replicas      {int((replicas > 1).sum(axis=1).mean())} experts of a layer have several, the most"
            f" {int(replicas.max())}; {placement.expert.shape[1]} slots on {placement.devices} devices",
            f"moves         {summary['copies']} experts, {summary['bytes_moved']} bytes; planned in"
            f" {summary['seconds']:.3f} s",
        ]
    )
