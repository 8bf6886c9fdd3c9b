"""Loans for real: how soon a lent device serves again, and what bursts of traffic notice of it.

python -m benchmarks.loans [--tiny] [--parts cycles periodic random] [--cycles N] [--minutes M] [--seed S]

Four paced devices (real workers, slowed down so that four fit on two cores) hold two small chat models; an `lm` job
trains on what is lent, its steps paced so that it leaves the cores idle too. `cycles`: bursts long enough that devices
come back, N times: seconds from the decision to the device serving (`returned`) and to its first answer (`served`).
`periodic` and `random`: M minutes of traffic with tenfold bursts of 10 s, one a minute give or take 5 s (after three
minutes to learn from) or at random times; attainment with loans and without, and the share of the device-seconds lent
that somebody who knows the traffic could have lent (each moment the deepest rung that holds its rate).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.server import Server
from benchmarks.harness.traffic import Sent, Traffic
from benchmarks.harness.world import World, made_once, make_world
from placement.capacity import Rung, find_rungs, usual_requests, with_rungs
from placement.cli.admin import ask_admin
from placement.plan import Group, Plan
from serving.controller.status import explain_text
from serving.profiler.effort import QUICK
from serving.small_models.random import make_random

LIMIT_S = 1.0
DEVICES = 4
PACE = 12.0
MODELS = ("chat", "chat-2")
SIZES: dict[str, Any] = {"hidden": 192, "layers": 4, "heads": 4, "ffn": 512, "vocabulary": 1024}
TINY: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 8, "ffn": 128, "vocabulary": 512}
PROMPT, OUTPUT = 32, 16
TTFT_S, TPOT_S = 1.0, 0.2
BURST_S, BURST = 10.0, 10.0
"""How long, and how many times the rate between."""
FULL = 0.6
"""Of what all devices hold: the rate of a burst."""
LEARNING_S = 180.0
STEP_S = 0.05


@dataclass(frozen=True)
class Setting:
    world: World
    plan: Plan
    rate_per_s: float
    """Between bursts."""
    lendable: tuple[int, int]
    """Devices that the rate between bursts leaves, and that of a burst."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=("cycles", "periodic", "random"))
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts = options.parts or (["cycles"] if options.tiny else ["cycles", "periodic", "random"])
    report: dict[str, Any] = {"benchmark": "loans", "limit_s": LIMIT_S}
    with tempfile.TemporaryDirectory() as name:
        setting = make_setting(Path(name), TINY if options.tiny else SIZES)
        note(f"{setting.rate_per_s:.1f} requests/s between bursts; lendable {setting.lendable}")
        if "cycles" in parts:
            report["cycles"] = cycles(setting, 2 if options.tiny else options.cycles)
            report["ratio"] = round(report["cycles"]["served_s"]["p99"] / LIMIT_S, 3)
        for part in ("periodic", "random"):
            if part in parts:
                report[part] = bursts(setting, part, 60 * options.minutes, options.seed)
    emit(report)


def make_setting(folder: Path, sizes: dict[str, Any]) -> Setting:
    models = []
    for seed, name in enumerate(MODELS):
        path = made_once(f"loans-{name}-{sizes['hidden']}", make_random, **sizes, seed=seed)
        traffic = {"rate": 5, "cv": 1, "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
        slo = {"ttft": TTFT_S, "tpot": TPOT_S}
        models.append({"name": name, "path": str(path), "slo": slo, "traffic": traffic})
    np.save(folder / "tokens.npy", np.random.default_rng(0).zipf(1.3, 100_000) % sizes["vocabulary"])
    training = {"store": f"sqlite:///{folder}/queue.db", "data": [str(folder)], "loans": {"minimum": "5s"}}
    world = make_world(
        folder,
        models,
        DEVICES,
        effort=QUICK,
        workers={"kind": "paced", "pace": PACE},
        training=training,
        keeps=lambda shape: shape if (shape.tp, shape.pp) == (1, 1) else None,
    )
    groups = [Group((f"local/{n}",), 1, 1, MODELS, dict.fromkeys(MODELS, 32 << 20)) for n in range(DEVICES)]
    ladder = tuple(tuple(range(DEVICES - drained, DEVICES)) for drained in range(1, DEVICES))
    plan, problem = Plan(tuple(groups), ladder), world.problem()
    rungs = find_rungs(problem, plan)
    work_s = float(np.mean([one.work_s for one in usual_requests(problem).values()]))
    rate = FULL * rungs[0].work_per_s / work_s / BURST
    lendable = (_devices(rungs, rate * work_s), _devices(rungs, BURST * rate * work_s))
    return Setting(world, with_rungs(plan, rungs), rate, lendable)


def cycles(setting: Setting, count: int) -> dict[str, Any]:
    """Until that many recalls were surprises, with a job that holds all that is lent."""
    rate = setting.rate_per_s
    returned: list[float] = []
    served: list[float] = []
    with _server(setting, "cycles", loans=True) as server:
        for cycle in range(4 * count):
            _wait(lambda: _trains(server) >= setting.lendable[0], "nobody trains on what is lent", server)
            before = time.time()
            Traffic(server.url, BURST * rate, 3.0, cycle, **_tokens()).run()
            time.sleep(1.2)
            for decision in _explain(server)["decisions"]:
                if decision["at"] > before:
                    returned += decision.get("returned_s", {}).values()
                    served += decision.get("served_s", {}).values()
            note(f"{len(served)} of {count}: {served[-3:]}")
            if len(served) >= count:
                break
    return {"returned_s": _summary(returned), "served_s": _summary(served), "cycles": len(served)}


def bursts(setting: Setting, kind: str, seconds: float, seed: int) -> dict[str, Any]:
    """The same traffic twice: with loans, and without."""
    learning_s = LEARNING_S if kind == "periodic" else 0.0
    onsets = _onsets(kind, learning_s + seconds, seed)
    stages = _stages(onsets, setting.rate_per_s, learning_s + seconds)
    found: dict[str, Any] = {"requests_per_s": round(setting.rate_per_s, 2), "bursts": len(onsets)}
    for label, loans in (("with", True), ("without", False)):
        with _server(setting, f"{kind}-{label}", loans) as server:
            if loans:
                _wait(lambda: _trains(server) > 0, "nobody trains", server)
            sent = Traffic(server.url, 1.0, 1.0, seed, stages=stages, slo=f"{TTFT_S}s/{TPOT_S}s", **_tokens()).run()
            after = [one for one in sent.records if one.due_s >= learning_s]
            found[label] = _judged(sent, after)
            if loans:
                story = _explain(server)
                found["lent_device_s"] = story["lent_device_s"]
                oracle = _oracle_s(setting, onsets, learning_s + seconds)
                found["of_oracle"] = round(story["lent_device_s"] / oracle, 3)
                found["recalls"] = len([one for one in story["decisions"] if one["to"] < one["from"]])
                found["surprises"] = len([one for one in story["decisions"] if "missed" in one])
        note(f"{kind} {label}: {found[label]}")
    found["cost"] = {key: round(found["without"][key] - found["with"][key], 4) for key in ("all", "worst_model")}
    return found


@contextmanager
def _server(setting: Setting, name: str, loans: bool) -> Iterator[Server]:
    """A server with a job that takes all it can get."""
    world = setting.world
    training = world.document["training"]
    terms = training["loans"] | {"mode": "apply" if loans else "off"}
    store = training["store"].replace("queue.db", f"{name}.db")
    config = world.write(name, training=training | {"loans": terms, "store": store})
    with Server(config, f"--plan={world.write_plan(name, setting.plan)}") as server:
        lm = {"model": world.document["models"][0]["path"], "data": str(world.folder / "tokens.npy"), "steps": 10**6}
        lm |= {"batch": 4, "context": 32, "fresh": True, "pace": STEP_S}
        job = {"id": "all", "type": "lm", "gpus": 1, "min_gpus": 1, "max_gpus": DEVICES, "duration": 10**6, "lm": lm}
        ask_admin(server.url, "/v1/jobs", json.dumps(job).encode(), "POST")
        yield server


def _tokens() -> dict[str, Any]:
    return {"prompt_tokens": str(PROMPT), "output_tokens": str(OUTPUT)}


def _explain(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = ask_admin(server.url, "/admin/explain/loans")
    return found


def _trains(server: Server) -> int:
    return sum(owner.startswith("job") for owner in server.status()["devices"].values())


def _wait(holds: Any, otherwise: str, server: Server, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            note(explain_text("loans", _explain(server)))
            raise SystemExit(f"benchmarks.loans: {otherwise} within {seconds:g} s")
        time.sleep(0.1)


def _onsets(kind: str, seconds: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    count = int(seconds // 60)
    if kind == "periodic":
        return [60.0 * n + 30 + float(rng.uniform(-5, 5)) for n in range(count)]
    onsets: list[float] = []
    while len(onsets) < count:
        at = float(rng.uniform(5, seconds - BURST_S))
        if all(abs(at - other) > BURST_S + 1 for other in onsets):
            onsets.append(at)
    return sorted(onsets)


def _stages(onsets: list[float], rate: float, seconds: float) -> str:
    """RATE:CV:DURATION, one after the other."""
    stages, at = [], 0.0
    for onset in onsets:
        stages += [f"{rate:.4f}:1:{onset - at:.3f}s", f"{BURST * rate:.4f}:1:{BURST_S:g}s"]
        at = onset + BURST_S
    return ",".join([*stages, f"{rate:.4f}:1:{seconds - at:.3f}s"])


def _judged(sent: Sent, records: list[Any]) -> dict[str, float]:
    met = {id(one) for one in sent.met}
    each = []
    for model in range(len(MODELS)):
        mine = [one for one in records if one.model == model]
        each.append(sum(id(one) in met for one in mine) / max(len(mine), 1))
    share = sum(id(one) in met for one in records) / max(len(records), 1)
    return {"all": round(share, 4), "worst_model": round(min(each), 4), "requests": len(records)}


def _devices(rungs: tuple[Rung, ...], work_per_s: float) -> int:
    return max((len(rung.drained) for rung in rungs if rung.work_per_s >= work_per_s), default=0)


def _oracle_s(setting: Setting, onsets: list[float], seconds: float) -> float:
    busy_s = BURST_S * len(onsets)
    calm, bursting = setting.lendable
    return calm * (seconds - busy_s) + bursting * busy_s


def _summary(times: list[float]) -> dict[str, float]:
    if not times:
        raise SystemExit("benchmarks.loans: no device was called back")
    return {
        "median": round(float(np.median(times)), 3),
        "p99": round(float(np.quantile(times, 0.99)), 3),
        "most": round(max(times), 3),
    }


if __name__ == "__main__":
    main()
