"""Where experts live and how tokens are split: balance, drift, planning and splitting time, beside EPLB and others.

    python -m benchmarks.moe [--tiny] [--swapped]

Reads $PENSTOCK_DATA (see benchmarks.cases): cases/experts with the peers' own figures, and real routes of a DeepSeek
model. Balancedness is mean over greatest device load, mean over layers. Latency is an emulation: routes replayed
through devices that only keep time (benchmarks/harness/expert_replay.py says how). Prints one JSON line; `ratio` is
EPLB's p95 latency over ours with 8 emulated devices.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import msgspec
import numpy as np

from benchmarks.cases import data_root, emit, note
from benchmarks.harness.expert_replay import (
    BATCH,
    EXPERTS,
    Domain,
    first_placement,
    latencies,
    levels_of,
    loads,
    mixed,
    read_domains,
    replay,
)
from moe.arrays import Floats
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.popularity import Accuracy, Blend, Estimator, Marginal, Paths, Recent
from moe.replication import Eplb, Lina, Penstock, Task, place
from moe.split import Splitter, balancedness, even_levels

DRIFT = 0.3
DRAWS = 8
ROUNDS = 7
UTILISATION = 0.7
"""Of what static placement could serve, in the emulation."""
ARRIVALS = 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="made-up loads and routes: a check that it runs")
    parser.add_argument(
        "--swapped", action="store_true", help="plan from the later half of the routes, judge on the first"
    )
    arguments = parser.parse_args()
    tiny = arguments.tiny
    result: dict[str, Any] = {"benchmark": "moe"}
    if tiny:
        domains = _made_up_domains()
    else:
        folder, routes = data_root() / "cases" / "experts", data_root() / "data/experts/deepseek_v2_lite_routes.npz"
        missing = next((path for path in (folder / "peer.json", routes) if not path.exists()), None)
        if missing is not None:
            emit({**result, "skipped": f"no {missing}; set PENSTOCK_DATA", "ratio": None})
            return
        result["cases"] = _cases(msgspec.json.decode((folder / "peer.json").read_bytes()))
        domains = read_domains(routes)
    if arguments.swapped:
        domains = {name: Domain(domain.later, domain.history) for name, domain in domains.items()}
    result["planning"] = _planning(2 if tiny else 58)
    result["split"] = _split_time()
    result["real_routes"] = _real_routes(domains, (80,) if tiny else (72, 80, 96))
    result["domain_change"] = _domain_change(domains)
    result["popularity"] = _popularity(domains)
    result["look_ahead"] = _look_ahead(domains)
    result["emulated"] = {
        f"{devices} devices": _emulated(domains, devices, slots) for devices, slots in ((8, 80), (32, 96))
    }
    result["ratio"] = result["emulated"]["8 devices"]["latency_p95_eplb_over_ours"]
    emit(result)


def _cases(peers: list[dict[str, Any]]) -> dict[str, Any]:
    """Each of the peers' cases: their balance and ours, planned for and after a drift of the load."""
    rows = {}
    for case in peers:
        zipf = case["case"].split("_")[1]
        with np.load(data_root() / "cases" / "experts" / f"{zipf}.npz") as data:
            load = data["load"].astype(np.float64)
        pool = Pool.even(case["gpus"], case["replicas"], case["nodes"])
        chance = np.random.default_rng(0)
        drifted = [load * np.exp(DRIFT * chance.standard_normal(load.shape)) for _ in range(DRAWS)]
        row: dict[str, Any] = {
            f"peer_{name}": round(entry["bal"], 4) for name, entry in case.items() if isinstance(entry, dict)
        }
        for label, groups in (("", None), ("_by_node", case["groups"] if "eplb_hier" in case else None)):
            if label and groups is None:
                continue
            task = Task(load, pool, groups=groups)
            eplb, ours = place(Eplb(), task), place(Penstock(), task)
            row[f"eplb_even{label}"] = _mean(load, even_levels(load, eplb, pool.speed), pool)
            row[f"ours{label}"] = _mean(load, Splitter(ours, pool.speed).levels(load), pool)
            row[f"drift_eplb_even{label}"] = _drift(drifted, levels_of("eplb", eplb, pool), pool)
            row[f"drift_eplb_split{label}"] = _drift(drifted, Splitter(eplb, pool.speed).levels, pool)
            row[f"drift_ours{label}"] = _drift(drifted, Splitter(ours, pool.speed).levels, pool)
        rows[case["case"]] = row
        note(f"{case['case']}: {row}")
    return rows


def _mean(load: Floats, level: Floats, pool: Pool) -> float:
    return round(float(balancedness(load, level, pool.speed).mean()), 4)


def _drift(drifted: list[Floats], levels: Callable[[Floats], Floats], pool: Pool) -> float:
    return round(statistics.fmean(float(balancedness(load, levels(load), pool.speed).mean()) for load in drifted), 4)


def _planning(layers: int) -> dict[str, Any]:
    """CPU seconds, compilation left out: afresh, and from a previous placement after a drift."""
    chance = np.random.default_rng(0)
    load = chance.permuted(np.arange(1, 257) ** -1.25 * np.exp(0.1 * chance.standard_normal((layers, 256))), axis=1)
    pool = Pool.even(32, 288)
    held = Penstock().place(Task(load, pool))
    later = load * np.exp(DRIFT * chance.standard_normal(load.shape))
    rows: dict[str, Any] = {"layers": layers, "experts": 256, "slots": 288, "devices": 32}
    for name, policy, task in (
        ("ours", Penstock(), Task(load, pool)),
        ("ours_from_previous", Penstock(), Task(later, pool, previous=held)),
        ("our_eplb", Eplb(), Task(load, pool)),
    ):
        policy.place(task)
        rows[f"{name}_cpu_s"] = round(_least(partial(policy.place, task)), 4)
    moved = Penstock().place(Task(later, pool, previous=held)).copies_from(held).sum()
    rows["slots_moved_from_previous"] = round(float(moved) / (layers * pool.total), 4)
    note(f"planning: {rows}")
    return rows


def _least(call: Callable[[], object], number: int = 1) -> float:
    """CPU seconds of a call."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(number):
            call()
        times.append((time.process_time() - begin) / number)
    return min(times)


def _split_time() -> dict[str, Any]:
    """Microseconds of a layer of 64 experts on 8 devices: one at a time from Python, and 26 layers at once."""
    chance = np.random.default_rng(0)
    load = np.stack([1e3 * chance.dirichlet(np.full(EXPERTS, 0.5)) for _ in range(26)])
    tokens = np.stack([chance.multinomial(6 * BATCH, row / row.sum()) for row in load])
    rows: dict[str, Any] = {}
    for slots in (72, 80, 96):
        pool = Pool.even(8, slots)
        splitter = Splitter(Penstock().place(Task(load, pool)), pool.speed)
        splitter.split(tokens)
        rows[f"{slots} slots"] = {
            "layer_us": round(1e6 * _least(partial(splitter.split_layer, 0, tokens[0]), 200), 1),
            "of_26_us": round(1e6 * _least(partial(splitter.split, tokens), 50) / 26, 1),
        }
    note(f"split: {rows}")
    return rows


def _real_routes(domains: dict[str, Domain], all_slots: tuple[int, ...]) -> dict[str, Any]:
    """Balance of batches of 512 tokens on 8 devices, planned from a history and left as it is."""
    rows: dict[str, Any] = {}
    for slots in all_slots:
        pool = Pool.even(8, slots)
        row: dict[str, list[float]] = {}
        for name, domain in domains.items():
            others = [other for other in domains if other != name]
            histories = [("same", domain.history), ("mixed", mixed(domains))]
            histories += [("another", domains[other].history) for other in others]
            for kind, history in histories:
                eplb = first_placement("eplb", history, pool)
                ours = first_placement("penstock", history, pool)
                for label, policy, placement in (("eplb_even", "eplb", eplb), ("ours", "penstock", ours)):
                    row.setdefault(f"{kind}_{label}", []).append(_served(domain, policy, placement, pool))
                row.setdefault(f"{kind}_eplb_split", []).append(_served(domain, "penstock", eplb, pool))
        rows[f"{slots} slots"] = {key: round(statistics.fmean(values), 4) for key, values in sorted(row.items())}
        note(f"real routes, {slots} slots: {rows[f'{slots} slots']}")
    return rows


def _served(domain: Domain, policy: str, placement: ExpertPlacement, pool: Pool) -> float:
    levels = levels_of(policy, placement, pool)
    seen = loads(domain.later)
    return statistics.fmean(float(balancedness(load, levels(load), pool.speed).mean()) for load in seen)


def _domain_change(domains: dict[str, Domain]) -> dict[str, Any]:
    """History of one domain, then batches of another: balance batch by batch, 80 slots on 8 devices."""
    pool = Pool.even(8, 80)
    rows: dict[str, Any] = {}
    for policy in ("eplb", "penstock"):
        series = []
        moved = 0
        for before, after in permutations(domains, 2):
            stream = domains[after].later[:8]
            served = replay(policy, domains[before].history, stream, pool, every=2)
            series.append(served.balance)
            moved += served.bytes_moved
        shortest = min(map(len, series))
        mean = np.mean([balance[:shortest] for balance in series], axis=0)
        rows[policy] = [round(float(value), 4) for value in mean]
        if policy == "penstock":
            rows["gib_moved_in_a_change"] = round(moved / len(series) / 2**30, 2)
    note(f"domain change: {rows}")
    return rows


def _popularity(domains: dict[str, Domain]) -> dict[str, Any]:
    """How near each estimator is a layer ahead, after a mixed history and after another domain's."""
    rows: dict[str, Any] = {}
    for kind in ("mixed", "another"):
        found: dict[str, list[Accuracy]] = {}
        for name, domain in domains.items():
            other = next(other for other in domains if other != name)
            history = mixed(domains) if kind == "mixed" else domains[other].history
            for label, estimator in _estimators(history).items():
                accuracy = Accuracy()
                for batch in domain.later:
                    accuracy.measure(estimator, batch, EXPERTS)
                    if isinstance(estimator, (Recent, Blend)):
                        estimator.learn(batch)
                found.setdefault(label, []).append(accuracy)
        rows[kind] = {
            label: {
                "total_variation": round(statistics.fmean(accuracy.variation for accuracy in measured), 4),
                "top8_recall": round(statistics.fmean(accuracy.recall for accuracy in measured), 4),
            }
            for label, measured in found.items()
        }
    note(f"popularity: {rows}")
    return rows


def _look_ahead(domains: dict[str, Domain]) -> dict[str, Any]:
    """Lina's rule with each estimator: layer by layer, replicas into 8 spare slots for what the batch in hand is
    expected to choose next; mixed history. Beside it our placement, which moves nothing within a batch."""
    pool = Pool.even(8, 72)
    found: dict[str, list[float]] = {}
    ours = Splitter(first_placement("penstock", mixed(domains), pool), pool.speed)
    for domain in domains.values():
        estimators = _estimators(mixed(domains))
        for batch in domain.later:
            actual = loads([batch])[0][1:]
            expected = {
                label: np.stack([estimator.ahead(layer, batch[:, :layer]) for layer in range(1, batch.shape[1])])
                for label, estimator in estimators.items()
            }
            for label, load in (*expected.items(), ("oracle", actual)):
                placement = Lina().place(Task(load, pool))
                for split, level in (
                    ("even", even_levels(actual, placement, pool.speed)),
                    ("split", Splitter(placement, pool.speed).levels(actual)),
                ):
                    balance = float(balancedness(actual, level, pool.speed).mean())
                    found.setdefault(f"lina_{label}_{split}", []).append(balance)
            level = ours.levels(loads([batch])[0])[1:]
            found.setdefault("ours", []).append(float(balancedness(actual, level, pool.speed).mean()))
            for label in ("recent", "blend"):
                estimators[label].learn(batch)
    rows = {label: round(statistics.fmean(values), 4) for label, values in found.items()}
    note(f"look-ahead: {rows}")
    return rows


def _estimators(history: list[Any]) -> dict[str, Estimator]:
    shape = (history[0].shape[1], EXPERTS)
    made: dict[str, Estimator] = {"marginal": Marginal(*shape), "recent": Recent(*shape)}
    made |= {f"path of {length}": Paths(*shape, length) for length in (1, 2, 3)}
    made["blend"] = Blend(Paths(*shape), Recent(*shape))
    for estimator in made.values():
        for batch in history:
            estimator.learn(batch)
    return made


def _emulated(domains: dict[str, Domain], devices: int, slots: int) -> dict[str, Any]:
    """EMULATED latency: mixed history, then the domains' later batches, one domain after the other. EPLB is placed
    once, or anew every few batches: whichever has the better p95."""
    pool = Pool.even(devices, slots)
    stream = [batch for domain in domains.values() for batch in domain.later]
    policies = ("static", "eplb", "eplb_once", "penstock")
    served = {policy: replay(policy, mixed(domains), stream, pool) for policy in policies}
    rate = UTILISATION / float(served["static"].service_s.mean())
    arrival = np.cumsum(np.random.default_rng(0).exponential(1 / rate, ARRIVALS))
    latency = {policy: float(np.quantile(latencies(run.service_s, arrival), 0.95)) for policy, run in served.items()}
    once = latency["eplb_once"] < latency["eplb"]
    kept_run, kept_latency = served.pop("eplb_once"), latency.pop("eplb_once")
    if once:
        served["eplb"], latency["eplb"] = kept_run, kept_latency
    service = {policy: float(np.quantile(run.service_s, 0.95)) for policy, run in served.items()}
    rows: dict[str, Any] = {"slots": slots, "eplb_placed": "once" if once else "anew"}
    rows["gib_moved"] = round(served["penstock"].bytes_moved / 2**30, 2)
    for policy, run in served.items():
        rows[policy] = {
            "balancedness": round(float(run.balance.mean()), 4),
            "service_p95_ms": round(1e3 * service[policy], 3),
            "latency_p95_ms": round(1e3 * latency[policy], 3),
        }
    for policy in ("static", "eplb"):
        rows[f"service_p95_{policy}_over_ours"] = round(service[policy] / service["penstock"], 3)
        rows[f"latency_p95_{policy}_over_ours"] = round(latency[policy] / latency["penstock"], 3)
    note(f"emulated, {devices} devices: {rows}")
    return rows


def _made_up_domains() -> dict[str, Domain]:
    """Three kinds of skewed routes, of 3 layers."""
    chance = np.random.default_rng(0)
    domains = {}
    for name in ("a", "b", "c"):
        popular = np.stack([chance.dirichlet(np.full(EXPERTS, 0.4)) for _ in range(3)]) + 1e-4
        keys = np.log(popular) + chance.gumbel(size=(6 * BATCH, 3, EXPERTS))
        routes = np.argsort(-keys, axis=2)[:, :, :6].astype(np.uint8)
        batches = [routes[begin : begin + BATCH] for begin in range(0, len(routes), BATCH)]
        domains[name] = Domain(batches[:3], batches[3:])
    return domains


if __name__ == "__main__":
    main()
