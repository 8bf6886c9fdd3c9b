"""What the server says of itself, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any


def status_text(status: dict[str, Any]) -> str:
    """Devices, groups, models, experts that are placed, and queue."""
    parts = [_devices(status), _groups(status), _models(status), _experts(status.get("experts", ())), _queue(status)]
    return "\n\n".join(part for part in parts if part)


def explain_text(what: str, found: dict[str, Any]) -> str:
    match what:
        case "plan":
            return _plan(found)
        case "refusals":
            rows = [
                (_clock(one["at"]), one["model"], one["class"], one["reason"], one["message"])
                for one in found["refusals"]
            ]
            return _table(("at", "model", "class", "reason", "why"), rows) if rows else "No request was refused."
        case "moves":
            moves = [(_clock(one["at"]), _subject(one), one["what"], _facts(one)) for one in found["moves"]]
            return _table(("at", "of", "what", ""), moves) if moves else "Nothing has happened yet."
        case "experts":
            return _explained_experts(found)
        case _:
            return _loans(found)


def _devices(status: dict[str, Any]) -> str:
    return _table(("device", "owner"), list(status["devices"].items()))


def _groups(status: dict[str, Any]) -> str:
    rows = []
    for group in status["groups"]:
        models = ", ".join(name + ("" if one["ready"] else " (not ready)") for name, one in group["models"].items())
        running = sum(one["running"] for one in group["models"].values())
        shape = f"tp{group['tp']} x pp{group['pp']}"
        state = group["state"] + (f" ({group['kind']})" if group["kind"] not in ("", "real") else "")
        rows.append((group["name"], " ".join(group["devices"]), shape, state, running, group["deaths"], models))
    return _table(("group", "devices", "shape", "state", "running", "deaths", "models"), rows)


def _models(status: dict[str, Any]) -> str:
    rows = []
    for name, model in status["models"].items():
        classes = {
            key.rpartition("/")[2]: one for key, one in status["classes"].items() if key.rpartition("/")[0] == name
        }
        arrivals = sum(one["arrivals"] for one in classes.values())
        met = sum(one["met"] for one in classes.values())
        refused = sum(sum(one["not_served"].values()) for one in classes.values())
        recent = [one["attainment"] for one in classes.values() if one["attainment"] is not None]
        attainment = f"{min(recent):.1%}" if recent else "-"
        rows.append((name, model["state"], " ".join(model["groups"]), arrivals, met, refused, attainment))
    table = _table(("model", "state", "groups", "requests", "in time", "not served", "last minute"), rows)
    reasons = [f"{name}: {model['reason']}" for name, model in status["models"].items() if model["reason"]]
    failed = [
        f"{name} on {group['name']}: {one['error']}"
        for group in status["groups"]
        for name, one in group["models"].items()
        if one["error"] and not status["models"][name]["reason"]
    ]
    return "\n".join([table, *reasons, *failed])


def _experts(places: Iterable[dict[str, Any]]) -> str:
    """Nothing where no experts are placed."""
    rows = []
    for one in places:
        known = one["balancedness"] is not None
        better = f"{one['possible']:.3f}" + ("" if one["worth_moving"] else " (not worth it)") if known else "-"
        now = f"{one['balancedness']:.3f}" if known else "-"
        rows.append((one["model"], one["group"], now, better, one["moves"], f"{one['moved_bytes'] / 2**20:.1f}"))
    titles = ("experts of", "group", "balancedness", "by a move", "moves", "MiB moved")
    return _table(titles, rows) if rows else ""


def _explained_experts(found: dict[str, Any]) -> str:
    parts = [f"moving experts: {found['mode']}", _experts(found["experts"]) or "No plan places experts."]
    for one in found["experts"]:
        if one["reason"]:
            parts.append(f"{one['model']} on {one['group']}: {one['reason']}")
        elif one["balancedness"] is not None:
            parts.append(
                f"{one['model']} on {one['group']}: the best move copies {one['copies']} experts if it is worth it, "
                f"brings {one['gain_s']:g} s and costs {one['cost_s']:g} s; worst layer {one['worst_layer']:.3f}"
            )
    for model, one in found["popularity"].items():
        if one["recall"] is not None:
            parts.append(
                f"{model}: of the experts chosen most {one['recall']:.0%} were foreseen; {one['variation']:.1%} of the "
                f"choices were expected elsewhere; one expert has up to {max(one['top_share']):.1%} of a layer's"
            )
    return "\n\n".join(parts)


def _loans(found: dict[str, Any]) -> str:
    """What is lent, what was weighed last, and what was decided, the latest last."""
    if "now" not in found:
        return str(found["why"])
    turns = {one["group"]: f"{turn}: {_harm(one)}" for turn, one in enumerate(found["comes_back_first"], 1)}
    lent = [
        (one["group"], " ".join(one["devices"]), one["state"], _clock(one["at"]))
        + ((turns.get(one["group"], ""),) if len(turns) > 1 else ())
        for one in found["loans"]
    ]
    weighed = [
        (
            " ".join(map(str, one["drained"])),
            f"{one['load']:.2f}",
            "-" if one["safe_for_s"] is None else f"{one['safe_for_s']:.0f} s",
            "yes" if one["open"] else "no",
            one["why"],
        )
        for one in found["now"]["rungs"]
    ]
    decided = [
        (
            _clock(one["at"]),
            f"rung {one['from']} to {one['to']}",
            " ".join(f"{name}: {took:.2f} s" for name, took in one.get("returned_s", {}).items()),
            one.get("missed", ""),
            "; ".join([one["why"], *(f"{victim['group']}: {_harm(victim)}" for victim in one.get("victims", ()))]),
        )
        for one in found["decisions"]
    ]
    parts = [
        f"lending: {found['mode']}; {found['lent_device_s']:.0f} device-seconds lent so far",
        _table(("group", "devices", "state", "since", "comes back")[: len(lent[0])], lent)
        if lent
        else "Nothing is lent.",
    ]
    if weighed:
        parts.append(_table(("without groups", "demand", "safe for", "can be lent", "why"), weighed))
        parts.append(
            f"devices come back within {found['comes_back_within_s']:g} s; "
            f"a surge that finds them lent makes {found['missed_by_a_surprise']:g} requests late"
        )
    else:
        parts.append("No group can be drained with every model still covered, so nothing can be lent.")
    if decided:
        parts.append(_table(("at", "decided", "back after", "late", "why"), decided))
    return "\n\n".join(parts)


def _harm(victim: dict[str, Any]) -> str:
    """What the return of a group does to training."""
    if not victim["workers"]:
        return "nobody uses it"
    if not victim["preempted"]:
        return "its jobs shrink"
    stopped = f"stops {', '.join(victim['preempted'])}"
    return f"{stopped}, cost {victim['cost']:.2g}, last checkpoint {victim['unsaved_s']:.0f} s ago"


def _queue(status: dict[str, Any]) -> str:
    queue = status["queue"]
    text = f"{queue['waiting']} waiting, {queue['running']} running; plan: {status['plan']['why']}"
    return text + ("\na better plan is suggested: penstock explain plan" if status.get("suggested") else "")


def _plan(found: dict[str, Any]) -> str:
    rows = [
        (index, " ".join(group["devices"]), f"tp{group['tp']} x pp{group['pp']}", ", ".join(group.get("models", ())))
        for index, group in enumerate(found["plan"]["groups"])
    ]
    inputs = [
        (name, one["planned_rate_per_s"], f"{one['target']:.1%}", _facts(one["slo"]), ", ".join(one["sources"]))
        for name, one in found["inputs"].items()
    ]
    predicted = found["predicted"]
    parts = [
        f"{found['why']} ({_clock(found['at'])})",
        _table(("group", "devices", "shape", "models"), rows),
        _table(("model", "planned rate/s", "target", "slo (s)", "profile"), inputs),
    ]
    if "attainment" in predicted:
        worst, share = predicted["worst_model"]
        parts.append(
            f"expected: {predicted['attainment']:.2%} of requests in time; worst model {worst}: {share:.2%}; "
            f"no plan exceeds {predicted['upper_bound']:.2%}"
        )
    if found["alternatives"]:
        weighed = [
            (
                _groups_of(one["groups"]),
                f"{one['attainment']:.2%}",
                f"{one['worst_model'][0]}: {one['worst_model'][1]:.2%}",
            )
            for one in found["alternatives"]
        ]
        parts.append(_table(("weighed instead", "in time", "worst model"), weighed))
    parts.extend(f"not as planned: {where}: {reason}" for where, reason in found["not_as_planned"].items())
    suggested = found.get("suggested")
    if suggested is not None:
        now, then = suggested["now"], suggested["then"]
        parts.append(
            f"suggested on the last {suggested['requests']} requests: attainment {now['attainment']:.2%} would be "
            f"{then['attainment']:.2%}, shortfall {now['shortfall']:.2%} would be {then['shortfall']:.2%}"
        )
    return "\n\n".join(parts)


def _groups_of(groups: list[dict[str, Any]]) -> str:
    """Alike ones together."""
    alike = Counter(f"tp{one['tp']} x pp{one['pp']} with {', '.join(one['models'])}" for one in groups)
    return "; ".join(f"{count} of {what}" for what, count in alike.items())


def _clock(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _subject(move: dict[str, Any]) -> str:
    return next((f"{kind} {move[kind]}" for kind in ("plan", "replan", "loan", "model", "group") if kind in move), "")


def _facts(facts: dict[str, Any]) -> str:
    hidden = ("at", "what", "plan", "replan", "loan", "group" if "model" not in facts else "model")
    return "  ".join(f"{name}={value}" for name, value in facts.items() if name not in hidden)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [tuple(map(str, row)) for row in (titles, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
