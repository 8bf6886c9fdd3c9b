"""`penstock moe replicate`: fields that others rely on, files that are written, one line for what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from serving.cli import run
from tests.moe.test_replication import zipf


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "loads.npz", load=zipf(3, 16))
    np.savez(tmp_path / "later.npz", load=zipf(3, 16, seed=4))
    return tmp_path


def answer(capsys, *arguments):
    assert run(["moe", "replicate", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    return json.loads(captured.out)


def test_it_prints_the_fields_of_the_design(folder, capsys):
    result = answer(capsys, "loads.npz", "--devices", "4", "--slots", "21", "--expert-bytes", "1000")
    placement = result["placement"]
    assert len(placement) == 3
    assert all(len(layer) == 4 for layer in placement)
    assert all(sum(map(len, layer)) <= 21 for layer in placement)
    assert all(set().union(*layer) == set(range(16)) for layer in placement)
    assert 0.9 < result["balancedness"] <= 1
    assert result["balancedness_before"] < result["balancedness"]
    assert 0 < result["expected_gain"] < 1
    assert result["bytes_moved"] == 1000 * result["copies"] > 0


def test_what_it_wrote_is_a_previous_placement(folder, capsys):
    size = ("--devices", "4", "--slots", "20")
    first = answer(capsys, "loads.npz", *size, "--out", "held.json", "--report", "page.html")
    assert "heatmap" in (folder / "page.html").read_text()
    (folder / "printed.json").write_text(json.dumps(first))
    for name in ("held.json", "printed.json"):
        kept = answer(capsys, "later.npz", *size, "--previous", name, "--move-cost", "100")
        assert kept["placement"] == first["placement"]
        assert not kept["changed"]
        assert kept["bytes_moved"] == 0
    moved = answer(capsys, "later.npz", *size, "--previous", "held.json", "--expert-bytes", "7")
    assert moved["changed"]
    assert 0 < moved["bytes_moved"] < 7 * 3 * 20
    assert moved["balancedness"] > moved["balancedness_before"]


def test_policies_and_nodes(folder, capsys):
    size = ("--devices", "4", "--slots", "20", "--nodes", "2", "--groups", "4")
    for policy in ("penstock", "eplb"):
        result = answer(capsys, "loads.npz", *size, "--policy", policy)
        for layer in result["placement"]:
            assert not {expert // 4 for held in layer[:2] for expert in held} & {
                expert // 4 for held in layer[2:] for expert in held
            }
    static = answer(capsys, "loads.npz", "--devices", "4", "--slots", "20", "--policy", "static")
    assert static["placement"][0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert static["bytes_moved"] == 0


def test_nodes_without_groups_are_said_to_change_nothing(folder, capsys):
    size = ["moe", "replicate", "loads.npz", "--devices", "4", "--slots", "20", "--json"]
    assert run([*size, "--nodes", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "--nodes: changes nothing without --groups, which keeps experts on nodes\n"
    assert json.loads(captured.out)["placement"] == answer(capsys, *size[2:-1])["placement"]


def test_a_faster_device_gets_more(folder, capsys):
    load = np.load(folder / "loads.npz")["load"]
    result = answer(capsys, "loads.npz", "--devices", "3", "--slots", "21", "--speeds", "1,1,4")
    assert result["balancedness"] > 0.95
    held = [sum(load[0][expert] for expert in device) for device in result["placement"][0]]
    assert held[2] == max(held)


def test_for_people(folder, capsys):
    assert run(["moe", "replicate", "loads.npz", "--devices", "4", "--slots", "20"]) == 0
    out = capsys.readouterr().out
    assert "balancedness" in out
    assert "20 slots on 4 devices" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.npz", "--devices", "4", "--slots", "20"], "none.npz: cannot be read"),
        (["loads.npz", "--devices", "4", "--slots", "65"], "at most 64 are of use for 16 experts on 4 devices"),
        (["loads.npz", "--devices", "4", "--slots", "15"], "15 slots for 16 experts"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--policy", "best"], "no such policy"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--nodes", "5"], "each node needs a device"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--groups", "3"], "each must divide"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--previous", "bad.json"], "expert 1 lives nowhere"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--previous", "small.json"], "the previous placement has"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--report", "no/page.html"], "there is no folder"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--speeds", "1,2"], "2 speeds for 4 devices"),
        (["loads.npz", "--devices", "4", "--slots", "20", "--speeds", "1,2,0,x"], "--speeds"),
        (["loads.npz", "--devices", "0", "--slots", "20"], "--devices"),
        (["loads.npz", "--devices", "4"], "--slots"),
    ],
)
def test_one_line_for_what_is_wrong(folder, capsys, arguments, message):
    (folder / "bad.json").write_text('{"placement": [[[0, 2], [3]]]}')
    (folder / "small.json").write_text('{"placement": [[[0, 1], [2, 3]]]}')
    assert run(["moe", "replicate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
