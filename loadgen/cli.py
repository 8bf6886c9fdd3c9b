"""`penstock load`. Heavy imports stand in the functions: --help needs none of them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.errors import TrafficError

if TYPE_CHECKING:
    from loadgen.client.run import Outcome
    from loadgen.load_test import LoadTest, Target
    from loadgen.max_rate import MaxRate
    from loadgen.traffic_options import TrafficOptions

INTERRUPTED = 130


def add_load_command(app: typer.Typer) -> None:
    app.command()(load)


def load(
    url: Annotated[str, typer.Option(help="The endpoint, such as http://127.0.0.1:8000.")],
    more_goals: Annotated[list[str] | None, typer.Argument(metavar="GOAL", help="More goals of --goodput.")] = None,
    rate: Annotated[str, typer.Option(help="Requests a second, of all models together (10).")] = "",
    cv: Annotated[str, typer.Option(help="Of a model's gaps, or NAME=CV,... (1: Poisson).")] = "",
    duration: Annotated[str, typer.Option(help="How long to send, or each stage (60s).")] = "",
    models: Annotated[str, typer.Option(help="NAME,... (all that are served).")] = "",
    mix: Annotated[str, typer.Option(help="NAME=SHARE,... of the rate (the same for all).")] = "",
    slo: Annotated[
        str, typer.Option(help="200ms, or TTFT/TPOT such as 500ms/50ms, or NAME=...; the server is told.")
    ] = "",
    goodput: Annotated[str, typer.Option(help="Goals such as ttft:500 tpot:50 e2el:2000, in ms.")] = "",
    prompt_tokens: Annotated[
        str, typer.Option(help="128, or mean~cv:min-max such as 128~0.8:16-1024, or NAME=... (128).")
    ] = "",
    output_tokens: Annotated[str, typer.Option(help="In the same form (32).")] = "",
    stages: Annotated[str, typer.Option(help="Steps RATE[:CV[:DURATION]],... one after the other.")] = "",
    trace: Annotated[
        str, typer.Option(help="Replay a trace: a file (.csv, .csv.gz, .npz), azure-code, azure-conv or servegen.")
    ] = "",
    trace_start: Annotated[str, typer.Option(help="Begin so far into the trace.")] = "",
    rate_scale: Annotated[str, typer.Option(help="Times the rate of the trace.")] = "",
    cv_scale: Annotated[str, typer.Option(help="Times the cv of the trace, in windows of a minute.")] = "",
    stream: Annotated[bool, typer.Option(help="Ask for answers token by token.")] = True,
    api: Annotated[str, typer.Option(help="For models that generate: completions or chat.")] = "completions",
    kind: Annotated[str, typer.Option(help="generate or embed, or NAME=..., where the server does not say.")] = "",
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of exactly the length drawn.")] = True,
    api_key: Annotated[str, typer.Option(envvar="PENSTOCK_API_KEY", help="Sent as a bearer token.")] = "",
    find_max_rate: Annotated[
        bool, typer.Option("--find-max-rate", help="Search the largest rate held, from --rate on.")
    ] = False,
    at: Annotated[str, typer.Option(help="Share within --slo (else --goodput) at which a rate is held (99%).")] = "",
    timeout: Annotated[str, typer.Option(help="After which an answer is given up.")] = "120s",
    max_open: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 8000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed: same requests at the same times.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with plots.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write the plots as a picture.")] = None,
    requests: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write a row a request.")] = None,
) -> None:
    """Send open-loop traffic to an endpoint and judge the answers."""
    for option, path in (("--report", report), ("--png", png), ("--requests", requests)):
        if path is not None and not path.absolute().parent.is_dir():
            raise TrafficError(f"{option} {path}: its folder does not exist; make it first")
    if more_goals and not goodput:
        raise TrafficError(f"{more_goals[0]!r}: not understood; options begin with --")

    from loadgen.client.limits import Limits
    from loadgen.client.open_file_limit import room_for
    from loadgen.client.search import search
    from loadgen.load_test import LoadTest, look_at
    from loadgen.named_traces import find_trace
    from loadgen.option_text import seconds, share
    from loadgen.results.goals import goodput_goal
    from loadgen.stages import stages_from
    from loadgen.target.asks import check_api
    from loadgen.target.url import parse_url
    from loadgen.traffic_options import TrafficOptions

    traffic = TrafficOptions(
        rate=rate, cv=cv, duration=duration, models=models, mix=mix, slo=slo, kind=kind, prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, trace=trace, trace_start=trace_start, rate_scale=rate_scale, cv_scale=cv_scale,
        stages=stages, seed=seed,
    )  # fmt: skip
    test = LoadTest(
        url=parse_url(url),
        traffic=traffic,
        goodput=goodput_goal([goodput, *(more_goals or [])]),
        api=check_api(api),
        stream=stream,
        ignore_eos=ignore_eos,
        api_key=api_key,
        limits=Limits(timeout_s=seconds(timeout, "--timeout"), open=room_for(max_open)),
    )
    found: MaxRate | None = None
    if find_max_rate:
        if trace or stages:
            raise TrafficError("--find-max-rate: it chooses the rates itself; leave --trace and --stages out")
        if not slo and test.goodput is None:
            raise TrafficError("--find-max-rate: nothing says what a held rate is; give --slo, or --goodput")
    elif at:
        raise TrafficError("--at: goes with --find-max-rate; give both")
    if trace:  # what is wrong is said before anybody is asked anything
        find_trace(trace)
    else:
        stages_from(traffic)
    wanted = share(at or "99%", "--at")
    target = look_at(test)
    if find_max_rate:
        on_probe = _say_probe if not json or sys.stderr.isatty() else None
        searched = search(partial(_run, test, target), traffic, wanted, on_probe)
        outcome, found = searched.outcome, searched.found
    else:
        outcome = _run(test, target, traffic)
    _tell(outcome, found, json)
    if requests is not None:
        outcome.columns.write(requests)
    if report is not None or png is not None:
        from loadgen.report.html_report import make_report, write_file
        from reports import command_line

        page = make_report(outcome, found, command_line())
        if report is not None:
            write_file(report, page.html().encode())
        if png is not None:
            write_file(png, page.png())
    if code := _exit_code(outcome, found):
        raise typer.Exit(code)


def _run(test: LoadTest, target: Target, traffic: TrafficOptions) -> Outcome:
    from loadgen.client.run import run_once
    from loadgen.report.progress import progress

    with progress() as watcher:
        return run_once(test, target, traffic, watcher)


def _exit_code(outcome: Outcome, found: MaxRate | None) -> int:
    if outcome.interrupted or (found is not None and found.limited_by == "interrupt"):
        return INTERRUPTED
    is_good = outcome.summary.valid if found is None else found.rate is not None
    return 0 if is_good else 1


def _say_probe(rate_per_s: float, share: float) -> None:
    from loadgen.report.text import percent

    typer.echo(f"{rate_per_s:.4g}/s: {percent(share)} within goals", err=True)


def _tell(outcome: Outcome, found: MaxRate | None, json: bool) -> None:
    if json:
        import msgspec

        told = msgspec.to_builtins(outcome.summary)
        if found is not None:
            told["max_rate"] = msgspec.to_builtins(found)
        typer.echo(msgspec.json.encode(told).decode())
        return
    from loadgen.report.text import max_rate_text, summary_text

    if found is not None:
        typer.echo(max_rate_text(found) + "\n")
    typer.echo(summary_text(outcome.summary))
