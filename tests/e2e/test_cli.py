"""The program as people run it: plan, simulate, compare, up, and how it ends."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.plan import read_plan
from placement.problem import read_problem
from serving.cli import run
from tests.placement.worlds import MIB, World, node, shape

POLICIES = ("penstock", "alpaserve", "replication", "round-robin")


def bursty_world(requests: int = 400) -> World:
    """Four models on four devices of which each holds two; each model in turn has a burst of ten."""
    shapes = [
        shape({1: [0.5], 2: [0.75]}, [2 * MIB]),
        shape({1: [0.25, 0.25], 2: [0.375, 0.375]}),
        shape({1: [0.3]}, tp=2),
    ]
    bursts = [(8 * (number // 10) + 0.125 * (number % 10), number // 10 % 4) for number in range(requests)]
    return World(
        nodes=[node(4, memory=4 * MIB)],
        profiles={"p": {"shapes": shapes}},
        models=[{"name": name, "profile": "p", "slo": 2.5} for name in "abcd"],
        groups=[],
        arrivals=bursts,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bursty_world().write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "serving.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    assert run([*args, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    result: dict[str, Any] = json.loads(captured.out)
    return result


@pytest.mark.alone
def test_help_is_quick():
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = process("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        assert "simulate" in done.stdout
    assert min(taken) < 1.0  # of the processor's time: half of it on a machine that does nothing else


@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], ["compare", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(args: list[str]):
    script = f"""
import sys
from serving.cli import run
assert run({args!r}) == 0
heavy = [name for name in ("numpy", "numba", "scipy", "yaml", "msgspec", "plotly", "rich", "aiohttp", "torch")
         if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [[], ["train"], ["moe"], ["models"]])
def test_help_says_each_command_in_a_whole_line(command: list[str], capsys: pytest.CaptureFixture[str]):
    run([*command, "--help"])
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_no_arguments_show_help(capsys: pytest.CaptureFixture[str]):
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_plan_then_simulate_as_processes(folder: Path):
    """What the plan claims is what the simulator finds."""
    planned = process("plan", "problem.json", "--steps", "20", "--out", "plan.json", "--json", cwd=folder)
    assert (planned.returncode, planned.stderr) == (0, "")
    claims = json.loads(planned.stdout)
    served = process("simulate", "problem.json", "--plan", "plan.json", "--json", cwd=folder)
    assert (served.returncode, served.stderr) == (0, "")
    outcome = json.loads(served.stdout)
    assert outcome["attainment"] == claims["attainment"]
    assert outcome["worst_model"] == claims["worst_model"]
    assert claims["attainment"] <= claims["upper_bound"] <= 1
    assert claims["seconds"] > 0
    assert claims["compile_seconds"] > 0
    assert claims["policy"] == "penstock"
    written = json.loads((folder / "plan.json").read_text())
    assert written["version"] == 1
    assert written["groups"] == claims["groups"]
    assert written["planner"]["attainment"] == claims["attainment"]
    assert set(outcome["latency"]) == {"mean", "p50", "p90", "p99"}
    assert set(outcome["models"]) == set("abcd")
    assert len(outcome["groups"]) == len(claims["groups"])
    assert outcome["goodput"] > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plans(policy: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    claims = answer(capsys, "plan", "problem.json", "--policy", policy, "--steps", "10", "--out", "plan.json")
    assert claims["policy"] == policy
    assert 0 < claims["attainment"] <= 1
    read_plan(folder / "plan.json", read_problem(folder / "problem.json"))


def test_same_seed_and_steps_give_the_same_plan(folder: Path, capsys: pytest.CaptureFixture[str]):
    plans = []
    for name in ("one.json", "two.json"):
        answer(capsys, "plan", "problem.json", "--steps", "40", "--seed", "7", "--out", name)
        plan = json.loads((folder / name).read_text())
        plan["planner"].pop("seconds")
        plans.append(json.dumps(plan))
    assert plans[0] == plans[1]


@pytest.mark.alone
def test_budget_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]):
    claims = answer(capsys, "plan", "problem.json", "--budget", "300ms")
    assert 0.2 < claims["seconds"] < 5
    assert claims["attainment"] > 0


def test_fewer_devices(folder: Path, capsys: pytest.CaptureFixture[str]):
    claims = answer(capsys, "plan", "problem.json", "--steps", "10", "--devices", "2")
    assert {device for group in claims["groups"] for device in group["devices"]} <= {"n/0", "n/1"}


def test_dear_moves_bring_no_replica_where_there_was_none(folder: Path, capsys: pytest.CaptureFixture[str]):
    first = answer(capsys, "plan", "problem.json", "--policy", "replication", "--steps", "10", "--out", "plan.json")
    args = ("plan", "problem.json", "--steps", "40", "--previous", "plan.json", "--move-cost", "2000")
    for group in answer(capsys, *args)["groups"]:
        assert any(
            (group["tp"], group["pp"]) == (old["tp"], old["pp"]) and set(group["models"]) <= set(old["models"])
            for old in first["groups"]
        )


def test_requests_tell_what_happened(folder: Path, capsys: pytest.CaptureFixture[str]):
    answer(capsys, "plan", "problem.json", "--steps", "20", "--out", "plan.json")
    outcome = answer(capsys, "simulate", "problem.json", "--plan", "plan.json", "--requests", "rows.npz")
    with np.load(folder / "rows.npz") as rows, np.load(folder / "workload.npz") as traffic:
        count = len(traffic["arrival"])
        assert {"status", "group", "batch", "finish", "stage_start", "stage_end"} <= set(rows.files)
        assert all(len(rows[name]) == count for name in rows.files)
        served = rows["status"] == 0
        late = rows["finish"][served] > traffic["arrival"][served] + 2.5
        assert (served.sum() - late.sum()) / count == outcome["attainment"]
        assert (rows["stage_start"][served, 0] >= traffic["arrival"][served]).all()
        assert np.isnan(rows["finish"][~served]).all()
        assert (rows["group"][~served] == -1).all()
        for group in np.unique(rows["group"][served]):
            _, first = np.unique(rows["batch"][rows["group"] == group], return_index=True)
            for stage in range(rows["stage_start"].shape[1]):
                start = rows["stage_start"][rows["group"] == group][first, stage]
                end = rows["stage_end"][rows["group"] == group][first, stage]
                used = ~np.isnan(start)
                assert (start[used][1:] >= end[used][:-1]).all()


def test_other_arrivals_and_the_other_rule(folder: Path, capsys: pytest.CaptureFixture[str]):
    answer(capsys, "plan", "problem.json", "--steps", "20", "--out", "plan.json")
    np.savez(folder / "eval.npz", arrival=np.arange(10.0), model=np.zeros(10, np.int32))
    args = ("simulate", "problem.json", "--plan", "plan.json", "--workload", "eval.npz")
    outcome = answer(capsys, *args, "--dispatch", "shortest-queue", "--max-batch", "1")
    assert outcome["requests"] == 10
    assert outcome["attainment"] == 1
    assert outcome["dispatch"] == "shortest-queue"
    assert outcome["models"]["b"]["attainment"] is None


def test_an_empty_plan_serves_nobody(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "plan.json").write_text('{"groups": []}')
    outcome = answer(capsys, "simulate", "problem.json", "--plan", "plan.json")
    assert outcome["attainment"] == 0
    assert outcome["reasons"] == {"no-replica": outcome["requests"]}


def test_text_for_people(folder: Path, capsys: pytest.CaptureFixture[str]):
    args = ["plan", "problem.json", "--steps", "10", "--explain", "--out", "plan.json", "--report", "p.html"]
    assert run(args) == 0
    shown = capsys.readouterr().out
    for word in ("group", "tp1", "attainment", "worst model", "limited by", "No plan can", "plan.json"):
        assert word in shown
    assert "<html" in (folder / "p.html").read_text()
    assert run(["simulate", "problem.json", "--plan", "plan.json"]) == 0
    shown = capsys.readouterr().out
    for word in ("requests", "latency", "worst model", "busy"):
        assert word in shown


def test_explanation_in_json(folder: Path, capsys: pytest.CaptureFixture[str]):
    claims = answer(capsys, "plan", "problem.json", "--steps", "10", "--explain")
    explanation = claims["explanation"]
    assert set(explanation["models"]) == set("abcd")
    assert explanation["upper_bound"] == claims["upper_bound"]


def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]):
    np.savez(folder / "eval.npz", arrival=np.arange(20.0), model=np.arange(20, dtype=np.int32) % 4)
    axes = ["--rates", "1,2", "--cvs", "none", "--slo-scales", "none", "--devices", "2,4"]
    args = ["compare", "problem.json", "--policies", "penstock,round-robin", "--steps", "5", *axes]
    args += ["--workload", "eval.npz", "--png", "c.png", "--report", "c.html"]
    summary = answer(capsys, *args)
    assert {point["axis"] for point in summary["points"]} == {"rate", "devices"}
    assert {point["policy"] for point in summary["points"]} == {"penstock", "round-robin"}
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (folder / "c.html").read_text()
    assert run(args[:-4]) == 0
    assert "round-robin" in capsys.readouterr().out


def test_the_built_in_comparison_and_what_it_says_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["compare", "--save", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    for policy in POLICIES:
        assert policy in shown
    problem = read_problem(tmp_path / "demo" / "problem.json")
    read_plan(tmp_path / "demo" / "plan.json", problem)
    commands = [line.split()[1:] for line in shown.splitlines() if line.startswith("  penstock ")]
    assert len(commands) == 2
    for command in commands:
        assert run(command) == 0


def test_the_built_in_comparison_shows_that_parallelism_wins(capsys: pytest.CaptureFixture[str]):
    summary = answer(capsys, "compare")
    limits = {entry["policy"]: entry for entry in summary["limits"] if entry["rule"] == "deadline"}
    assert set(limits) == set(POLICIES)
    assert limits["penstock"]["base"] > limits["replication"]["base"] + 0.1
    assert limits["penstock"]["worst_model"][1] > 0.8  # nobody is starved


def test_interrupted(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placement.planner.make_plan", interrupt)
    assert run(["plan", "problem.json", "--out", "plan.json"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "penstock: interrupted\n"


def test_unexpected(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a stage\nis missing")

    monkeypatch.setattr("placement.planner.make_plan", fail)
    monkeypatch.delenv("PENSTOCK_DEBUG", raising=False)
    before = (folder / "plan.json").read_bytes()
    assert run(["plan", "problem.json", "--out", "plan.json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "RuntimeError: a stage is missing" in captured.err
    assert (folder / "plan.json").read_bytes() == before
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert run(["plan", "problem.json", "--out", "plan.json"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_broken_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "serving.cli", "plan", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_full_disk_is_told(tmp_path: Path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-m", "serving.cli", "plan", "--help"]
    with full.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
