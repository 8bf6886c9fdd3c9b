"""Loans co-simulated: traffic in ticks of a second and training on one simulated time, the loan officer as it is live.

    python -m benchmarks.loans_cosim [--parts lyra15d day] [--reclaim-s 60] [--tiny]

Reads $PENSTOCK_DATA. lyra15d: 15 days, 443 x 8 V100 that train, 520 x 8 T4 that serve; ServeGen's clients behind the
case's curve (docs/lending_cosimulation.md); `crowded`: the same jobs on 354 x 8 V100. A day: ServeGen's rates as they
are, with the day before to learn from, and one day of Philly's jobs on 20 x 8 (lent devices as fast, or T4s). Loans
off, Lyra's threshold rule (its headroom and window such that it attains what ours does and lends most), and ours.
`most_gain_percent` is what utilisation could gain at most with the same loans and no own device idle for a lent one.
Prints one JSON line; `ratio` is mean queueing under lyra on lyra15d without loans over that with ours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from benchmarks.cases import data_root, emit, note
from benchmarks.training_lyra import BASELINE, FLOOR_S, LENT, OWN, RESTART_S, T4_SPEED, lyra_jobs
from benchmarks.training_pai import philly_jobs
from placement.cluster import Cluster, Node
from placement.units import Seconds
from training.cosimulation import (
    Nothing,
    Officer,
    Pool,
    Rule,
    Served,
    Threshold,
    Traffic,
    behind,
    draw,
    fill_that_holds,
    read_clients,
    serve,
)
from training.demand import read_demand
from training.fleet import DEVICE_MEMORY, Fleet
from training.jobs import Job
from training.lending import Terms
from training.lending.day_curve import covering
from training.outcome import Outcome
from training.policies import policy_named
from training.simulator import World, simulate

TICK_S, DAY_S, TARGET = 1.0, 86400.0, 0.99
DEVICES = 8
TERMS = Terms(windows_s=(20.0,), low=0.93, calm_s=60.0, minimum_s=60.0)
"""Chosen on the first three of the fifteen days."""
STEP = 4
"""Servers of a rung."""
WINDOWS_S: tuple[float, ...] = (10.0, 30.0, 60.0, 300.0)
HEADROOMS = 64
"""The threshold rule's headroom is searched below this."""
POLICIES: tuple[str, ...] = ("lyra", "penstock")
PARTS = ("lyra15d", "day")
CROWDED = 354
"""Servers that train where the same jobs are too many for them: four fifths, a load of 1.19."""
PHILLY_DAY, PHILLY_NODES, PHILLY_SERVERS = 14, 20, 60
SIZED_FOR = 0.001
"""Of a day's work, what all servers of the pool together may miss."""


@dataclass(frozen=True)
class Case:
    """Traffic from `start_s` on is measured; what comes before is there to learn from. Jobs arrive from 0 on."""

    traffic: Traffic
    pool: Pool
    jobs: list[Job]
    own: int
    """Nodes that train."""
    start_s: float = 0.0
    lent_speed: float = T4_SPEED
    """Of a lent device, against those that train."""


def lyra_case(seconds: float, jobs: int | None, reclaim_s: float) -> Case:
    needed = read_demand(data_root() / "cases" / "training" / "lyra15d" / "inference.csv")
    drawn = draw(read_clients(data_root() / "data" / "servegen"), seconds, TICK_S)
    pool = Pool(servers=LENT, reclaim_s=reclaim_s)
    fill = fill_that_holds(needed, drawn, TARGET, pool.slack_s)
    note(f"lyra15d: fill {fill:.4f}")
    return Case(behind(needed, drawn, fill), pool, lyra_jobs()[:jobs], OWN)


def philly_case(jobs: int | None, reclaim_s: float) -> Case:
    """The second day of ServeGen, after the first; as many servers as serve nearly all of both."""
    drawn = draw(read_clients(data_root() / "data" / "servegen"), 2 * DAY_S, TICK_S)
    server = covering(drawn.tokens.tolist(), SIZED_FOR) / PHILLY_SERVERS
    traffic = Traffic(TICK_S, drawn.tokens / server * TICK_S, drawn.requests)
    first = PHILLY_DAY * DAY_S
    day = [
        msgspec.structs.replace(job, arrival=Seconds(job.arrival - first), restart=Seconds(RESTART_S))
        for job in philly_jobs()
        if first <= job.arrival < first + DAY_S
    ]
    return Case(traffic, Pool(servers=PHILLY_SERVERS, reclaim_s=reclaim_s), day[:jobs], PHILLY_NODES, DAY_S)


def lend_by_each(case: Case, step: int, windows: tuple[float, ...]) -> tuple[dict[str, _Run], dict[str, Any]]:
    """Each rule over the same traffic, and what the threshold rule's search found."""
    ours = _after(case, lambda: Officer(case.pool, TERMS, step))
    threshold, search = at_equal_attainment(case, ours.served, windows)
    rules = {"off": _after(case, Nothing), "threshold": threshold, "ours": ours}
    for name, run in rules.items():
        note(f"{name}: attainment {run.served.attainment:.5f}, {run.served.lent_hours:.0f} server-hours lent")
    return rules, search


def train_after_each(case: Case, rules: dict[str, _Run], policies: tuple[str, ...]) -> dict[str, Any]:
    """The same jobs under each rule's loans."""
    found: dict[str, Any] = {}
    for policy in policies:
        outcomes = {name: _Trained.of(case, run, policy) for name, run in rules.items()}
        off = outcomes["off"]
        rows = {name: one.told(case) for name, one in outcomes.items()}
        for name, row in rows.items():
            gain, most = outcomes[name].utilization, off.most_utilization(case, rules[name].served)
            row["utilization_gain_percent"] = round(100 * (gain / off.utilization - 1), 2)
            row["most_gain_percent"] = round(100 * (most / off.utilization - 1), 2)
            note(f"{policy}, {name}: {row}")
        found[policy] = rows
    return found


@dataclass(frozen=True)
class _Run:
    served: Served
    cpu_s: float


def _after(case: Case, rule: Callable[[], Rule]) -> _Run:
    """What happened from the case's start on."""
    began = time.process_time()
    served = serve(case.traffic, case.pool, rule())
    first = round(case.start_s / case.traffic.tick_s)
    part = case.traffic.of(case.start_s, case.traffic.seconds)
    measured = replace(
        served, traffic=part, lent=served.lent[first:], serving=served.serving[first:], late=served.late[first:]
    )
    return _Run(measured, time.process_time() - began)


def at_equal_attainment(case: Case, ours: Served, windows: tuple[float, ...]) -> tuple[_Run, dict[str, Any]]:
    """Of each window the least headroom with which the threshold rule attains what ours does; of these, the one that
    lends most."""
    found: list[tuple[float, float, int, _Run]] = []
    tried: dict[str, Any] = {}
    for window_s in windows:
        low, high = 0, HEADROOMS
        while low < high:
            headroom = (low + high) // 2
            run = _after(case, lambda h=headroom, w=window_s: Threshold(case.pool, h, window_s=w))  # type: ignore[misc]
            if run.served.attainment >= ours.attainment:
                high = headroom
                found.append((run.served.lent_hours, window_s, headroom, run))
            else:
                low = headroom + 1
        enough = [entry for entry in found if entry[1] == window_s]
        if enough:
            hours, _, headroom, run = max(enough, key=lambda entry: entry[0])
            tried[f"{window_s:g}"] = {
                "headroom": headroom,
                "attainment": round(run.served.attainment, 5),
                "lent_server_hours": round(hours),
                "reclaims": run.served.reclaims,
            }
            note(f"threshold, window {window_s:g} s: {tried[f'{window_s:g}']}")
    if not found:
        return _after(case, lambda: Threshold(case.pool, HEADROOMS)), {"by_window_s": tried}
    _, window_s, headroom, run = max(found, key=lambda entry: entry[0])
    return run, {"window_s": window_s, "headroom": headroom, "by_window_s": tried}


@dataclass(frozen=True)
class _Trained:
    """The jobs on their own nodes and what is lent."""

    run: _Run
    outcome: Outcome
    overall_device_s: float
    """Of all devices there are."""
    cpu_s: float

    @staticmethod
    def of(case: Case, run: _Run, policy: str) -> _Trained:
        began = time.process_time()
        own = [Node(f"v{n}", DEVICES, DEVICE_MEMORY, kind="v100") for n in range(case.own)]
        world = World(Fleet(Cluster(tuple(own))))
        if run.served.lent.any():
            lent = [Node(f"t{n}", DEVICES, DEVICE_MEMORY, kind="t4") for n in range(case.pool.servers)]
            speeds, names = {"v100": 1.0, "t4": case.lent_speed}, frozenset(node.name for node in lent)
            world = World(Fleet(Cluster((*own, *lent)), speeds, lendable=names), run.served.demand)
        outcome = simulate(case.jobs, world, policy_named(policy))
        overall_s = DEVICES * (case.own + case.pool.servers) * run.served.traffic.seconds
        return _Trained(run, outcome, overall_s, time.process_time() - began)

    @property
    def training_s(self) -> float:
        return used_s(self.outcome, self.run.served.traffic.seconds)

    @property
    def utilization(self) -> float:
        return (self.training_s + _traffic_s(self.run.served)) / self.overall_device_s

    def most_utilization(self, case: Case, lent: Served) -> float:
        """That any policy could reach with these loans which leaves no device of its own idle for a lent one, where
        this is the outcome without loans: all work there is, and what work takes longer on lent devices while somebody
        waits here or all own devices are taken. With loans that is so less often, never more."""
        until_s, series = lent.traffic.seconds, self.outcome.series
        work_s = 0.0
        for job in case.jobs:
            assert job.duration is not None
            work_s += min(float(job.duration) * job.gpus, job.most * max(until_s - float(job.arrival), 0.0))
        is_short = (np.array(series.queued) > 0) | (np.array(series.busy) > DEVICES * (case.own - 1))
        ticks = np.arange(len(lent.lent)) * lent.traffic.tick_s
        at = np.searchsorted(np.array(series.time), ticks, side="right") - 1
        during = (at >= 0) & is_short[np.maximum(at, 0)]
        slow_s = DEVICES * lent.traffic.tick_s * float(lent.lent[during].sum())
        most_s = max(work_s, self.training_s) + (1 - case.lent_speed) * slow_s
        return (most_s + _traffic_s(lent)) / self.overall_device_s

    def told(self, case: Case) -> dict[str, Any]:
        served, summary = self.run.served, self.outcome.summary()
        return {
            "attainment": round(served.attainment, 5),
            **{name: round(summary[name], 1) for name in ("mean_queue", "p95_queue", "mean_jct", "p95_jct")},
            "preemption_ratio": round(summary["preempted_jobs"] / len(case.jobs), 4),
            "preempted_by_reclaims": summary["reclaimed"],
            "scaled_in": summary["scaled_in"],
            "overall_utilization": round(self.utilization, 4),
            "training_device_hours": round(self.training_s / 3600),
            "lent_server_hours": round(served.lent_hours),
            "lent_share": round(float(served.lent.mean()) / case.pool.servers, 4),
            "reclaims": served.reclaims,
            "cpu_s": {"traffic": round(self.run.cpu_s, 1), "training": round(self.cpu_s, 1)},
        }


def _traffic_s(served: Served) -> float:
    """Device-seconds that requests took."""
    return DEVICES * float((served.traffic.work - served.late).sum())


def used_s(outcome: Outcome, until_s: float) -> float:
    """Device-seconds that jobs held by then."""
    spans = np.array([(span.start, span.end, span.workers) for span in outcome.series.spans])
    return float(((np.minimum(spans[:, 1], until_s) - np.minimum(spans[:, 0], until_s)) * spans[:, 2]).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reclaim-s", type=float, default=1.0, help="until a server that is taken back serves")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tiny", action="store_true", help="an hour of traffic and few jobs: a check that it runs")
    arguments = parser.parse_args()
    needs = (
        data_root() / "cases" / "training" / "lyra15d",
        data_root() / "data" / "servegen",
        data_root() / "data" / "philly",
    )
    if not all(path.exists() for path in needs):
        emit(
            {"benchmark": "loans_cosim", "skipped": "no lyra15d, servegen or philly; set PENSTOCK_DATA", "ratio": None}
        )
        return
    result: dict[str, Any] = {"benchmark": "loans_cosim", "reclaim_s": arguments.reclaim_s, "ratio": None}
    if arguments.tiny:
        case, policies = lyra_case(3600.0, 500, arguments.reclaim_s), POLICIES[:1]
        result |= over_fifteen_days(case, 4 * STEP, WINDOWS_S[-1:], policies)
    elif "lyra15d" in arguments.parts:
        result |= over_fifteen_days(lyra_case(15 * DAY_S, None, arguments.reclaim_s), STEP, WINDOWS_S, POLICIES)
    if not arguments.tiny and "day" in arguments.parts:
        day = philly_case(None, arguments.reclaim_s)
        rules, result["day_threshold"] = lend_by_each(day, 1, WINDOWS_S)
        result["day"] = train_after_each(replace(day, lent_speed=1.0), rules, POLICIES)
        result["day_t4"] = train_after_each(day, rules, POLICIES)
    emit(result)


def over_fifteen_days(case: Case, step: int, windows: tuple[float, ...], policies: tuple[str, ...]) -> dict[str, Any]:
    rules, search = lend_by_each(case, step, windows)
    found = {"threshold": search, "lyra15d": train_after_each(case, rules, policies)}
    for rows in found["lyra15d"].values():
        for row in rows.values():
            row["to_floor"] = round((BASELINE["mean_jct"] - row["mean_jct"]) / (BASELINE["mean_jct"] - FLOOR_S), 3)
    if len(policies) > 1:
        found["crowded"] = train_after_each(replace(case, own=CROWDED), rules, policies[:1])
    lyra = found["lyra15d"]["lyra"]
    # A wait below a second counts as one.
    return found | {"ratio": round(lyra["off"]["mean_queue"] / max(lyra["ours"]["mean_queue"], 1.0), 2)}


if __name__ == "__main__":
    main()
