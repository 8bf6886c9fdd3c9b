"""Loans for real: how soon a lent device serves again, and what bursts of traffic notice of it.

python -m benchmarks.loans [--tiny] [--workers paced real] [--parts cycles periodic random] [--cycles N] [--minutes M]
                           [--seed S] [--in-turn] [--records FILE]

Devices hold two small chat models each; an `lm` job trains on what is lent. `paced`: four real workers, slowed down so
that they and the job's steps leave most of two cores idle. `real`: two workers with a core each, of which the job takes
the one that is lent. `cycles`: bursts long enough that devices come back, N times: seconds from the decision to the
device serving (`returned`) and to its first answer (`served`). `periodic` and `random`: M minutes of traffic with
tenfold bursts of 10 s, one a minute give or take 5 s (after three minutes to learn from) or at random times; attainment
with loans and without, and the share of the device-seconds that jobs had which somebody who knows the traffic could
have lent (each moment the deepest rung that holds its rate). Paced, the servers with loans and without run beside each
other, unless --in-turn; `cores` is what everything took of this machine's. `ratio`: the worst figure over its limit.
With --records a run that was stopped goes on where it was; a complete one only prints.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.loan_bursts import make_bursts, run_bursts
from benchmarks.harness.loan_world import (
    BURST,
    KINDS,
    OUTPUT,
    PROMPT,
    TINY,
    Setting,
    Workers,
    make_setting,
    serving,
    steps_made,
    story,
    trains_on,
)
from benchmarks.harness.records import Record, Records
from benchmarks.harness.server import Server
from benchmarks.harness.traffic import Traffic
from serving.controller.status import explain_text

LIMIT_S = 1.0
MAY_COST = {"periodic": {"all": 0.005, "worst_model": 0.01}, "random": {"all": 0.02, "worst_model": 0.03}}
"""Of attainment, against none lent."""
OF_ORACLE = 0.6
PARTS = ("cycles", "periodic", "random")
LEARNING_S = 180.0
CYCLE_S = 3.0
"""Of a burst that brings devices back."""
START_S = 90.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--workers", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--learning", type=float, default=LEARNING_S, help="seconds before `periodic` is judged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-turn", action="store_true", help="never two servers at once")
    parser.add_argument("--records", type=Path, help="where runs are kept; one that is there is not made again")
    options = parser.parse_args()
    if options.tiny:
        options.workers, options.parts, options.cycles = ["paced"], ["cycles"], 2
    records = Records(options.records, ("workers", "part", "loans", "seed"))
    for kind in options.workers:
        workers = replace(KINDS[kind], sizes=TINY) if options.tiny else KINDS[kind]
        if options.in_turn:
            workers = replace(workers, at_once=False)
        Experiment(workers, options.parts, options.seed, records).run(options.cycles, options.minutes, options.learning)
    emit(summarise(records.all))


@dataclass(frozen=True)
class Experiment:
    """All parts with one kind of workers."""

    workers: Workers
    parts: list[str]
    seed: int
    records: Records

    def run(self, cycles: int, minutes: float, learning_s: float) -> None:
        missing = {part: self._missing(part) for part in self.parts if self._missing(part)}
        if not missing:
            return
        with tempfile.TemporaryDirectory() as name:
            setting = make_setting(Path(name), self.workers)
            note(f"{self.label}: {setting.rate_per_s:.1f} requests/s between bursts; lendable {setting.lendable}")
            for part, loans in missing.items():
                if part == "cycles":
                    self._add(part, True, measure_cycles(setting, cycles))
                    continue
                together = [loans] if self.workers.at_once else [[one] for one in loans]
                for at_once in together:
                    self._bursts(setting, part, at_once, 60 * minutes, learning_s if part == "periodic" else 0.0)

    @property
    def label(self) -> str:
        in_turn = KINDS[self.workers.kind].at_once and not self.workers.at_once
        return f"{self.workers.kind}{', in turn' if in_turn else ''}"

    def _missing(self, part: str) -> list[bool]:
        """With loans, without."""
        ways = (True,) if part == "cycles" else (True, False)
        return [
            loans for loans in ways if not self.records.has(workers=self.label, part=part, loans=loans, seed=self.seed)
        ]

    def _add(self, part: str, loans: bool, found: dict[str, Any]) -> None:
        self.records.add({"workers": self.label, "part": part, "loans": loans, "seed": self.seed} | found)

    def _bursts(self, setting: Setting, part: str, ways: list[bool], seconds: float, learning_s: float) -> None:
        bursts = make_bursts(part, learning_s, seconds, self.seed)
        names = {loans: f"{part}-{'with' if loans else 'without'}" for loans in ways}
        with ExitStack() as stack:
            servers = {name: stack.enter_context(serving(setting, name, loans)) for loans, name in names.items()}
            if True in names:
                lending = servers[names[True]]
                _wait(lambda: steps_made(setting, names[True]) > 0, "nobody trains", lending)
            found = run_bursts(setting, servers, bursts, self.seed)
            if True in names:
                note(explain_text("loans", story(lending)))
        for loans, name in names.items():
            note(f"{self.label}, {name}: {found[name]}")
            shared: dict[str, Any] = {"bursts": len(bursts.onsets_s), "requests_per_s": round(setting.rate_per_s, 2)}
            shared |= {"lendable": list(setting.lendable), "at_once": len(ways) > 1, "seconds": seconds}
            self._add(part, loans, shared | found[name])


def measure_cycles(setting: Setting, count: int) -> dict[str, Any]:
    """Until that many recalls were surprises, with a job that holds all that is lent."""
    returned: list[float] = []
    served: list[float | None] = []
    tokens: dict[str, Any] = {"prompt_tokens": str(PROMPT), "output_tokens": str(OUTPUT)}
    with serving(setting, "cycles", loans=True) as server:
        for cycle in range(4 * count):
            _wait(lambda: trains_on(server) >= setting.lendable[0], "nobody trains on what is lent", server)
            before = time.time()
            Traffic(server.url, BURST * setting.rate_per_s, CYCLE_S, cycle, **tokens).run()
            time.sleep(1.2)
            for decision in story(server)["decisions"]:
                back = decision.get("returned_s", {}) if decision["at"] > before else {}
                answered = decision.get("served_s", {})
                if back and "missed" in decision:  # a surprise: the slowest group of a decision counts
                    returned.append(max(back.values()))
                    served.append(max(answered.values()) if answered.keys() >= back.keys() else None)
            note(f"{len(served)} of {count}: {served[-1:]}")
            if len(served) >= count:
                break
    return {"returned_s": returned, "served_s": served}


def summarise(records: list[Record]) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    to_limits: list[float] = []
    for record in records:
        part, loans = record["part"], record["loans"]
        mine = kinds.setdefault(record["workers"], {})
        if part == "cycles":
            answered = [took for took in record["served_s"] if took is not None]
            mine[part] = {"returned_s": _times(record["returned_s"]), "served_s": _times(answered)}
            mine[part] |= {"cycles": len(record["served_s"]), "unanswered": len(record["served_s"]) - len(answered)}
            to_limits.append(mine[part]["served_s"]["p99"] / LIMIT_S)
            continue
        told = {name: value for name, value in record.items() if name not in ("workers", "part", "loans", "returned_s")}
        mine.setdefault(part, {})["with" if loans else "without"] = told
        if loans and record["returned_s"]:
            told["returned_s"] = _times(record["returned_s"])
    for kind in kinds.values():
        for part, found in kind.items():
            if part != "cycles" and {"with", "without"} <= set(found):
                cost = {name: found["without"][name] - found["with"][name] for name in MAY_COST[part]}
                found["cost"] = {name: round(value, 5) for name, value in cost.items()}
                to_limits += [cost[name] / MAY_COST[part][name] for name in cost]
                to_limits.append(OF_ORACLE / max(found["with"]["of_oracle"], 1e-9))
    limits = {"served_s": LIMIT_S, "cost": MAY_COST, "of_oracle": OF_ORACLE}
    ratio = round(max(to_limits), 3) if to_limits else None
    return {"benchmark": "loans", "ratio": ratio, "workers": kinds, "limits": limits}


def _wait(holds: Callable[[], bool], otherwise: str, server: Server) -> None:
    end = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end:
            note(explain_text("loans", story(server)))
            raise SystemExit(f"benchmarks.loans: {otherwise} within {START_S:g} s")
        time.sleep(0.1)


def _times(times: list[float]) -> dict[str, float]:
    if not times:
        raise SystemExit("benchmarks.loans: no device was called back")
    return {
        "median": round(float(np.median(times)), 3),
        "p99": round(float(np.quantile(times, 0.99)), 3),
        "most": round(max(times), 3),
    }


if __name__ == "__main__":
    main()
