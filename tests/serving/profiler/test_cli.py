"""`penstock profile` as a user sees it; what it measures is tested elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

import serving.cli
from placement.profile import Generation, ShapeProfile, StepCost
from serving.config import read_serve_config
from serving.profiler import cli, present
from serving.profiler.cache import Cache, default_folder
from serving.profiler.effort import QUICK
from serving.profiler.fit import FitError
from serving.profiler.profile import want
from serving.profiler.results import MeasuredModel, MeasuredShape

COST = StepCost(fixed=0.001, prefill_token=1e-5, sequence=1e-4, prefill_context=1e-8, cached_token=1e-8, weights=1e-4)


def generating(tp, pp):
    return ShapeProfile(
        tp=tp,
        pp=pp,
        stage_memory=(1_000_000,) * pp,
        generation=Generation(stages=(COST,) * pp, kv_bytes_per_token=(100.0,) * pp),
    )


def one_pass(tp, pp):
    latency = {batch: (0.001 * batch,) * pp for batch in (1, 2, 4, 8, 16)}
    return ShapeProfile(tp=tp, pp=pp, stage_memory=(1_000_000,) * pp, stage_latency=latency)


@pytest.fixture
def folder(models, tmp_path, monkeypatch):
    """A configuration whose models are in the cache already, so that nothing needs to be measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(present, "count_cores", lambda: 2)
    monkeypatch.setattr(present, "count_gpus", lambda: 0)
    document = {
        "cluster": {"nodes": [{"name": "local", "devices": 2, "kind": "cpu", "memory": "1GiB"}]},
        "models": [
            {"name": "chat", "path": str(models / "llama"), "slo": {"ttft": "1s", "tpot": "200ms"}},
            {"name": "embed", "path": str(models / "bert"), "slo": "200ms"},
        ],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    config = read_serve_config(tmp_path / "config.yaml")
    here = present.find_present(config.cluster)[0]
    for model, make, error in zip(config.models, (generating, one_pass), (FitError(0.05, 0.2, 24), None), strict=True):
        shapes = [MeasuredShape(make(*shape), error) for shape in ((1, 1), (1, 2), (2, 1))]
        Cache(default_folder()).keep(want(model, here, QUICK).digest, MeasuredModel(shapes, 2.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def penstock(monkeypatch, capsys):
    """Runs a command line; gives its exit code, stdout and stderr."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    cli.add_profile_command(app)
    monkeypatch.setattr(serving.cli, "app", app)

    def go(*arguments):
        code = serving.cli.run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return go


def test_text_tells_every_shape(folder, penstock):
    code, out, err = penstock("profile", "config.yaml", "--quick", "--out", "profiles.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "chat  (generates; measured before)"
    assert "tp1 x pp1" in lines[1]
    assert "error 5.0%, p95 20.0%, above the goal" in lines[1]
    assert lines[4] == "embed  (embed, 128 tokens an input; measured before)"
    assert "batch 1: 1.00 ms, 16: 16.00 ms" in lines[5]
    assert lines[-1] == "profiles  profiles.json"
    assert sorted(json.loads((folder / "profiles.json").read_text())) == ["chat", "embed", "version"]


def test_json_is_one_object(folder, penstock):
    code, out, err = penstock("profile", "config.yaml", "--quick", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    chat, embed = told["models"]["chat"], told["models"]["embed"]
    assert (chat["task"], chat["cached"], embed["input_tokens"]) == ("generate", True, 128)
    assert [(shape["tp"], shape["pp"], shape["source"]) for shape in embed["shapes"]] == [
        (1, 1, "measured"),
        (1, 2, "measured"),
        (2, 1, "measured"),
    ]
    assert chat["shapes"][0]["error"] == {"mean": 0.05, "p95": 0.2, "steps": 24, "within_goal": False}
    assert told["out"] is None
    assert sorted(path.name for path in folder.iterdir()) == ["cache", "config.yaml"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nowhere.yaml"], ["nowhere.yaml", "no such file"]),
        (["config.yaml", "--out", "no/folder.json"], ["--out", "no folder"]),
        (["config.yaml", "--out", "."], ["--out", "is a folder"]),
        ([], ["CONFIG"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(folder, penstock, arguments, names):
    code, out, err = penstock("profile", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("penstock: ")
    assert err.count("\n") == 1
    assert all(name in err for name in names)


def test_help_imports_nothing_heavy():
    code = (
        "import sys, typer\n"
        "from serving.profiler.cli import add_profile_command\n"
        "add_profile_command(typer.Typer())\n"
        "heavy = ('torch', 'numpy', 'numba', 'scipy', 'yaml', 'msgspec', 'rich', 'loadgen')\n"
        "sys.exit(str([name for name in heavy if name in sys.modules] or ''))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_help_names_the_options(penstock):
    code, out, _ = penstock("profile", "--help")
    assert code == 0
    assert all(option in out for option in ("--out", "--quick", "--no-cache", "--json"))
