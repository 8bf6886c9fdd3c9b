"""Wrong input: exit 2, one line on stderr that names the place, nothing on stdout, nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.cli import run
from tests.placement.worlds import MIB, World, group, node, shape

PLAN = ["plan", "problem.json", "--steps", "5", "--json", "--out", "out.json"]
SIMULATE = ["simulate", "problem.json", "--plan", "plan.json", "--json", "--requests", "out.npz"]
COMPARE = ["compare", "problem.json", "--steps", "5", "--json", "--report", "out.html"]


def small_world() -> World:
    """Two models on two devices, all files right."""
    return World(
        nodes=[node(2, memory=4 * MIB)],
        profiles={"p": {"shapes": [shape({1: [0.5], 2: [0.75]}), shape({1: [0.25, 0.25]})]}},
        models=[{"name": "a", "profile": "p", "slo": 2.0}, {"name": "b", "profile": "p", "slo": 2.0}],
        groups=[group(["n/0"], ["a", "b"]), group(["n/1"], ["a"])],
        arrivals=[(0.5 * number, number % 2) for number in range(20)],
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_world().write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_refused(code: int, out: str, err: str, names: list[str]) -> None:
    assert code == 2, err
    assert out == ""
    assert err.startswith("penstock: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for name in names:
        assert name in err
    assert "Traceback" not in err


def refused(folder: Path, args: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    code = run(args)
    captured = capsys.readouterr()
    check_refused(code, captured.out, captured.err, names)
    assert contents(folder) == before


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change one of the JSON files in place (or into what is returned)."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        changed = change(document)
        (folder / name).write_text(json.dumps(document if changed is None else changed))

    return apply


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return apply


def truncate(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return apply


def arrivals(times: list[float], models: list[int]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        np.savez(folder / "workload.npz", arrival=np.array(times), model=np.array(models, np.int32))

    return apply


def set_model(field: str, value: object) -> Callable[[Path], None]:
    return edit("problem.json", lambda problem: problem["models"][1].update({field: value}))


def set_problem(field: str, value: object) -> Callable[[Path], None]:
    return edit("problem.json", lambda problem: problem.update({field: value}))


def set_node(**fields: object) -> Callable[[Path], None]:
    return edit("problem.json", lambda problem: problem["cluster"]["nodes"][0].update(fields))


def set_group(**fields: object) -> Callable[[Path], None]:
    return edit("plan.json", lambda plan: plan["groups"][0].update(fields))


GAMMA = {"kind": "gamma", "duration": 10, "rates": {"a": 1, "b": 1}, "cv": 2}

FILES: dict[str, tuple[Callable[[Path], None], list[str], list[str]]] = {
    "a model no shape can hold": (set_node(memory=1000), PLAN, ["problem.json", "'a'", "1000"]),
    "a model whose shapes need more devices": (
        edit("profiles.json", lambda profiles: {"p": {"shapes": [shape({1: [0.25] * 3})]}}),
        PLAN,
        ["problem.json", "'a'", "2 devices"],
    ),
    "no devices": (set_node(devices=0), PLAN, ["problem.json", "cluster", "0 devices"]),
    "no nodes": (set_problem("cluster", {"nodes": []}), PLAN, ["problem.json", "cluster", "0 devices"]),
    "no models": (set_problem("models", []), PLAN, ["problem.json", "models"]),
    "a missing profile": (set_model("profile", "q"), PLAN, ["models[1]", "'q'", "profiles.json"]),
    "a missing profiles file": (set_problem("profiles", "none.json"), PLAN, ["none.json", "no such file"]),
    "a missing workload": (set_problem("workload", "none.npz"), PLAN, ["none.npz", "no such file"]),
    "arrivals out of order": (arrivals([0, 2, 1], [0, 0, 0]), PLAN, ["workload.npz", "arrival[2]"]),
    "an arrival that is NaN": (arrivals([0, float("nan")], [0, 0]), PLAN, ["workload.npz", "arrival[1]"]),
    "an arrival before time": (arrivals([-1, 0], [0, 0]), PLAN, ["workload.npz", "arrival[0]"]),
    "no arrivals": (arrivals([], []), PLAN, ["workload.npz", "0 requests"]),
    "an arrival of no model": (arrivals([0, 1], [0, 2]), PLAN, ["workload.npz", "model[1]"]),
    "a negative SLO": (set_model("slo", -1), PLAN, ["problem.json", "models[1]", "slo"]),
    "an SLO without sense": (set_model("slo", "soon"), PLAN, ["problem.json", "models[1]", "'soon'"]),
    "a target above all": (set_model("target", 1.5), PLAN, ["problem.json", "models[1]", "target"]),
    "two models of one name": (set_model("name", "a"), PLAN, ["problem.json", "models", "'a'"]),
    "an unknown field": (set_problem("colour", "red"), PLAN, ["problem.json", "colour"]),
    "a field that is nearly right": (
        set_model("wieght", 2),
        PLAN,
        ["problem.json", "wieght", "did you mean `weight`?"],
    ),
    "an unknown field of a model": (set_model("colour", "red"), PLAN, ["problem.json", "models", "colour"]),
    "a newer version": (set_problem("version", 2), PLAN, ["problem.json", "version 2"]),
    "a list for a problem": (edit("problem.json", lambda problem: [problem]), PLAN, ["problem.json"]),
    "truncated JSON": (truncate("problem.json"), PLAN, ["problem.json", "not valid JSON"]),
    "bytes that are no text": (write("problem.json", b"\xff\xfe{"), PLAN, ["problem.json", "not valid JSON"]),
    "an empty problem": (write("problem.json", b""), PLAN, ["problem.json"]),
    "nesting without end": (write("problem.json", b"[" * 100_000), PLAN, ["problem.json"]),
    "truncated profiles": (truncate("profiles.json"), PLAN, ["profiles.json", "not valid JSON"]),
    "a stage too few": (
        edit("profiles.json", lambda profiles: profiles["p"]["shapes"][1].update(stage_memory=[1])),
        PLAN,
        ["profiles.json", "stage_memory"],
    ),
    "a 0-byte npz": (write("workload.npz", b""), PLAN, ["workload.npz", "not a readable .npz"]),
    "a truncated npz": (truncate("workload.npz"), PLAN, ["workload.npz", "not a readable .npz"]),
    "an npz that is JSON": (write("workload.npz", b"{}"), PLAN, ["workload.npz", "not a readable .npz"]),
    "traffic of a negative rate": (
        set_problem("workload", GAMMA | {"rates": {"a": -1}}),
        PLAN,
        ["problem.json", "workload", "rates.a"],
    ),
    "traffic of an unknown kind": (
        set_problem("workload", GAMMA | {"kind": "tidal"}),
        PLAN,
        ["problem.json", "workload", "tidal"],
    ),
    "truncated plan": (truncate("plan.json"), SIMULATE, ["plan.json", "not valid JSON"]),
    "an unknown model in a plan": (set_group(models=["a", "z"]), SIMULATE, ["plan.json", "groups[0]", "'z'"]),
    "an unknown device in a plan": (set_group(devices=["n/9"]), SIMULATE, ["plan.json", "groups[0]", "n/9"]),
    "a device used twice": (set_group(devices=["n/1"]), SIMULATE, ["plan.json", "groups[1]", "n/1"]),
    "a shape of other devices": (set_group(tp=2), SIMULATE, ["plan.json", "groups", "tp2 x pp1"]),
    "a newer plan": (
        edit("plan.json", lambda plan: plan.update(version=9)),
        SIMULATE,
        ["plan.json", "version 9"],
    ),
    "more than a device holds": (set_node(memory=MIB), SIMULATE, ["plan.json", "groups[0]", "n/0", "bytes"]),
    "a problem nobody can hold, compared": (set_node(memory=1000), COMPARE, ["problem.json", "'a'"]),
}


@pytest.mark.parametrize("case", FILES)
def test_wrong_files(case: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    spoil, args, names = FILES[case]
    spoil(folder)
    refused(folder, args, names, capsys)


NOBODY = "http://127.0.0.1:1"
"""What is wrong is said before anybody is asked."""
OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "unknown policy": ([*PLAN, "--policy", "tarot"], ["--policy", "tarot", "alpaserve"]),
    "unknown rule": ([*PLAN, "--dispatch", "random"], ["--dispatch", "random", "shortest-queue"]),
    "unknown rule to simulate": ([*SIMULATE, "--dispatch", "random"], ["--dispatch", "random"]),
    "too many devices": ([*PLAN, "--devices", "3"], ["--devices 3", "2 devices"]),
    "no devices": ([*PLAN, "--devices", "0"], ["--devices"]),
    "negative steps": (["plan", "problem.json", "--steps", "-1"], ["--steps"]),
    "steps and budget": ([*PLAN, "--budget", "1s"], ["--steps", "--budget"]),
    "no budget": (["plan", "problem.json", "--budget", "0s"], ["--budget"]),
    "a budget without sense": (["plan", "problem.json", "--budget", "much"], ["--budget", "much"]),
    "a negative budget": (["plan", "problem.json", "--budget", "-3s"], ["--budget", "-3s"]),
    "batches of nothing": ([*PLAN, "--max-batch", "0"], ["--max-batch"]),
    "batches of nothing to simulate": ([*SIMULATE, "--max-batch", "0"], ["--max-batch"]),
    "a seed before all": ([*PLAN, "--seed", "-1"], ["--seed"]),
    "a seed of words": ([*PLAN, "--seed", "lucky"], ["--seed", "integer"]),
    "a cost of moves without moves": ([*PLAN, "--move-cost", "0.1"], ["--move-cost", "--previous"]),
    "a negative cost of moves": ([*PLAN, "--previous", "plan.json", "--move-cost", "-1"], ["--move-cost"]),
    "an endless cost of moves": ([*PLAN, "--previous", "plan.json", "--move-cost", "nan"], ["--move-cost"]),
    "a previous plan for a baseline": (
        [*PLAN, "--policy", "alpaserve", "--previous", "plan.json"],
        ["--previous", "alpaserve"],
    ),
    "a previous plan that is not there": ([*PLAN, "--previous", "none.json"], ["none.json", "no such file"]),
    "out in a missing folder": (["plan", "problem.json", "--out", "no/p.json"], ["--out", "no/p.json"]),
    "out in a file": (["plan", "problem.json", "--out", "plan.json/p.json"], ["--out", "plan.json/p.json"]),
    "out onto a folder": (["plan", "problem.json", "--out", "."], ["--out", "folder"]),
    "out onto a device": (["plan", "problem.json", "--out", "/dev/null"], ["--out", "/dev/null", "device"]),
    "out of too long a name": (["plan", "problem.json", "--out", "x" * 300], ["--out", "name too long"]),
    "out of a name too long to be replaced": (["plan", "problem.json", "--out", "x" * 250], ["--out", "too long"]),
    "report in a missing folder": (
        ["plan", "problem.json", "--report", "no/p.html"],
        ["--report", "no/p.html"],
    ),
    "requests in a missing folder": (
        ["simulate", "problem.json", "--plan", "plan.json", "--requests", "no/r.npz"],
        ["--requests", "no/r.npz"],
    ),
    "a problem that is not there": (["plan", "none.json"], ["none.json", "no such file"]),
    "a problem that is a folder": (["plan", "."], [".", "directory"]),
    "no problem": (["plan"], ["PROBLEM"]),
    "no plan": (["simulate", "problem.json"], ["--plan"]),
    "an unknown option": ([*PLAN, "--fast"], ["--fast"]),
    "an unknown command": (["plant"], ["plant"]),
    "rates without sense": ([*COMPARE, "--rates", "1,fast"], ["--rates", "fast"]),
    "a rate of nothing": ([*COMPARE, "--rates", "0"], ["--rates"]),
    "an endless CV": ([*COMPARE, "--cvs", "inf"], ["--cvs"]),
    "too many devices, compared": ([*COMPARE, "--devices", "1,3"], ["--devices 3", "2 devices"]),
    "half a device": ([*COMPARE, "--devices", "1.5"], ["--devices 1.5"]),
    "more than all": ([*COMPARE, "--at", "120%"], ["--at", "120%"]),
    "an unknown policy, compared": ([*COMPARE, "--policies", "penstock,tarot"], ["tarot", "clockwork"]),
    "a missing workload, compared": ([*COMPARE, "--workload", "none.npz"], ["none.npz", "no such file"]),
    "a job that is nothing": (["train", "submit"], ["nothing to run", "two dashes", "--type lm", "--jobs"]),
    "a job of no type": (["train", "submit", "--type", "dream"], ["--type 'dream'", "command or lm"]),
    "a negative rate of load": (["load", "--url", NOBODY, "--rate", "-3"], ["--rate", "-3", "above 0"]),
    "a rate of words": (["load", "--url", NOBODY, "--rate", "fast"], ["--rate", "fast"]),
    "a demo nowhere": (["up", "--listen", "localhost"], ["--listen 'localhost'", "host:port"]),
    "a demo elsewhere": (["up", "--listen", "203.0.113.7:80"], ["--listen 203.0.113.7:80", "assign"]),
    "save onto a file": (["compare", "--save", "plan.json"], ["--save", "plan.json"]),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options(case: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    args, names = OPTIONS[case]
    refused(folder, args, names, capsys)


def test_traffic_error_is_bad_input(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from loadgen.errors import TrafficError

    def fail(*_: object) -> None:
        raise TrafficError("rates.a: -1 is no rate;\ngive 0 or more")

    monkeypatch.setattr("placement.problem.read_problem", fail)
    refused(folder, PLAN, ["rates.a: -1 is no rate; give 0 or more"], capsys)


@pytest.mark.parametrize("case", ["a model no shape can hold", "a 0-byte npz", "unknown policy"])
def test_as_a_process(case: str, folder: Path):
    """The same through a real process, warnings turned into errors."""
    if case in FILES:
        spoil, args, names = FILES[case]
        spoil(folder)
    else:
        args, names = OPTIONS[case]
    before = contents(folder)
    command = [sys.executable, "-W", "error", "-m", "serving.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    check_refused(done.returncode, done.stdout, done.stderr, names)
    assert contents(folder) == before
