"""A tiny run of each benchmark, so that none rots: one JSON line, with the ratio it is there for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.server import is_alive

ROOT = Path(__file__).parents[1]
RATIOS = {
    "simulator": "ratio_to_plain",
    "planner_cases": "mean_missed_share_cut",
    "planner_scale": "ratio_to_limit",
    "max_rate": "cases",
    "generation": "ratio",
    "attention": "ratio_to_sdpa",
    "dashboard": "ratio",
    "engine": "ratio",
    "collectives": "ratio_to_gloo",
    "int8": "ratio",
    "links": "ratio_to_streams",
    "parallel": "ratio",
    "moe": "ratio",
    "training_cases": "worst_ratio",
    "training_lyra": "to_floor",
    "loans_cosim": "ratio",
    "training_pai": "sjf",
    "training_penstock": "classes",
    "scheduler": "slowest_s",
    "elastic": "ratio_to_limit",
    "loans": "ratio",
    "router": "ratio",
    "http": "ratio",
    "loadgen": "ratio",
    "moe_layer": "ratio",
    "moe_training": "ratio",
    "moe_serving": "ratio",
    "chaos": "ratio",
    "chaos_loans": "ratio",
    "overload": "ratio",
    "probes": "ratio",
    "two_models": "ratio",
    "fidelity": "ratio",
    "vllm_engine": "ratio",
    "fronts": "ratio",
    "ray_cost": "ratio",
    "scale": "ratio",
}
ELSEWHERE = {"fidelity"}
"""Run by tests/e2e/test_fidelity.py, which also looks at what it finds."""


def test_every_benchmark_is_listed() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "cases"}
    assert scripts == set(RATIOS)


NAMES = sorted(RATIOS.keys() - ELSEWHERE)
TEST = "test_a_tiny_run_prints_one_json_line"


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Of those that are asked for, two at a time: most of their time they wait."""
    asked = {item.name for item in request.session.items}
    with ThreadPoolExecutor(2) as pool:
        started = {name: pool.submit(run_tiny, name) for name in NAMES if f"{TEST}[{name}]" in asked}
        yield started
        for run in started.values():
            run.cancel()


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_run_prints_one_json_line(name: str, runs: dict[str, Future[dict[str, Any]]]) -> None:
    assert RATIOS[name] in runs[name].result()


def run_tiny(name: str) -> dict[str, Any]:
    """What it prints."""
    return run_benchmark(name, "--tiny", timeout_s=240)


def run_benchmark(name: str, *options: str, timeout_s: float = 1800) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 1
    report: dict[str, Any] = json.loads(lines[0])
    assert RATIOS[name] in report
    return report


def test_a_benchmark_that_is_told_to_end_leaves_no_server() -> None:
    command = [sys.executable, "-m", "benchmarks.fidelity", "--tiny"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        deadline = time.monotonic() + 120
        while not (servers := [int(pid) for pid in children.read_text().split()]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM
    assert not any(map(is_alive, servers))


def test_without_data_a_benchmark_says_so(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.planner_cases"],
        cwd=ROOT,
        env={"PATH": "", "PENSTOCK_DATA": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert "set PENSTOCK_DATA" in json.loads(run.stdout)["skipped"]
