"""The policies by name, each imported when asked for."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple

from placement.errors import InputError
from training.view import Information, Policy


class Entry(NamedTuple):
    """Where a policy is, and what it does in one line."""

    module: str
    cls: str
    rule: str


ENTRIES: dict[str, Entry] = {
    "penstock": Entry(
        "penstock", "Penstock", "least remaining work, weighted so that those here are gone soonest; elastic"
    ),
    "fcfs": Entry("fcfs", "Fcfs", "first come, first served, nobody preempted"),
    "sjf": Entry("sjf", "Sjf", "shortest job first, preemptive"),
    "srtf": Entry("srtf", "Srtf", "shortest remaining time first"),
    "srsf": Entry("srsf", "Srsf", "least remaining time x GPUs first"),
    "priority": Entry("priority", "Priority", "highest priority first, preemptive"),
    "tiresias-las": Entry("tiresias_las", "TiresiasLas", "least attained service first, in queues"),
    "tiresias-gittins": Entry("tiresias_gittins", "TiresiasGittins", "highest Gittins index of attained service first"),
    "themis": Entry("themis", "Themis", "free GPUs to those farthest from finish-time fairness, by auction"),
    "gandiva": Entry("gandiva", "Gandiva", "time slices, packing where it pays, migration, growth"),
    "optimus": Entry("optimus", "Optimus", "the next worker where it lowers remaining time most"),
    "lyra": Entry("lyra", "Lyra", "bases shortest first, then flexible workers by a knapsack; loans"),
    "gavel": Entry("gavel", "Gavel", "shares of time on each kind by a linear program, in rounds"),
    "pollux": Entry("pollux", "Pollux", "the best mean goodput over fair shares"),
    "sia": Entry("sia", "Sia", "an integer program over (job, kind, count), by goodput"),
    "antman": Entry("antman", "Antman", "opportunistic jobs in what guaranteed ones (priority above 0) leave idle"),
    "chronus": Entry("chronus", "Chronus", "leases for deadlines by an integer program, best effort fills in"),
    "aonline": Entry("aonline", "Aonline", "admit if worth more than prices that rise with use"),
    "andreas": Entry("andreas", "Andreas", "least energy and lateness, by a randomised greedy"),
    "pai": Entry("pai", "Pai", "predicted shortest first, parts of GPUs, high-end ones kept for who needs them"),
    "fewest-gpus": Entry("fewest_gpus", "FewestGpus", "fewest GPUs first, preemptive"),
}


BLIND_TOO = ("penstock",)
"""Work with durations and without."""


def policy_named(name: str, **options: Any) -> Policy:
    """A policy with options, such as strict=True; an InputError names what there is."""
    entry = ENTRIES.get(name)
    if entry is None:
        raise InputError(f"policy {name!r} is not known; give one of {', '.join(ENTRIES)}")
    cls = getattr(import_module(f"training.policies.{entry.module}"), entry.cls)
    known = {field.name for field in fields(cls)}
    for option in options:
        if option not in known:
            raise InputError(f"policy {name!r} has no option {option!r}; it has {', '.join(sorted(known)) or 'none'}")
    policy: Policy = cls(**options)
    return policy


def live_policy(name: str, information: Information) -> Policy:
    """For jobs whose durations nobody knows for sure: they are predicted or, with none, not believed at all."""
    policy = policy_named(name)
    if policy.information == "none":
        return policy
    if information == "none" and name not in BLIND_TOO:
        raise InputError(f"policy {name!r} needs durations: set `durations: predicted`, or `policy: penstock`")
    return policy_named(name, information=information)
