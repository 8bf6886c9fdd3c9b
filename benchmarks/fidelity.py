"""Is what the simulator says what happens? Attainment and latency, simulated and measured, point by point.

python -m benchmarks.fidelity [--tiny] [--sets real emulated] [--workers paced|real] [--seconds S] [--records FILE]
                              [--figure FILE.svg]

`real`: real torch workers on two devices (paced: four times as slow, so that router and client do not take their
cores), one-pass models one by one and in batches, generating ones, each on two placements. `emulated`: workers without
models on 16 to 64 devices. Each point sends its arrivals over HTTP to a server that refuses by deadline, and simulates
the same arrivals with the measured profile and with how the placement was seen to serve before (harness/service.py),
which the server is told too. A point at which the generator was too late for its own rule is sent again, and counted
apart if it never was in time. `ratio`: the largest of the valid points' differences over their limits. With --records
a run that was stopped goes on where it was; a complete one only prints and draws.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.draw import demand_of, measured, send, simulated
from benchmarks.harness.fidelity_figure import write_figure
from benchmarks.harness.fidelity_worlds import Load, Setting, emulated_settings, real_settings
from benchmarks.harness.records import Record, Records
from benchmarks.harness.service import Service, Simulation, look_at_service
from benchmarks.harness.watched_server import WatchedServer as Server
from benchmarks.harness.world import World
from placement.plan import Plan
from placement.problem import Problem
from placement.rules import Rule

PACE = 4.0
FULL_AT = 0.95
"""A placement does what it can where this share of Poisson arrivals is answered in time."""
FULL_REQUESTS, FULL_S = 2000, 30.0
"""By so many requests that is found, and over so long at least: what fills up slowly is full only then."""
TRIES = 3
"""Of a point, until the generator is in time."""
LOOK = {"burst": 192, "seconds": 10.0}
DOUBTFUL = 0.08
"""A look that differs so much from the one before has met something that passes, or says that the one before did."""
TINY_LOOK = {"alone": 8, "burst": 16, "seconds": 3.0}
"""How much is sent to look how a placement serves."""
LIMITS = {
    "real": {"attainment": 0.02, "worst_attainment": 0.04, "latency": 0.10},
    "emulated": {"attainment": 0.01, "worst_attainment": 0.04, "latency": 0.10},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--sets", nargs="+", choices=sorted(LIMITS), default=sorted(LIMITS))
    parser.add_argument("--workers", choices=("paced", "real"), default="paced", help="of the set `real`")
    parser.add_argument("--settings", nargs="+", help="only those whose name begins so")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each point")
    parser.add_argument("--records", type=Path, help="where points are kept; one that is there is not made again")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    workers: dict[str, Any] = {"kind": "real"} if options.workers == "real" else {"kind": "paced", "pace": PACE}
    sets = {"real": real_settings(workers, options.tiny), "emulated": emulated_settings()}
    if options.tiny:
        sets = {"emulated": [emulated_settings((16,))[0].shortened("replicas", (Load(0.5, 1), Load(2.0, 1)))]}
        options.seconds = 4.0
    records = Records(options.records, ("set", "workers", "setting", "placement", "rate", "cv"))
    for name in sets:
        if name in options.sets:
            for setting in sets[name]:
                if options.settings is None or setting.name.startswith(tuple(options.settings)):
                    kind = "emulated" if name == "emulated" else options.workers
                    Trial(name, kind, setting, options.seconds, records, TINY_LOOK if options.tiny else LOOK).run()
    report = summarise(records.all)
    if options.figure is not None:
        write_figure(options.figure, records.all)
    emit(report)


@dataclass(frozen=True)
class Trial:
    """All points of a setting."""

    set: str
    workers: str
    setting: Setting
    seconds: float
    records: Records
    look: dict[str, Any]

    def run(self) -> None:
        missing = [point for point in self.setting.points() if not self.records.has(**self._key(*point))]
        if not missing:
            return
        with tempfile.TemporaryDirectory() as folder:
            world = self.setting.make(Path(folder))
            for name, plan in self.setting.placements.items():
                loads = [load for placement, load in missing if placement == name]
                if loads:
                    self._place(world, name, plan, loads)

    def _key(self, placement: str, load: Load) -> Record:
        return {
            "set": self.set,
            "workers": self.workers,
            "setting": self.setting.name,
            "placement": placement,
            "rate": load.rate,
            "cv": load.cv,
        }

    def _place(self, world: World, placement: str, plan: Plan, loads: list[Load]) -> None:
        """Look how the placement serves, tell a server of it, and try all loads on that, each after another look."""
        problem, given, traffic = world.problem(), f"--plan={world.write_plan(placement, plan)}", self.setting.traffic
        rule = self.setting.rule
        full = full_rate(problem, plan, traffic, rule)
        with Server(world.write(placement, dispatch=rule), given) as server:
            self._look(problem, plan, server, full)  # the first requests of a server are slow
            told = self._look(problem, plan, server, full)
        note(f"{self.setting.name}, {placement}: {told}")
        world, problem = world.stretched(told.stretch), told.applied(problem)
        full = full_rate(problem, plan, traffic, rule)
        with Server(world.write(placement, overhead=told.overhead_s, dispatch=rule), given) as server:
            seen = self._look(problem, plan, server, full)
            for load in loads:
                for tries in range(1, TRIES + 1):
                    seen = self._look_again(problem, plan, server, full, seen)
                    model = Simulation(seen.applied(problem), plan, rule)
                    figures = try_load(model, server, load, load.rate * full, self.seconds, traffic) | {"tries": tries}
                    if figures["valid"]:
                        break
                figures |= {
                    "told": round(told.stretch, 4),
                    "stretch": round(told.stretch * seen.stretch, 4),
                    "overhead_ms": round(1e3 * seen.overhead_s, 3),
                }
                self.records.add(self._key(placement, load) | figures)
                note(f"  {load}, {seen}: {compared(figures)}")

    def _look_again(self, problem: Problem, plan: Plan, server: Server, full_per_s: float, before: Service) -> Service:
        """The middle of three looks, where one is not enough."""
        looks = [self._look(problem, plan, server, full_per_s)]
        if abs(looks[0].stretch / before.stretch - 1) > DOUBTFUL:
            looks += [self._look(problem, plan, server, full_per_s) for _ in range(2)]
        return sorted(looks, key=lambda one: one.stretch)[len(looks) // 2]

    def _look(self, problem: Problem, plan: Plan, server: Server, full_per_s: float) -> Service:
        sent = self.look | self.setting.traffic
        return look_at_service(problem, plan, server, full_per_s=full_per_s, rule=self.setting.rule, **sent)


def try_load(
    model: Simulation, server: Server, load: Load, rate: float, seconds: float, traffic: dict[str, Any]
) -> Record:
    before_s = server.cpu_s()
    sent = send(server.url, rate=f"{rate}", cv=f"{load.cv}", duration=f"{seconds}s", seed=1, **traffic)
    router_s = server.cpu_s() - before_s
    goals = [one.slo for one in model.problem.models]
    return {
        "rule": model.rule,
        "requests": len(sent.demand),
        "per_s": round(rate, 2),
        "generates": any(one.generates for one in model.problem.models),
        "measured": measured(sent).figures(goals),
        "simulated": model.of(sent).figures(goals),
        "router_core": round(router_s / seconds, 3),
        "client_core": round(sent.summary.generator_cpu, 3),
        "valid": sent.summary.valid,
    }


def full_rate(problem: Problem, plan: Plan, traffic: dict[str, Any], rule: Rule) -> float:
    """The rate, by the simulator, at which FULL_AT of Poisson arrivals are in time."""
    goals = [model.slo for model in problem.models]
    low, high = 0.0, 1.0

    def holds(rate: float) -> bool:
        seconds = max(FULL_REQUESTS / rate, FULL_S)
        demand = demand_of(problem, rate=f"{rate}", cv="1", duration=f"{seconds}s", seed=0, **traffic)
        return simulated(problem, plan, demand, rule).figures(goals)["attainment"] >= FULL_AT

    while holds(high):
        low, high = high, 2 * high
    while high > 1.01 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def summarise(records: list[Record]) -> dict[str, Any]:
    """`ratio` is None where the generator was too late at every point."""
    sets = {name: [one for one in records if one["set"] == name] for name in LIMITS}
    valid = {name: _set([one for one in points if one["valid"]]) for name, points in sets.items()}
    invalid = {name: _set([one for one in points if not one["valid"]]) for name, points in sets.items()}
    ratios = [
        found[what] / limit for name, found in valid.items() if found["points"] for what, limit in LIMITS[name].items()
    ]
    return {
        "benchmark": "fidelity",
        "ratio": round(max(ratios), 3) if ratios else None,
        "sets": {name: found for name, found in valid.items() if found["points"]},
        "invalid": {name: found for name, found in invalid.items() if found["points"]},
        "limits": LIMITS,
        "points": records,
    }


def _set(records: list[Record]) -> dict[str, Any]:
    if not records:
        return {"points": 0}
    attainment = [abs(one["measured"]["attainment"] - one["simulated"]["attainment"]) for one in records]
    found: dict[str, Any] = {
        "points": len(records),
        "requests": sum(one["requests"] for one in records),
        "attainment": round(float(np.mean(attainment)), 4),
        "worst_attainment": round(max(attainment), 4),
    }
    for name in ("latency", "ttft", "tpot"):
        errors = [_error(one, f"{name}_ms") for one in records if f"{name}_ms" in one["measured"]]
        p99 = [_error(one, f"{name}_p99_ms") for one in records if f"{name}_ms" in one["measured"]]
        if errors:
            found |= {
                name: round(float(np.mean(np.abs(errors))), 4),
                f"worst_{name}": round(float(np.max(np.abs(errors))), 4),
                f"{name}_bias": round(float(np.mean(errors)), 4),
                f"{name}_p99": round(float(np.mean(np.abs(p99))), 4),
            }
    return found


def _error(record: Record, figure: str) -> float:
    return float(record["measured"][figure] / record["simulated"][figure] - 1)


def compared(figures: Record) -> str:
    real, model = figures["measured"], figures["simulated"]
    text = f"{real['attainment']:.3f} in time, simulated {model['attainment']:.3f}"
    for name in ("latency_ms", "ttft_ms", "tpot_ms"):
        if name in real:
            text += f"; {name} {real[name]:.1f}, simulated {model[name]:.1f}"
    return text


if __name__ == "__main__":
    main()
