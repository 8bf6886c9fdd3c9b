"""An independent judge of what a simulation says happened: reads the files' plain values, shares no code with
it.

`check_plan_memory` judges a plan, `check_requests` the rows that `penstock simulate --requests` writes. Both
return the faults found, each as "kind: what and where"; no faults is an empty list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

TOLERANCE = 1e-9
SERVED, REASONS = 0, 7

Plain = Mapping[str, Any]


def check_plan_memory(problem: Plain, profiles: Plain, plan: Plain) -> list[str]:
    """No device in two groups; no device and no host filled beyond its memory."""
    faults = []
    nodes = {node["name"]: node for node in problem["cluster"]["nodes"]}
    owner: dict[str, int] = {}
    host: dict[str, int] = defaultdict(int)
    for number, group in enumerate(plan["groups"]):
        resident = [_entry(problem, profiles, group, name) for name in group["models"]]
        parked = [_entry(problem, profiles, group, name) for name in group.get("parked", ())]
        for place, device in enumerate(group["devices"]):
            node, stage = nodes[device.split("/")[0]], place // group["tp"]
            if device in owner:
                faults.append(f"device: {device} is in group {owner[device]} and in group {number}")
            owner[device] = number
            need = sum(entry["stage_memory"][stage] for entry in resident)
            need += max((entry["stage_memory"][stage] for entry in parked), default=0)
            if need > node["memory"]:
                faults.append(f"memory: {device} holds {need} bytes of {node['memory']}")
            host[node["name"]] += sum(entry["stage_memory"][stage] for entry in parked)
    faults += [
        f"host-memory: {name} holds {need} bytes of {nodes[name].get('host_memory', 0)}"
        for name, need in host.items()
        if need > nodes[name].get("host_memory", 0)
    ]
    return faults


def check_requests(
    problem: Plain, profiles: Plain, plan: Plain, arrival: Sequence[float], model: Sequence[int], rows: Plain
) -> list[str]:
    """Whether the rows can have happened: status, group, batch, finish [n], stage_start, stage_end [n,
    stages]."""
    if len(rows["status"]) != len(arrival):
        return [f"row: {len(rows['status'])} rows for {len(arrival)} requests"]
    faults = []
    ran: dict[int, list[int]] = defaultdict(list)
    for request in range(len(arrival)):
        fault = _check_row(request, len(plan["groups"]), rows)
        if fault:
            faults.append(f"row: request {request} {fault}")
        elif rows["status"][request] == SERVED:
            ran[int(rows["batch"][request])].append(request)
    good = []
    for batch, members in ran.items():
        found = _check_batch(problem, profiles, plan, arrival, model, rows, members)
        faults += [f"{kind}: batch {batch} {what}" for kind, what in found]
        if not any(kind in ("placement", "batch") for kind, _ in found):
            good.append(members[0])
    faults += _check_devices(plan, rows, good)
    faults += _check_wakes(problem, profiles, plan, arrival, model, rows, good, ran)
    return faults


def _check_row(request: int, groups: int, rows: Plain) -> str | None:
    status, group, batch = (int(rows[name][request]) for name in ("status", "group", "batch"))
    times = np.concatenate([[rows["finish"][request]], rows["stage_start"][request], rows["stage_end"][request]])
    if not 0 <= status < REASONS:
        return f"has the unknown status {status}"
    if status == SERVED:
        if not (0 <= group < groups and batch >= 0 and np.isfinite(times[0])):
            return f"is served, but with group {group}, batch {batch}, finish {times[0]}"
        return None
    if group != -1 or batch != -1 or np.isfinite(times).any():
        return f"is not served, but has group {group}, batch {batch} and times"
    return None


def _check_batch(
    problem: Plain,
    profiles: Plain,
    plan: Plain,
    arrival: Sequence[float],
    model: Sequence[int],
    rows: Plain,
    members: list[int],
) -> list[tuple[str, str]]:
    """One batch: its members alike, its size and latencies as profiled, after arrival, in order, within the
    SLO."""
    head = members[0]
    group, start, end = plan["groups"][int(rows["group"][head])], rows["stage_start"], rows["stage_end"]
    name = problem["models"][model[head]]["name"]
    for other in members:
        if model[other] != model[head]:
            return [("batch", f"mixes models {model[head]} and {model[other]}")]
        if rows["group"][other] != rows["group"][head]:
            return [("batch", f"runs on groups {rows['group'][head]} and {rows['group'][other]}")]
        for times in (start, end):
            if not np.array_equal(times[other], times[head], equal_nan=True):
                return [("batch", f"has requests {head} and {other} at different times")]
    if name not in [*group["models"], *group.get("parked", ())]:
        return [("placement", f"runs {name}, which is not on group {rows['group'][head]}")]
    latency = _entry(problem, profiles, group, name)["stage_latency"].get(str(len(members)))
    if latency is None:
        return [("batch", f"has {len(members)} members, which the profile does not know")]
    faults = []
    stages = group["pp"]
    if np.isnan(start[head][:stages]).any() or not np.isnan(start[head][stages:]).all():
        return [("batch", f"does not have {stages} stages")]
    for stage, seconds in enumerate(latency):
        took = end[head][stage] - start[head][stage]
        if abs(took - seconds) > TOLERANCE:
            faults.append(("latency", f"took {took} s in stage {stage}; the profile says {seconds}"))
        if stage and start[head][stage] < end[head][stage - 1] - TOLERANCE:
            faults.append(("order", f"is in stage {stage} before stage {stage - 1} is done"))
    for request in members:
        if start[head][0] < arrival[request] - TOLERANCE:
            faults.append(("arrival", f"begins before request {request} arrives"))
        finish = end[head][stages - 1] + problem["overhead"]
        if abs(rows["finish"][request] - finish) > TOLERANCE:
            faults.append(("finish", f"is done at {finish}, request {request} at {rows['finish'][request]}"))
        if rows["finish"][request] - arrival[request] > problem["models"][model[head]]["slo"] + TOLERANCE:
            faults.append(("slo", f"answers request {request} late"))
    return faults


def _check_devices(plan: Plain, rows: Plain, heads: list[int]) -> list[str]:
    """No device in two batches at once."""
    work: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for head in heads:
        group = plan["groups"][int(rows["group"][head])]
        for place, device in enumerate(group["devices"]):
            stage = place // group["tp"]
            times = rows["stage_start"][head][stage], rows["stage_end"][head][stage]
            work[device].append((*times, int(rows["batch"][head])))
    faults = []
    for device, spans in work.items():
        for (_, end, first), (start, _, second) in pairwise(sorted(spans)):
            if start < end - TOLERANCE:
                faults.append(f"overlap: {device} is in batches {first} and {second} at {start}")
    return faults


def _check_wakes(
    problem: Plain,
    profiles: Plain,
    plan: Plain,
    arrival: Sequence[float],
    model: Sequence[int],
    rows: Plain,
    heads: list[int],
    ran: Mapping[int, list[int]],
) -> list[str]:
    """A parked model that was not the last parked one to run on its group has time to wake on every stage:
    since the stage's last work and since all its batch had arrived."""
    faults = []
    nodes = {node["name"]: node for node in problem["cluster"]["nodes"]}
    awake: dict[int, str] = {}
    free: dict[tuple[int, int], float] = defaultdict(float)
    for head in sorted(heads, key=lambda head: rows["stage_start"][head][0]):
        number = int(rows["group"][head])
        group, name = plan["groups"][number], problem["models"][model[head]]["name"]
        entry = _entry(problem, profiles, group, name)
        slowest = min(nodes[device.split("/")[0]]["load_bandwidth"] for device in group["devices"])
        came = max(arrival[request] for request in ran[int(rows["batch"][head])])
        wakes = name in group.get("parked", ()) and awake.get(number) != name
        for stage in range(group["pp"]):
            loaded = max(came, free[number, stage]) + entry["stage_memory"][stage] / slowest
            if wakes and rows["stage_start"][head][stage] < loaded - TOLERANCE:
                faults.append(f"wake: batch {rows['batch'][head]} is in stage {stage} before {name} is awake")
            free[number, stage] = rows["stage_end"][head][stage]
        if name in group.get("parked", ()):
            awake[number] = name
    return faults


def _entry(problem: Plain, profiles: Plain, group: Plain, model: str) -> Plain:
    """The model's profile on this group: the entry that says most about its device kind and span."""
    profile = next(entry["profile"] for entry in problem["models"] if entry["name"] == model)
    names = {device.split("/")[0] for device in group["devices"]}
    kinds = {node.get("kind", "any") for node in problem["cluster"]["nodes"] if node["name"] in names}
    span = "node" if len(names) == 1 else "cluster"
    fitting = [
        ((entry.get("kind") is not None, entry.get("span") is not None), entry)
        for entry in profiles[profile]["shapes"]
        if (entry["tp"], entry["pp"]) == (group["tp"], group["pp"])
        and (entry.get("kind") is None or {entry["kind"]} == kinds)
        and entry.get("span") in (None, span)
    ]
    return max(fitting, key=lambda pair: pair[0])[1]
