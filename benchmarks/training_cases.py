"""Our policies beside the peers' own recorded results: mix480 on 64 GPUs.

    python -m benchmarks.training_cases [--tiny]

Reads $PENSTOCK_DATA/cases/training (see benchmarks.cases). The peers' figures are those of Tiresias' simulator. Prints
one JSON line; `worst_ratio` is the largest distance of a mean JCT from the peer's, as a ratio.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.cases import data_root, emit, note
from training.fleet import Fleet
from training.job_files import read_jobs
from training.policies import policy_named
from training.simulator import simulate

GPUS = 64
FIELDS = ("mean_jct", "median_jct", "p95_jct", "makespan", "preemptions")
# policy, options, what Tiresias' simulator gave: mean JCT, median, p95, makespan, preemptions
PEERS: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "fcfs --strict": ("fcfs", {"strict": True}, (14097.606, 14551, 28479.2, 120906, 0)),
    "fcfs": ("fcfs", {}, (8412.054, 4325.5, 25625.9, 116844, 0)),
    "fewest-gpus": ("fewest-gpus", {}, (7997.350, 2449.5, 33830.3, 118220, 80)),
    "srtf": ("srtf", {}, (5693.329, 1525.5, 22374.3, 115417, 577)),
    "srsf": ("srsf", {}, (5502.648, 1525.5, 19874.9, 121934, 178)),
    "tiresias-las": ("tiresias-las", {}, (6880.802, 1770.5, 32782.1, 117985, 273)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="one policy: a check that it runs")
    tiny = parser.parse_args().tiny
    path = data_root() / "cases" / "training" / "mix480.csv"
    if not path.exists():
        emit({"benchmark": "training_cases", "skipped": f"no {path}; set PENSTOCK_DATA", "worst_ratio": None})
        return
    jobs = read_jobs(path)
    rows: dict[str, Any] = {}
    for label, (name, options, peer) in list(PEERS.items())[: 1 if tiny else None]:
        summary = simulate(jobs, Fleet.of(GPUS), policy_named(name, **options)).summary()
        ours = [round(float(summary[field]), 3) for field in FIELDS]
        rows[label] = {
            "ours": dict(zip(FIELDS, ours, strict=True)),
            "peer": dict(zip(FIELDS, peer, strict=True)),
            "ratio": round(ours[0] / peer[0], 6),
        }
        note(f"{label}: {rows[label]}")
    worst = max(max(row["ratio"], 1 / row["ratio"]) for row in rows.values())
    emit({"benchmark": "training_cases", "worst_ratio": round(worst, 4), "mix480": rows})


if __name__ == "__main__":
    main()
