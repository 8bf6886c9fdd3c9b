"""`penstock` beside every other policy of its information class, with the truth and with wrong predictions.

    python -m benchmarks.training_penstock [--case mix480|philly|lyra15d|mixes] [--classes none,oracle,...]
        [--sigmas 0.25,...] [--others srsf,...] [--no-bound] [--tiny]

Mean queueing is JCT less the time the job takes with what it asked for (elastic: its floor, every job at its most).
mix480 runs on 64 GPUs, the public Philly month on 480, lyra15d's training part on 443 x 8 without loans; there every
class but `elastic` has jobs that take what they asked for. Prints one JSON line: by class `ratio`, our mean queueing
over the best other's, `p99_ratio` against that policy's p99 JCT and `to_bound`, our mean queueing over a lower bound
(see training/lower_bound.py); `predicted` is every policy under prediction error sigma 0.25, 0.5 and 1. Of the large
cases a class takes minutes (each policy's CPU seconds are printed): policies that decide every minute or solve programs
are left out of those, and `--others` runs `penstock` beside some alone, once the best of them is known.
`mixes`: queues drawn as mix480 was, with other seeds, on which nothing was tuned; there the ratios are geometric means
against the policy that is best on mix480.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import msgspec
import numpy as np

from benchmarks.cases import data_root, emit, note
from benchmarks.training_lyra import lyra_jobs, lyra_world
from benchmarks.training_pai import philly_jobs
from placement.units import Seconds
from training.estimates import with_error
from training.fleet import Fleet
from training.job_files import read_jobs
from training.jobs import Job
from training.lower_bound import least_mean_queue
from training.policies import policy_named
from training.simulator import World, simulate

CLASSES = ("none", "oracle", "predicted", "elastic")
NONE = ("fcfs", "fewest-gpus", "tiresias-las", "tiresias-gittins")
KNOWING = ("sjf", "srtf", "srsf", "lyra")
ELASTIC = ("lyra", "optimus", "themis")
MORE = {
    "none": ("priority", "gandiva", "antman", "pollux", "sia"),
    "knowing": ("themis", "optimus", "pai", "aonline", "andreas", "gavel", "chronus"),
}
"""Only on mix480."""
SIGMAS = (0.25, 0.5, 1.0)
CASES = ("mix480", "philly", "lyra15d", "mixes")
MIXES, MIX_WIDTHS, MIX_GPUS, MIX_LOAD = 12, {1: 240, 2: 80, 4: 80, 8: 80}, 64, 1.2
SLOTS, ROUNDS = 2000, 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, default="mix480")
    parser.add_argument("--classes", help="some of none,oracle,predicted,elastic; all when absent")
    parser.add_argument("--sigmas", help="prediction errors; all of them when absent")
    parser.add_argument("--others", help="only these beside penstock; all of the class when absent")
    parser.add_argument("--no-bound", action="store_true", help="leave the lower bound out")
    parser.add_argument("--tiny", action="store_true", help="the first jobs alone: a check that it runs")
    arguments = parser.parse_args()
    case = arguments.case
    if not (data_root() / "cases" / "training" / "mix480.csv").exists():
        emit({"benchmark": "training_penstock", "skipped": "no training cases; set PENSTOCK_DATA", "classes": None})
        return
    if case == "mixes":
        emit({"benchmark": "training_penstock", "case": case, "classes": over_mixes(1 if arguments.tiny else MIXES)})
        return
    jobs, world = read_case(case)
    jobs = jobs[:100] if arguments.tiny else jobs
    wanted = arguments.classes.split(",") if arguments.classes else CLASSES
    if not set(wanted) <= set(CLASSES):
        parser.error(f"--classes {arguments.classes}: give some of {','.join(CLASSES)}")
    sigmas = tuple(float(sigma) for sigma in arguments.sigmas.split(",")) if arguments.sigmas else SIGMAS
    only = arguments.others.split(",") if arguments.others else None
    small = case == "mix480"
    inelastic = [msgspec.structs.replace(job, min_gpus=None, max_gpus=None) for job in jobs]
    gpus = int(world.fleet.capacity.sum())
    bounds: dict[str, float] = {}
    if not arguments.no_bound:
        bounds["as asked"] = least_mean_queue(inelastic, gpus, SLOTS, ROUNDS)
        if "elastic" in wanted:
            bounds["elastic"] = least_mean_queue(jobs, gpus, SLOTS, ROUNDS)
    none, knowing = (NONE + MORE["none"], KNOWING + MORE["knowing"]) if small else (NONE, KNOWING)
    none, knowing, elastic = (chosen(names, only) for names in (none, knowing, ELASTIC))
    classes: dict[str, Any] = {}
    if "none" in wanted:
        classes["none"] = compared(inelastic, world, none, "none", None, bounds.get("as asked"))
    if "oracle" in wanted:
        classes["oracle"] = compared(inelastic, world, knowing, "oracle", None, bounds.get("as asked"))
    if "elastic" in wanted and any(job.elastic for job in jobs):
        classes["elastic"] = compared(jobs, world, elastic, "predicted", None, bounds.get("elastic"))
    for sigma in sigmas if "predicted" in wanted and not arguments.tiny else ():
        found = compared(inelastic, world, knowing, "predicted", sigma, bounds.get("as asked"))
        classes[f"predicted, sigma {sigma}"] = found
    emit(
        {
            "benchmark": "training_penstock",
            "case": case,
            "jobs": len(jobs),
            "mean_work_s": round(float(np.mean([job.work_s for job in jobs])), 1),
            "lower_bound_mean_queue": {name: round(bound, 1) for name, bound in bounds.items()},
            "classes": classes,
        }
    )


def chosen(names: tuple[str, ...], only: list[str] | None) -> tuple[str, ...]:
    """Those of a class that were asked for; all where none of them was."""
    return tuple(name for name in names if only is None or name in only) or names


def read_case(case: str) -> tuple[list[Job], World]:
    if case == "mix480":
        return read_jobs(data_root() / "cases" / "training" / "mix480.csv"), World(Fleet.of(64))
    if case == "philly":
        return philly_jobs(), World(Fleet.of(480))
    return lyra_jobs(), lyra_world(loans=False)


def over_mixes(seeds: int) -> dict[str, Any]:
    """Each class's ratios over queues drawn anew: geometric means, and the worst."""
    classes: dict[str, tuple[str, str, float | None]] = {
        "none": ("tiresias-las", "none", None),
        "oracle": ("srsf", "oracle", None),
        **{f"predicted, sigma {sigma}": ("srsf", "predicted", sigma) for sigma in SIGMAS},
    }
    longest, philly = max(job.work_s for job in read_case("mix480")[0]), philly_jobs()
    mixes = [drawn_mix(philly, longest, seed) for seed in range(seeds)]
    found: dict[str, Any] = {}
    for name, (other, information, sigma) in classes.items():
        runs = [compared(jobs, World(Fleet.of(MIX_GPUS)), (other,), information, sigma) for jobs in mixes]
        ratios = {key: np.array([run[key] for run in runs]) for key in ("ratio", "p99_ratio")}
        found[name] = {"other": other} | {
            key: {"mean": round(float(np.exp(np.log(values).mean())), 3), "worst": float(values.max())}
            for key, values in ratios.items()
        }
    return found


def drawn_mix(philly: list[Job], longest: float, seed: int) -> list[Job]:
    """Philly's durations up to mix480's longest by width, its widths and load; arrivals at random."""
    rng = np.random.default_rng(seed)
    gpus = rng.permutation(np.repeat(list(MIX_WIDTHS), list(MIX_WIDTHS.values())))
    known = {
        width: [job.work_s for job in philly if job.gpus == width and job.work_s <= longest] for width in MIX_WIDTHS
    }
    work = np.array([rng.choice(known[width]) for width in gpus.tolist()])
    arrivals = np.sort(rng.uniform(0, (work * gpus).sum() / MIX_GPUS / MIX_LOAD, len(gpus))).round()
    return [
        Job(id=str(n), arrival=Seconds(float(arrivals[n])), duration=Seconds(float(work[n])), gpus=int(gpus[n]))
        for n in range(len(gpus))
    ]


def compared(
    jobs: list[Job],
    world: World,
    others: tuple[str, ...],
    information: str,
    sigma: float | None,
    bound: float | None = None,
) -> dict[str, Any]:
    """Mean queueing and p99 JCT of each, and ours against the best other's."""
    estimates = None if sigma is None else with_error(jobs, sigma)
    floor = np.array([job.work_s * job.gpus / job.most for job in jobs])
    rows: dict[str, dict[str, float]] = {}
    for name in (*others, "penstock"):
        options = {"information": information} if name == "penstock" else {}
        began = time.process_time()
        outcome = simulate(jobs, world, policy_named(name, **options), estimates)
        rows[name] = {
            "mean_queue": round(float((outcome.jct - floor).mean()), 1),
            "p99_jct": round(float(np.percentile(outcome.jct, 99)), 1),
            "cpu_s": round(time.process_time() - began, 1),
        }
        note(f"{information} {sigma}: {name} {rows[name]}")
    best = min(others, key=lambda name: rows[name]["mean_queue"])
    return {
        "best_other": best,
        "ratio": round(rows["penstock"]["mean_queue"] / rows[best]["mean_queue"], 3),
        "p99_ratio": round(rows["penstock"]["p99_jct"] / rows[best]["p99_jct"], 3),
        "to_bound": round(rows["penstock"]["mean_queue"] / bound, 2) if bound else None,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
