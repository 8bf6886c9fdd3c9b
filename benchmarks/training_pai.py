"""What the parts of `pai` bring on the preset of 6,742 GPUs under its generated load, and how good predictions are.

    python -m benchmarks.training_pai [--scale 0.1] [--tiny]

The first day is the past that the regression tree learns from; the days after it are simulated. Prints one JSON line:
`sjf` mean completion against first come first served, both without sharing; `sharing` P90 queueing with against
without, first come first served; `reserve` mean queueing of V100 jobs with reserve-and-pack against load-balancing
alone, both sharing. With $PENSTOCK_DATA also the error on the Philly jobs, beside a median per virtual cluster.
"""

from __future__ import annotations

import argparse
import csv
import io
from typing import Any

import numpy as np

from benchmarks.cases import data_root, emit, note
from placement.units import Seconds
from training.job_files import read_text
from training.jobs import Job
from training.pai_load import DAY_S, PaiLoad, pai_fleet, pai_jobs
from training.policies import policy_named
from training.prediction import errors_of, predict
from training.simulator import simulate

ROUND_S = 30.0
LADDER: dict[str, tuple[str, ...]] = {
    "fifo": (),
    "sjf": ("shortest_first",),
    "fifo, shared": ("shares",),
    "fifo, shared, reserved": ("shares", "reserves"),
    "all": ("shortest_first", "shares", "reserves"),
}
OPTIONS = ("shortest_first", "shares", "reserves")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a fiftieth of the cluster: a check that it runs")
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the cluster and of its load")
    arguments = parser.parse_args()
    tiny = arguments.tiny
    scale = 0.02 if tiny else arguments.scale
    jobs = pai_jobs(PaiLoad(days=3, scale=scale))
    past, now = [job for job in jobs if job.arrival < DAY_S], [job for job in jobs if job.arrival >= DAY_S]
    estimates = predict(past, now)
    error = errors_of(estimates, now, by_worker=True)
    note(f"{len(now)} jobs; {error}")
    needs_v100 = np.array([len(job.speeds) == 2 for job in now])
    rows: dict[str, dict[str, float]] = {}
    for label, parts in LADDER.items():
        policy = policy_named("pai", round_s=ROUND_S, **{name: name in parts for name in OPTIONS})
        outcome = simulate(now, pai_fleet(scale), policy, estimates)
        queue = np.maximum(outcome.queue, 0.0)
        rows[label] = {"mean_jct": float(outcome.jct.mean()), "p90_queue": float(np.percentile(queue, 90))}
        for who, which in (("v100", needs_v100), ("others", ~needs_v100)):
            rows[label] |= {
                f"{who}_mean_queue": float(queue[which].mean()),
                f"{who}_median_queue": float(np.median(queue[which])),
                f"{who}_p90_queue": float(np.percentile(queue[which], 90)),
            }
        short = outcome.work_s <= np.median(outcome.work_s)
        rows[label]["short_waiting_longer_than_running"] = float((queue > outcome.run_s)[short].mean())
        note(f"{label}: {rows[label]}")
    emit(
        {
            "benchmark": "training_pai",
            "jobs": len(now),
            "sjf": round(rows["sjf"]["mean_jct"] / rows["fifo"]["mean_jct"], 3),
            "sharing": round(rows["fifo, shared"]["p90_queue"] / rows["fifo"]["p90_queue"], 4),
            "reserve": round(
                rows["fifo, shared, reserved"]["v100_mean_queue"] / rows["fifo, shared"]["v100_mean_queue"], 3
            ),
            "prediction": vars(error),
            "philly": philly_errors() if scale == 1 else None,
            "rows": {label: {name: round(value, 3) for name, value in row.items()} for label, row in rows.items()},
        }
    )


def philly_jobs() -> list[Job]:
    """The public month; its virtual clusters stand for users."""
    text = read_text(data_root() / "data" / "philly" / "philly_jobs_oct.csv.gz")
    rows = sorted(
        (float(row["submit_s"]), max(float(row["duration_s"]), 1.0), int(row["num_gpus"]), row["vc"])
        for row in csv.DictReader(io.StringIO(text))
    )
    first = rows[0][0]
    return [
        Job(id=str(n), arrival=Seconds(submit - first), duration=Seconds(length), gpus=gpus, user=cluster)
        for n, (submit, length, gpus, cluster) in enumerate(rows)
    ]


def philly_errors() -> dict[str, Any] | None:
    """The last 30% of the month, predicted from what came before."""
    if not (data_root() / "data" / "philly").exists():
        return None
    jobs = philly_jobs()
    cut = len(jobs) * 7 // 10
    past, now = jobs[:cut], jobs[cut:]
    lengths: dict[str, list[float]] = {}
    for job in past:
        lengths.setdefault(job.user, []).append(job.work_s)
    median = {user: float(np.median(values)) for user, values in lengths.items()}
    whole = float(np.median([job.work_s for job in past]))
    constant = np.array([median.get(job.user, whole) for job in now])
    return {"tree": vars(errors_of(predict(past, now), now)), "cluster_median": vars(errors_of(constant, now))}


if __name__ == "__main__":
    main()
