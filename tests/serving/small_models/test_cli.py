"""`penstock models make`."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from placement.errors import InputError
from serving.small_models import make as make_module
from serving.small_models.cli import add_models_commands


@pytest.fixture
def run(monkeypatch, library, tiny):
    """Call the command on the small library, with small settings."""
    app = typer.Typer()
    add_models_commands(app)
    real = make_module.make_models
    monkeypatch.setattr(
        make_module, "make_models", lambda *args, **named: real(*args, settings=tiny, library=library, **named)
    )
    return lambda *arguments: CliRunner().invoke(app, ["models", "make", *map(str, arguments)])


def test_it_makes_what_is_asked_and_says_what_it_is_worth(run, tmp_path):
    result = run(tmp_path, "--only", "classify", "--only", "chat", "--steps", 2, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert [model["name"] for model in told["models"]] == ["chat", "classify"]
    assert all(model["made"] and model["manifest"]["steps"] == 2 for model in told["models"])
    assert told["models"][0]["manifest"]["measures"]["perplexity"] > 1
    again = run(tmp_path, "--only", "chat", "--only", "classify", "--steps", 2)
    assert [line.split()[0] for line in again.stdout.splitlines()] == ["chat", "classify"]
    assert again.stdout.count("there already") == 2
    assert "perplexity" in again.stdout
    assert "accuracy" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("--only", "gpt"), "no such model; give one of chat"), (("--steps", 2, "--only", ""), "no such model")],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, reason):
    error = run(tmp_path, *arguments).exception
    assert isinstance(error, InputError)
    assert reason in str(error)
    assert "\n" not in str(error)


def test_help_imports_nothing_heavy():
    check = (
        "import sys, typer\n"
        "from serving.small_models.cli import add_models_commands\n"
        "add_models_commands(typer.Typer())\n"
        "print([name for name in ('torch', 'tokenizers', 'numpy', 'numba') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
