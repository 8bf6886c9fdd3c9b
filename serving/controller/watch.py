"""`penstock status --watch`: devices, models, loans and jobs at a glance on a terminal, shown anew every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from placement.errors import InputError

REFRESH_S = 1.0
MOST_DEVICES, MOST_MODELS, MOST_JOBS, MOST_MARKS = 24, 24, 8, 6
STYLES = {"group": "bold blue", "job": "bold green", "idle": "dim", "dead": "bold red"}


def watch_status(ask: Callable[[], dict[str, Any]]) -> None:
    """Until interrupted; `ask` brings the dashboard's snapshot. A server that goes is waited for."""
    from rich.live import Live

    with Live(glance(ask()), refresh_per_second=4, screen=True) as live:
        while True:
            time.sleep(REFRESH_S)
            try:
                live.update(glance(ask()))
            except InputError as error:
                live.update(Text(f"{error}; trying again", "red"))


def glance(snapshot: dict[str, Any]) -> RenderableType:
    now = snapshot["now"]
    parts: list[RenderableType] = [_head(now), *(_trouble(one) for one in now["troubles"][:4]), _devices(now)]
    parts += [_models(now), _loans(now)]
    if now["jobs"]:
        parts.append(_jobs(now))
    parts.append(_marks(snapshot["marks"]))
    return Group(*parts)


def _head(now: dict[str, Any]) -> RenderableType:
    held = [one["kind"] for one in now["devices"]]
    rate = sum(one["rate"] for one in now["models"])
    queue, planner = now["queue"], now["planner"]
    text = Text.assemble(
        ("Penstock  ", "bold"),
        (f"{_clock(now['at'])}  "),
        (f"{held.count('group')} serving", STYLES["group"]),
        ", ",
        (f"{held.count('job')} training", STYLES["job"]),
        f", {held.count('idle')} idle, ",
        (f"{held.count('dead')} dead", STYLES["dead"] if held.count("dead") else ""),
        f"   {rate:.3g} requests/s   {queue['waiting']} waiting, {queue['running']} running",
    )
    if planner["suggestion"] is not None:
        text.append("   a better plan is suggested: penstock explain plan", "bold yellow")
    return text


def _trouble(one: dict[str, Any]) -> RenderableType:
    share = (
        "cannot be served" if one["in_time"] is None else f"{one['in_time']:.1%} in time, {one['target']:.1%} wanted"
    )
    return Text(f"{one['model']}: {share}. " + "; ".join(one["why"]), "red", overflow="ellipsis", no_wrap=True)


def _devices(now: dict[str, Any]) -> RenderableType:
    table = _table("device", "who has it", "since")
    for one in now["devices"][:MOST_DEVICES]:
        words = {"group": "group {}", "job": "job {}", "idle": "idle", "dead": "group {}, dead"}[one["kind"]]
        lent = f" (of {one['lent_by']})" if one["lent_by"] and one["kind"] != "group" else ""
        since = "" if one["since"] is None else _clock(one["since"])
        table.add_row(one["name"], Text(words.format(one["owner"]) + lent, STYLES[one["kind"]]), since)
    return Group(table, *_more(len(now["devices"]) - MOST_DEVICES, "devices"))


def _models(now: dict[str, Any]) -> RenderableType:
    table = _table("model", "in time", "req/s", "CV", "TTFT", "TPOT", "end", "open", "not served")
    worst_first = sorted(now["models"], key=lambda one: 2.0 if one["in_time"] is None else one["in_time"])
    shown = {one["name"] for one in worst_first[:MOST_MODELS]}
    for one in now["models"]:
        if one["name"] not in shown:
            continue
        share = one["in_time"]
        style = "" if share is None else "green" if share >= one["target"] else "bold red"
        table.add_row(
            one["name"],
            Text(
                "cannot be served" if one["reason"] else "-" if share is None else _judged(share, one["target"]), style
            ),
            f"{one['rate']:.3g}",
            "-" if one["cv"] is None else f"{one['cv']:.2g}",
            *(_seconds(one[name][2]) for name in ("ttft", "tpot", "latency")),
            f"{one['waiting']}+{one['running']}",
            ", ".join(f"{count} {reason}" for reason, count in one["refusals"].items()) or "-",
        )
    told = Text("of the last minute; times are p99s, open is waiting+running", "dim")
    return Group(table, told, *_more(len(now["models"]) - MOST_MODELS, "models"))


def _loans(now: dict[str, Any]) -> RenderableType:
    loans = now["loans"]
    lent = ", ".join(f"{one['group']} ({' '.join(one['devices'])}) {one['state']}" for one in loans["loans"])
    return Text(f"loans ({loans['mode']}): {lent or 'nothing is lent'}; {loans['why']}")


def _jobs(now: dict[str, Any]) -> RenderableType:
    table = _table("job", "state", "devices", "progress", "loss", "done by")
    for one in now["jobs"][:MOST_JOBS]:
        share = "-" if one["share"] is None else f"{one['share']:.0%}"
        step = f" (step {one['step'] or 0} of {one['steps']})" if one["steps"] else ""
        done = one["ended"] or one["expected"]
        loss = "-" if one["loss"] is None else f"{one['loss']:.4g}"
        devices = " ".join(one["devices"]) or "-"
        table.add_row(one["id"], one["state"], devices, share + step, loss, "-" if done is None else _clock(done))
    return Group(table, *_more(len(now["jobs"]) - MOST_JOBS, "jobs"))


def _marks(marks: list[dict[str, Any]]) -> RenderableType:
    lines = [
        Text(f"{_clock(one['at'])}  {one['title']}  {_why(one['facts'])}", overflow="ellipsis", no_wrap=True)
        for one in marks[-MOST_MARKS:]
    ]
    return Panel(Group(*reversed(lines)), title="what happened", title_align="left", box=box.SIMPLE)


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _judged(share: float, target: float) -> str:
    return f"{share:.1%} {'<' if share < target else '>='} {target:.0%}"


def _why(facts: dict[str, Any]) -> str:
    return str(facts.get("why") or facts.get("message") or facts.get("reason") or "")


def _more(count: int, what: str) -> list[RenderableType]:
    return [Text(f"and {count} {what} more", "dim")] if count > 0 else []


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")
