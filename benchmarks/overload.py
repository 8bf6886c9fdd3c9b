"""Three times the traffic that can be served: what is still answered in time, who is refused and how fast, what grows.

python -m benchmarks.overload [--tiny] [--seconds N]

The server of benchmarks.chaos under its capacity, then under three times that. Beside it the same overload without
deadlines, where nobody is refused at arrival and all wait (`without_deadlines`: the same server, goals a hundred times
as long, judged by the same goals). The devices are paced so slow that the server, the client and the workers together
leave the two cores they share idle for half of the time: what is measured is the queue, not who gets a core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import emit
from benchmarks.chaos import MODELS, SIZES, TINY, TINY_PACE, write_world
from benchmarks.harness.server import Server
from benchmarks.harness.traffic import Sent, Traffic, capacity_per_s

TTFT_S, TPOT_S = 1.0, 0.2
SLO = f"{TTFT_S}s/{TPOT_S}s"
OVERLOAD = 3.0
PACE = 24.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    seconds = 1.0 if options.tiny else options.seconds
    world = (TINY_PACE, TINY) if options.tiny else (PACE, SIZES)
    with tempfile.TemporaryDirectory() as folder, Server(*write_world(Path(folder), *world)) as server:
        report = measure(server, seconds)
        if not options.tiny:
            patient = Traffic(server.url, OVERLOAD * report["capacity_per_s"], seconds / 2, 7, slo="100s/20s").run()
            met = [one for one in patient.answered if one.ttft_s <= TTFT_S and not one.tpot_s > TPOT_S]
            report["without_deadlines"] = {"goodput_per_s": round(len(met) / (seconds / 2), 1)}
        emit(report)


def measure(server: Server, seconds: float) -> dict[str, Any]:
    capacity = capacity_per_s(server.url, min(seconds, 6.0), slo=SLO)
    at_capacity = Traffic(server.url, capacity, seconds / 2, 1, slo=SLO).run()
    before = _rss_bytes(server)
    over = Traffic(server.url, OVERLOAD * capacity, seconds, 2, slo=SLO).run()
    attainments = [over.attainment(model) for model in range(len(MODELS))]
    dropped = [one for one in over.records if one.reason == "expired"]
    at_arrival = [one for one in over.records if one.status in (429, 503) and one.reason != "expired"]
    refused_s = [one.done_s - one.sent_s for one in at_arrival]
    return {
        "benchmark": "overload",
        "capacity_per_s": round(capacity, 1),
        "goodput_per_s": {"at_capacity": _goodput(at_capacity), "at_3x": _goodput(over)},
        "ratio": round(_goodput(over) / max(_goodput(at_capacity), 1e-9), 3),
        "attainment": {name: round(one, 4) for name, one in zip(MODELS, attainments, strict=True)},
        "worst_over_best": round(min(attainments) / max(*attainments, 1e-9), 3),
        "refused": len(refused_s),
        "refused_p99_ms": round(1e3 * float(np.quantile(refused_s, 0.99)), 1) if refused_s else None,
        "dropped_later_share": round(len(dropped) / max(len(over.records), 1), 5),
        "rss_growth_bytes": _rss_bytes(server) - before,
        "client_lag_p99_ms": round(1e3 * over.lag_p99_s, 2),
        "goals": {"ratio": 0.9, "worst_over_best": 0.5, "refused_p99_ms": 50, "dropped_later_share": 0.01},
    }


def _goodput(sent: Sent) -> float:
    return round(sent.goodput_per_s, 1)


def _rss_bytes(server: Server) -> int:
    fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * 4096


if __name__ == "__main__":
    main()
