"""The two-device experiment of AlpaServe, for real: is it better to give two models a device each, or both a pipeline?

python -m benchmarks.two_models [--tiny] [--workers real paced] [--cases ...] [--draws N] [--seconds S]
                                [--records FILE] [--figure FILE.svg]

Two one-pass models, of which one device holds one. Placement A: a model on each device. B: both models as a pipeline
over both devices. Placements take turns, draw by draw, with the same arrivals over HTTP; nobody is refused (requests
are told a long SLO), attainment is the share within 5 passes. Beside each draw stands what the simulator makes of it
with the stage times of that draw, by the workers' own count, and what a request alone takes beyond them. `ratio`: of
the gain in mean latency (A's over B's) that the simulator gives, the share that was measured; the worst case. `real`
workers have a core each, which router and client use too; `paced` ones are real workers that take four times as long,
and leave the cores idle else.
With --records a run that was stopped goes on where it was; a complete one only prints and draws.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.cases import emit, note
from benchmarks.harness.draw import measured, send, simulated, with_goals
from benchmarks.harness.encoder import make_random_encoder
from benchmarks.harness.records import Record, Records
from benchmarks.harness.stage_times import overhead_s, stretch, stretched
from benchmarks.harness.two_models_figure import write_figure
from benchmarks.harness.watched_server import WatchedServer as Server
from benchmarks.harness.world import World, made_once, make_world, one_by_one
from loadgen.spec import traffic_from_spec
from placement.plan import Group, Plan, stage_bytes
from placement.planner import make_plan
from placement.problem import Problem, Slo
from placement.profile import Profile, ShapeProfile
from placement.search.effort import Effort
from placement.units import Bytes
from placement.workload import Workload

MODELS = ("left", "right")
DEVICES = ("local/0", "local/1")
SIZES: dict[str, Any] = {"hidden": 384, "layers": 8, "heads": 6, "ffn": 1536}
TINY: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 2, "ffn": 128}
TINY_PACE = 40.0
TINY_PROFILE = Profile(tuple(ShapeProfile(1, pp, (Bytes(2**20 // pp),) * pp, {1: (0.001 / pp,) * pp}) for pp in (1, 2)))
"""Not measured: what a tiny run finds is of no worth."""
PATIENT_S = 60.0
GOAL_PASSES = 5.0
ALONE, ALONE_LOAD = 40, 0.4
PLANNED_S = 600.0
TRIES = 3
"""Of a draw, until the generator is in time; one that never is counts for neither placement."""
PLACEMENTS = {
    "A": Plan(tuple(Group((device,), 1, 1, (model,)) for device, model in zip(DEVICES, MODELS, strict=True))),
    "B": Plan((Group(DEVICES, 1, 2, MODELS),)),
}


@dataclass(frozen=True)
class Workers:
    """How devices are stood in for: `tokens` of an input make a pass of some 30 ms."""

    kind: str
    pace: float
    tokens: int


@dataclass(frozen=True)
class Case:
    """`load` of what two devices can do; `share` of it is the first model's."""

    name: str
    load: float
    cv: float
    share: float = 0.5


KINDS = {"real": Workers("real", 1.0, 96), "paced": Workers("paced", 4.0, 24)}
CASES = (Case("poisson", 0.6, 1.0), Case("cv 3", 0.6, 3.0), Case("80/20", 0.5, 1.0, 0.8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--workers", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each draw")
    parser.add_argument("--records", type=Path, help="where draws are kept; one that is there is not made again")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    if options.tiny:
        options.draws, options.seconds, options.workers, options.cases = 1, 2.0, ["paced"], ["poisson"]
    cases = [case for case in CASES if options.cases is None or case.name in options.cases]
    records = Records(options.records, ("workers", "case", "placement", "draw"))
    for kind in options.workers:
        workers = replace(KINDS[kind], pace=TINY_PACE) if options.tiny else KINDS[kind]
        Experiment(workers, cases, options.draws, options.seconds, options.tiny, records).run()
    report = summarise(records.all)
    if options.figure is not None:
        write_figure(options.figure, report)
    emit(report)


@dataclass(frozen=True)
class Experiment:
    """All draws with one kind of workers."""

    workers: Workers
    cases: list[Case]
    draws: int
    seconds: float
    tiny: bool
    records: Records

    def run(self) -> None:
        missing = [one for one in self._turns(PLACEMENTS) if not self._is_there(*one)]
        if not missing:
            return
        with tempfile.TemporaryDirectory() as folder:
            world = self._world(Path(folder))
            problem = world.problem()
            placements, beyond_s = dict(PLACEMENTS), dict[str, float]()
            for case in self.cases:
                self._choose(problem, case, placements)
            with serving(world, placements) as servers:
                for name, plan in placements.items():
                    beyond_s[name] = self._overhead_s(problem, plan, servers[name])
                for draw, case, name in self._turns(placements):
                    if not self._is_there(draw, case, name):
                        model = replace(problem, overhead=beyond_s[name])
                        for _ in range(TRIES):
                            record = self._draw(draw, case, name, model, placements[name], servers[name])
                            if record["valid"]:
                                break
                        self.records.add(record)

    def _turns(self, placements: dict[str, Plan]) -> Iterator[tuple[int, Case, str]]:
        """Placements in turns, each first as often as the others."""
        names = list(placements)
        for draw in range(self.draws):
            for case in self.cases:
                first = draw % len(names)
                for name in names[first:] + names[:first]:
                    yield draw, case, name

    def _is_there(self, draw: int, case: Case, placement: str) -> bool:
        return self.records.has(workers=self.workers.kind, case=case.name, placement=placement, draw=draw)

    def _world(self, folder: Path) -> World:
        profiles = dict.fromkeys(MODELS, TINY_PROFILE) if self.tiny else None
        models = []
        for seed, name in enumerate(MODELS):
            path = folder / name
            if self.tiny:
                make_random_encoder(path, **TINY, seed=seed)
            else:
                path = made_once(f"encoder-{name}", partial(make_random_encoder, seed=seed), **SIZES)
            traffic = {"rate": 1, "prompt_tokens": self.workers.tokens}
            models.append({"name": name, "path": str(path), "slo": PATIENT_S, "traffic": traffic})
        workers = {"kind": self.workers.kind} | ({"pace": self.workers.pace} if self.workers.pace > 1 else {})
        world = make_world(folder, models, len(DEVICES), keeps=one_by_one, profiles=profiles, workers=workers)
        problem = world.problem()
        groups = [group for plan in PLACEMENTS.values() for group in plan.groups]
        memory = max(need for group in groups for need in stage_bytes(group, problem))
        node = world.document["cluster"]["nodes"][0] | {"memory": memory}
        return World(folder, world.document | {"cluster": {"nodes": [node]}})

    def _choose(self, problem: Problem, case: Case, placements: dict[str, Plan]) -> None:
        """Let the planner choose for this case; what is neither A nor B is measured too."""
        asked = replace(with_goals(problem, Slo(GOAL_PASSES * pass_s(problem))), workload=_traffic(problem, case))
        plan = make_plan(asked, effort=Effort(steps=10) if self.tiny else None)
        plan = msgspec.structs.replace(plan, ladder=(), planner={})
        chosen = next((name for name, known in placements.items() if _same(known, plan)), None)
        if chosen is None:
            chosen = f"planned for {case.name}"
            placements[chosen] = plan
        if not self.records.has(workers=self.workers.kind, case=case.name, placement="chosen"):
            self.records.add({"workers": self.workers.kind, "case": case.name, "placement": "chosen", "chosen": chosen})
        note(f"{self.workers.kind}, {case.name}: the planner chooses {chosen}")

    def _overhead_s(self, problem: Problem, plan: Plan, server: Server) -> float:
        """Twice: the first requests of a server are slow."""
        rate = ALONE_LOAD / pass_s(problem)
        for requests in (10, 10 if self.tiny else ALONE):
            found = overhead_s(problem, plan, server, rate, requests, prompt_tokens=f"{self.workers.tokens}")
        note(f"{self.workers.kind}: a pass is profiled as {1e3 * pass_s(problem):.1f} ms; {1e3 * found:.2f} ms outside")
        return found

    def _draw(self, draw: int, case: Case, name: str, problem: Problem, plan: Plan, server: Server) -> Record:
        rate = case.load * len(DEVICES) / pass_s(problem)
        before_s, busy_s = server.cpu_s(), server.busy_s()
        sent = send(
            server.url,
            rate=f"{rate}",
            cv=f"{case.cv}",
            mix=f"{MODELS[0]}={case.share},{MODELS[1]}={1 - case.share}",
            duration=f"{self.seconds}s",
            prompt_tokens=f"{self.workers.tokens}",
            slo=f"{PATIENT_S}s",
            seed=draw,
        )
        router_s = server.cpu_s() - before_s
        factors = stretch(problem, plan, sent, server.busy_s() - busy_s)
        goals = [Slo(GOAL_PASSES * pass_s(problem))] * len(MODELS)
        record: Record = {
            "workers": self.workers.kind,
            "case": case.name,
            "placement": name,
            "draw": draw,
            "requests": len(sent.demand),
            "seconds": self.seconds,
            "measured": measured(sent).figures(goals),
            "simulated": simulated(stretched(problem, factors), plan, sent.demand).figures(goals),
            "overhead_ms": round(1e3 * problem.overhead, 3),
            "pass_ms": round(1e3 * pass_s(problem), 3),
            "stretch": [round(factor, 4) for each in factors.values() for factor in each],
            "router_core": round(router_s / self.seconds, 4),
            "client_core": round(sent.summary.generator_cpu, 4),
            "valid": sent.summary.valid,
        }
        note(
            f"{self.workers.kind}, {case.name}, draw {draw}, {name}: mean {record['measured']['latency_ms']:.1f} ms, "
            f"simulated {record['simulated']['latency_ms']:.1f} ms{'' if sent.summary.valid else ', invalid'}"
        )
        return record


@contextmanager
def serving(world: World, placements: dict[str, Plan]) -> Iterator[dict[str, Server]]:
    """A server for each placement, all the time; those that are not asked are idle."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name, plan in placements.items():
            note(f"starting {name}")
            servers[name] = Server(world.write(name), f"--plan={world.write_plan(name, plan)}")
            stack.enter_context(servers[name])
        yield servers


def pass_s(problem: Problem) -> float:
    """Of one request on one device."""
    each = [model.profile.find(PLACEMENTS["A"].groups[0].shape, "cpu", "node") for model in problem.models]
    return float(np.mean([shape.latency() for shape in each if shape is not None]))


def summarise(records: list[Record]) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for kind in dict.fromkeys(record["workers"] for record in records):
        mine = [record for record in records if record["workers"] == kind]
        found = {case: _case(mine, case) for case in dict.fromkeys(record["case"] for record in mine)}
        draws = [record for record in mine if "draw" in record]  # invalid ones too
        kinds[kind] = {
            "cases": {case: one for case, one in found.items() if one is not None},
            "pass_ms": draws[0]["pass_ms"],
            "stretch": {name: _of(draws, name, "stretch") for name in ("A", "B")},
            "overhead_ms": {name: _of(draws, name, "overhead_ms") for name in ("A", "B")},
            "router_core": round(float(np.mean([one["router_core"] for one in draws])), 3),
            "client_core": round(float(np.mean([one["client_core"] for one in draws])), 3),
            "cpu_ms_per_request": round(_cpu_ms(draws), 2),
            "invalid_draws": sum(not one["valid"] for one in draws),
        }
    cases = [case for kind in kinds.values() for case in kind["cases"].values()]
    return {
        "benchmark": "two_models",
        "ratio": min((case["gain"]["measured_to_simulated"] for case in cases), default=None),
        "planner_is_right": all(case["chosen"] == case["better"] for case in cases),
        "workers": kinds,
        "goals": {"ratio": 0.9, "planner_is_right": True},
    }


def _case(records: list[Record], case: str) -> dict[str, Any] | None:
    mine = [record for record in records if record["case"] == case]
    late = {record["draw"] for record in mine if not record.get("valid", True)}
    mine = [record for record in mine if record.get("draw") not in late]
    chosen = next(record["chosen"] for record in mine if record["placement"] == "chosen")
    placements = dict.fromkeys(record["placement"] for record in mine if "draw" in record)
    if not {"A", "B"} <= set(placements):
        return None
    told: dict[str, Any] = {}
    for name in placements:
        draws = [record for record in mine if record["placement"] == name]
        told[name] = {
            way: {figure: round(float(np.mean([one[way][figure] for one in draws])), 4) for figure in draws[0][way]}
            for way in ("measured", "simulated")
        }
    gain = {way: told["A"][way]["latency_ms"] / told["B"][way]["latency_ms"] for way in ("measured", "simulated")}
    draws = [record for record in mine if record["placement"] == "A"]
    return {
        "draws": len(draws),
        "requests": sum(record["requests"] for record in draws),
        "gain": {
            "measured": round(gain["measured"], 3),
            "simulated": round(gain["simulated"], 3),
            "measured_to_simulated": round(gain["measured"] / gain["simulated"], 3),
        },
        "chosen": chosen,
        "better": min(told, key=lambda name: told[name]["measured"]["latency_ms"]),
        "placements": told,
    }


def _of(draws: list[Record], placement: str, figure: str) -> Any:
    """The mean; of a figure of each stage, each one's."""
    return np.mean([one[figure] for one in draws if one["placement"] == placement], axis=0).round(3).tolist()


def _cpu_ms(draws: list[Record]) -> float:
    """Of router and client together."""
    spent_s = sum((one["router_core"] + one["client_core"]) * one["seconds"] for one in draws)
    return float(1e3 * spent_s / sum(one["requests"] for one in draws))


def _traffic(problem: Problem, case: Case) -> Workload:
    """A long draw of the case's traffic, other than all that are sent."""
    rate = case.load * len(DEVICES) / pass_s(problem)
    rates = {MODELS[0]: rate * case.share, MODELS[1]: rate * (1 - case.share)}
    spec = {"kind": "gamma", "duration": PLANNED_S, "seed": 1000, "rates": rates, "cv": case.cv}
    arrivals = traffic_from_spec(spec, MODELS)
    return Workload(arrivals.arrival, arrivals.model)


def _same(one: Plan, other: Plan) -> bool:
    """Up to which of two equal devices it is."""

    def form(plan: Plan) -> list[tuple[int, int, tuple[str, ...]]]:
        return sorted((group.tp, group.pp, tuple(sorted(group.models))) for group in plan.groups)

    return form(one) == form(other)


if __name__ == "__main__":
    main()
