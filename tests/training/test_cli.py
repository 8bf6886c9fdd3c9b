"""The commands: fields that others rely on, files that are written, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from placement.errors import InputError
from tests.training.worlds import random_jobs, run
from training.cli import add_train_commands
from training.estimates import with_error
from training.fleet import Fleet
from training.job_files import read_jobs
from training.policies import policy_named
from training.simulator import simulate

JOBS = "id,arrival,duration,gpus,priority\n0,0,30,1,3\n1,0,10,1,1\n2,1,25,1,2\n3,4,40,1,4\n"


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(JOBS)
    app = typer.Typer(pretty_exceptions_enable=False)
    add_train_commands(app)
    app.callback()(lambda: None)

    def call(*arguments):
        return CliRunner().invoke(app, ["train", *arguments])

    return call


def test_simulate_prints_the_fields_of_the_design(train):
    result = train("simulate", "--jobs", "jobs.csv", "--gpus", "2", "--policy", "sjf", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    names = {"mean_jct", "median_jct", "p95_jct", "p99_jct", "mean_queue", "makespan", "preemptions", "utilization"}
    assert names <= set(summary)
    assert summary["mean_jct"] == 34
    assert summary["makespan"] == 66


def test_wrong_predictions_are_not_taken_for_the_truth(train):
    def mean(*more):
        result = train("simulate", "--jobs", "many.csv", "--gpus", "4", "--policy", "penstock", "--json", *more)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["mean_jct"]

    jobs = random_jobs(5, count=80)
    rows = [f"{one.id},{one.arrival:g},{one.duration:g},{min(one.gpus, 4)}" for one in jobs]
    Path("many.csv").write_text("\n".join(["id,arrival,duration,gpus", *rows]) + "\n")
    read = read_jobs(Path("many.csv"))
    told = {
        information: simulate(
            read, Fleet.of(4), policy_named("penstock", information=information), with_error(read, 2.0, 1)
        ).summary()["mean_jct"]
        for information in ("oracle", "predicted")
    }
    assert told["oracle"] != told["predicted"]
    assert mean("--error", "2", "--seed", "1") == pytest.approx(told["predicted"])
    assert mean() == pytest.approx(run(read, 4, "penstock").summary()["mean_jct"])


def test_files_are_written(train, tmp_path):
    arguments = ("--out", "done.csv", "--report", "page.html", "--png", "page.png")
    result = train("simulate", "--jobs", "jobs.csv", "--gpus", "2", "--policy", "fcfs", *arguments)
    assert result.exit_code == 0, result.output
    assert "makespan     70.0 s for 4 jobs under fcfs" in result.stdout
    rows = (tmp_path / "done.csv").read_text().splitlines()
    assert rows[0].startswith("id,arrival,first_start,finish")
    assert len(rows) == 5
    page = (tmp_path / "page.html").read_text()
    for words in ("4 jobs under fcfs", "How this was made", "jobs.csv"):
        assert words in page
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_loans_from_files(train, tmp_path):
    (tmp_path / "inference.csv").write_text("time,servers\n0,0\n20,1\n")
    cluster = {
        "cluster": {
            "nodes": [
                {"name": "a", "devices": 1, "kind": "v100", "memory": 1},
                {"name": "b", "devices": 1, "kind": "t4", "memory": 1},
            ]
        }
    }
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    loans = ("--inference", "inference.csv", "--lend", "t4", "--speed", "t4=0.5")
    result = train("simulate", "--jobs", "jobs.csv", "--cluster", "cluster.json", "--policy", "lyra", *loans, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["reclaimed"] == 1


def test_a_gavel_trace(train, tmp_path):
    table = {"v100": {"('A', 1)": {"null": 10.0}}, "k80": {"('A', 1)": {"null": 2.0}}}
    (tmp_path / "t.json").write_text(json.dumps(table))
    (tmp_path / "a.trace").write_text("A\tcmd\tdir\t-n\t1\t1000\t1\t1\t-1.000000\t30\n")
    nodes = [{"name": kind, "devices": 1, "kind": kind, "memory": 1} for kind in ("v100", "k80")]
    (tmp_path / "cluster.json").write_text(json.dumps({"cluster": {"nodes": nodes}}))
    where = ("--jobs", "a.trace", "--throughputs", "t.json", "--cluster", "cluster.json")
    result = train("simulate", *where, "--policy", "gavel", "--objective", "fifo-perf", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["mean_jct"] == pytest.approx(360 + 100 - 30)


def test_policies_are_listed(train):
    rows = json.loads(train("policies", "--json").stdout)
    assert rows["srtf"]["information"] == "oracle"
    assert "strict" in rows["fcfs"]["options"]
    assert "first come, first served" in train("policies").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--policy", "fcfs"), "--gpus and --cluster"),
        (("--gpus", "2", "--policy", "lifo"), "'lifo' is not known"),
        (("--gpus", "2", "--policy", "fcfs", "--speed", "t4"), "such as t4=0.33"),
        (("--gpus", "2", "--policy", "fcfs", "--speed", "t4=1"), "not in the cluster"),
        (("--gpus", "2", "--policy", "fcfs", "--lend", "t4"), "--lend 't4'"),
        (("--gpus", "2", "--policy", "fcfs", "--reclaim", "never"), "no such rule"),
        (("--gpus", "2", "--policy", "fcfs", "--objective", "x"), "no option 'objective'"),
        (("--gpus", "2", "--policy", "fcfs", "--out", "no/where.csv"), "no folder"),
        (("--gpus", "2", "--policy", "fcfs", "--lend", "any"), "need both"),
        (("--gpus", "2", "--policy", "fcfs", "--throughputs", "a", "--profiles", "b"), "give one of the two"),
        (("--gpus", "2", "--policy", "fcfs", "--throughputs", "none.json"), "cannot be read"),
    ],
)
def test_wrong_options_are_one_line(train, arguments, says):
    result = train("simulate", "--jobs", "jobs.csv", *arguments)
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("gpus: 0", "gpus"),
        ("gpus: 2, min_gpus: 2, max_gpus: 1", "they must ascend"),
        ("gpus: 1, kind: tpu", "kind 'tpu' is not in the cluster"),
        ("gpus: 1, arrival: -1", "arrival"),
        ("gpus: 1, deadline: -5", "deadline"),
        ("gpus: 1000000000000", "gpus"),
        ("gpus: 1, memory: 1e300", "memory"),
        ("gpus: 3", "3"),
        ("gpus: 1, speeds: &s {any: *s}", "speeds"),
    ],
)
def test_bad_jobs_are_one_line(train, tmp_path, words, says):
    path = tmp_path / "bad.yaml"
    path.write_text(f"jobs: [{{id: a, duration: 10, {words}}}]\n")
    result = train("simulate", "--jobs", str(path), "--gpus", "2", "--policy", "fcfs")
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)
