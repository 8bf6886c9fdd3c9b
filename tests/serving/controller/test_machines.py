"""Whose machines workers run on: what is wrong is said in one line."""

import asyncio
import importlib.util

import pytest

from placement.errors import InputError
from serving.cli import run
from serving.controller.machines import LOCAL, Machines, make_machines
from serving.machines import ray_launcher
from tests.e2e.server import write_config


def test_options():
    assert make_machines("local", None) == LOCAL
    assert make_machines("ray", "head:6379") == Machines("ray", "head:6379")
    with pytest.raises(InputError, match="give local or ray"):
        make_machines("slurm", None)
    with pytest.raises(InputError, match="give --launcher ray"):
        make_machines("local", "head:6379")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://head:10001", "give host:port"),
        ("head", "give host:port"),
        ("head:99999", "give host:port"),
        ("127.0.0.1:9", "no Ray cluster can be joined there: connection refused"),
    ],
)
def test_an_address_where_no_cluster_is(address, says, monkeypatch):
    monkeypatch.setattr(ray_launcher, "import_ray", lambda: None)
    with pytest.raises(InputError, match=says):
        asyncio.run(ray_launcher.join(address))


def test_a_machine_that_is_no_node(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_launcher, "import_ray", lambda: None)
    monkeypatch.setattr(ray_launcher, "HERE", tmp_path / "nothing")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match="no node of a Ray cluster"):
        asyncio.run(ray_launcher.join(None))


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_it_says_what_to_install(made, tmp_path, capsys):
    config = write_config(tmp_path, made[0])
    assert run(["serve", str(config), "--launcher", "ray"]) == 2
    assert "install penstock[ray]" in capsys.readouterr().err


def test_emulated_workers_need_no_machines(made, tmp_path, capsys):
    config = write_config(tmp_path, made[0], workers={"kind": "emulated"})
    assert run(["serve", str(config), "--launcher", "ray"]) == 2
    assert "leave --launcher ray away" in capsys.readouterr().err
