"""Devices of different speed and memory: choices and replicas go where they are served soonest, within what fits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.expert_placement import ExpertPlacement
from moe.parallel.places import places_of
from moe.pool import Pool
from moe.replication import Eplb, Penstock, Static, Task
from moe.split import Splitter
from serving.cli import run
from tests.moe.test_replication import best_balance, zipf

HALVES = ExpertPlacement.of_lists([[[0, 1], [0, 1]]])


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60), st.sampled_from([0.25, 1.0, 3.0]))
@settings(deadline=None, max_examples=50)
def test_a_faster_device_takes_more_choices(chosen, speed):
    """Both have both experts, so only whole choices keep the greatest time from its least."""
    places = places_of(HALVES, 0, np.array([1.0, speed]))
    slots = places.assign(torch.tensor(chosen)[:, None])
    taken = np.bincount(places.device[slots.flatten().numpy()], minlength=2)
    best = min(max(first, (len(chosen) - first) / speed) for first in range(len(chosen) + 1))
    assert max(taken[0], taken[1] / speed) == pytest.approx(best)


def test_without_speeds_devices_are_equal():
    chosen = torch.arange(40).remainder(2)[:, None]
    slots = places_of(HALVES, 0).assign(chosen)
    assert torch.equal(slots, places_of(HALVES, 0, np.ones(2)).assign(chosen))
    with pytest.raises(AssertionError):
        places_of(HALVES, 0, np.ones(3))


@pytest.mark.parametrize(
    ("speed", "slots"),
    [
        ([1.0, 1.0, 2.0, 4.0], [20, 20, 20, 20]),
        ([1.0, 1.0, 2.0, 4.0], [12, 12, 20, 36]),
        ([4.0, 2.0, 1.0, 1.0], [12, 12, 20, 36]),  # the fastest has least room
        ([1.0, 3.0, 3.0, 1.0], [40, 10, 10, 20]),
    ],
)
def test_ours_is_better_than_the_others_on_unequal_devices(speed, slots):
    load = zipf()
    pool = Pool(np.array(speed), np.array(slots), np.zeros(4, np.int64))
    task = Task(load, pool)
    ours = Penstock().place(task)
    for held, room in zip(ours.lists()[0], slots, strict=True):
        assert len(held) <= room
    balance = best_balance(load, ours, pool)
    assert balance > best_balance(load, Static().place(task), pool)
    assert balance >= best_balance(load, Eplb().place(task), pool) - 1e-9
    assert balance > 0.95
    blind = Penstock().place(Task(load, Pool(np.ones(4), np.array(slots), np.zeros(4, np.int64))))
    assert balance >= best_balance(load, blind, pool) - 1e-9


def answer(capsys, *arguments):
    assert run(["moe", "replicate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def _loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "loads.npz", load=zipf(3, 16))


@pytest.mark.usefixtures("_loads")
def test_memory_says_how_many_fit_on_each(capsys):
    load = zipf(3, 16)
    size = ("--devices", "3", "--expert-bytes", "1000000", "--memory", "36MB, 15MB, 1GB")
    result = answer(capsys, "loads.npz", *size, "--speeds", "1,1,2")
    for layer in result["placement"]:
        assert [len(held) <= room for held, room in zip(layer, (12, 5, 16), strict=True)] == [True] * 3
    pool = Pool(np.array([1.0, 1.0, 2.0]), np.array([12, 5, 16]), np.zeros(3, np.int64))
    level = Splitter(ExpertPlacement.of_lists(result["placement"]), pool.speed).levels(load)
    assert result["balancedness"] == pytest.approx(float(np.mean(load.sum(axis=1) / 4 / level)))
    nodes = answer(capsys, "loads.npz", *size, "--nodes", "3")
    assert len(nodes["placement"][0]) == 3


@pytest.mark.usefixtures("_loads")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "1GB,1GB", "--slots", "20"], "give one of the two"),
        (["--memory", "1GB"], "1 sizes for 2 devices"),
        (["--memory", "1GB,1GB"], "with --expert-bytes 0"),
        (["--memory", "1GB,lots", "--expert-bytes", "1000"], "--memory: expected an amount of memory"),
        (["--memory", "10kB,10kB", "--expert-bytes", "1000"], "6 slots for 16 experts"),
    ],
)
def test_one_line_for_memory_that_cannot_be(capsys, arguments, message):
    assert run(["moe", "replicate", "loads.npz", "--devices", "2", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
