"""How well the load generators keep to what was asked, and what generators that wait for answers would hide.

`python -m benchmarks.loadgen [--tiny]` prints one JSON line; `ratio` is the worst of these over their limits:
`penstock load` at 500/s from one core: rate within 1%, cv of the gaps within 3%, lag p99 5 ms; Locust at 200/s: 5%.
The server stands in for one, on the other core. `stall`: p99 latency against a server that stops for 2 s, as told by
our client (open loop), and by one that sends its next request when the last is answered (closed loop).
`naive`: the same arrivals by sleeping each gap, as many scripts do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.cases import emit, note
from loadgen.arrivals import gamma_arrivals
from loadgen.client.run import Outcome, run_once
from loadgen.load_test import LoadTest, look_at
from loadgen.results.figures import gap_cv
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions

ROOT = Path(__file__).parents[1]
RATE, LOCUST_RATE = 500, 200
STALL_S, TINY_STALL_S = 2.0, 0.4
USERS = 8
LIMITS = {"rate": 0.01, "cv": 0.03, "lag_s": 0.005, "locust": 0.05}


@contextmanager
def endpoint(*arguments: str) -> Iterator[str]:
    """The URL of a server in a process of its own, on the last core."""
    command = [sys.executable, "-m", "loadgen.fake_endpoint", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(process.pid))})
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def drive(url: str, **traffic: Any) -> Outcome:
    test = LoadTest(url=parse_url(url), traffic=TrafficOptions(**traffic))
    return run_once(test, look_at(test), test.traffic)


def accuracy(outcome: Outcome) -> dict[str, float]:
    summary = outcome.summary
    assert summary.lag is not None
    assert summary.cv is not None
    assert summary.drawn_cv is not None
    return {
        "rate": round(summary.rate, 2),
        "rate_error": round(abs(summary.rate / summary.asked.rate - 1), 5),
        "rate_error_to_drawn": round(abs(summary.rate / summary.drawn_rate - 1), 5),
        "cv": round(summary.cv, 4),
        "cv_error": round(abs(summary.cv / float(summary.asked.cv) - 1), 5),
        "cv_error_to_drawn": round(abs(summary.cv / summary.drawn_cv - 1), 5),
        "lag_p50_ms": round(summary.lag.p50 * 1e3, 3),
        "lag_p99_ms": round(summary.lag.p99 * 1e3, 3),
        "core": round(summary.generator_cpu, 3),
    }


def locust(url: str, rate: int, duration_s: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "summary.json")
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadgen" / "locustfile.py"), "--host", url]
        command += ["--headless", "--only-summary", "--models", "embed", "--rate", str(rate)]
        command += ["--duration", f"{duration_s}s", "--summary", str(path)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=duration_s + 60, cwd=ROOT)
        assert path.exists(), run.stderr
        told = json.loads(path.read_text())
    return {
        "rate": round(told["rate"], 2),
        "rate_error": round(abs(told["rate"] / rate - 1), 5),
        "cv": round(told["cv"], 4),
        "cv_error": round(abs(told["cv"] - 1), 5),
        "lag_p99_ms": round(told["lag"]["p99"] * 1e3, 3),
        "core": round(told["generator_cpu"], 3),
    }


async def closed_loop(url: str, duration_s: float, rate_per_s: float) -> float:
    """p99 latency as told by users who each send, wait for the answer, and pause to come to the rate together."""
    took: list[float] = []

    async def user(session: aiohttp.ClientSession) -> None:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            began = time.monotonic()
            async with session.post("/v1/embeddings", json={"model": "embed", "input": "hello"}) as response:
                await response.read()
            took.append(time.monotonic() - began)
            await asyncio.sleep(max(USERS / rate_per_s - took[-1], 0))

    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(user(session) for _ in range(USERS)))
    return float(np.percentile(took, 99))


async def naive(url: str, rate_per_s: float, duration_s: float) -> dict[str, float]:
    """Sleeps each gap, then sends: what sleeping and sending take is added to every gap."""
    gaps = np.diff(gamma_arrivals(rate_per_s, 1.0, duration_s, np.random.default_rng(0)), prepend=0.0)
    sent: list[float] = []
    tasks = set()

    async def send(session: aiohttp.ClientSession) -> None:
        async with session.post("/v1/embeddings", json={"model": "embed", "input": "hello"}) as response:
            await response.read()

    async with aiohttp.ClientSession(url) as session:
        for gap in gaps.tolist():
            await asyncio.sleep(gap)
            sent.append(time.monotonic())
            tasks.add(asyncio.create_task(send(session)))
        await asyncio.gather(*tasks)
    rate, cv = (len(sent) - 1) / (sent[-1] - sent[0]), gap_cv(np.array(sent)) or 0.0
    drawn = len(gaps) / duration_s
    return {
        "rate": round(rate, 2),
        "rate_error_to_drawn": round(abs(rate / drawn - 1), 4),
        "cv": round(cv, 4),
        "cv_error": round(abs(cv - 1), 4),
    }


def stall(duration_s: float, stall_s: float) -> dict[str, float]:
    arguments = ("--service-ms", "5", "--stall-after-s", str(duration_s / 2), "--stall-s", str(stall_s))
    with endpoint(*arguments) as url:
        outcome = drive(url, models="embed", rate="100", duration=f"{duration_s}s")
    assert outcome.summary.latency is not None
    with endpoint(*arguments) as url:
        closed = asyncio.run(closed_loop(url, duration_s, 100.0))
    opened = outcome.summary.latency.p99
    return {"open_p99_ms": round(opened * 1e3, 1), "closed_p99_ms": round(closed * 1e3, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few seconds, to see that it runs")
    tiny = parser.parse_args().tiny
    seconds = 1.0 if tiny else 60.0
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with endpoint("--service-ms", "5", "--token-ms", "5") as url:
        note("500/s, cv 1")
        steady = accuracy(drive(url, models="embed", rate=str(RATE), duration=f"{seconds}s"))
        note("500/s, cv 4")
        bursty = accuracy(drive(url, models="embed", rate=str(RATE), cv="4", duration=f"{seconds / 2}s"))
        note("100/s, 16 tokens streamed")
        streamed = accuracy(drive(url, models="chat", rate="100", output_tokens="16", duration=f"{seconds / 4}s"))
        note("Locust")
        swarm = locust(url, LOCUST_RATE, seconds / 2)
        note("sleeping each gap")
        slept = asyncio.run(naive(url, RATE, seconds / 6))
    note("a server that stalls")
    stalled = stall(1.0, TINY_STALL_S) if tiny else stall(seconds / 3, STALL_S)
    shares = {
        "rate": steady["rate_error"] / LIMITS["rate"],
        "cv": steady["cv_error"] / LIMITS["cv"],
        "lag": steady["lag_p99_ms"] / 1e3 / LIMITS["lag_s"],
        "locust rate": swarm["rate_error"] / LIMITS["locust"],
        "locust cv": swarm["cv_error"] / LIMITS["locust"],
    }
    emit(
        {
            "benchmark": "loadgen",
            "ratio": round(max(shares.values()), 3),
            "shares": {name: round(share, 3) for name, share in shares.items()},
            "steady": steady,
            "bursty": bursty,
            "streamed": streamed,
            "locust": swarm,
            "naive": slept,
            "stall": stalled,
        }
    )


if __name__ == "__main__":
    main()
