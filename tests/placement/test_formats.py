"""Reading and writing files: what is right is read, what is wrong gets one line that names the file and the
place."""

import json
import os
from contextlib import suppress

import numpy as np
import pytest
import yaml

from placement.errors import InputError
from placement.files import convert, read_document, replace_file, write_json
from placement.plan import Group, Plan, read_plan, write_plan
from placement.problem import read_problem
from placement.profile import Profile, StepCost
from placement.units import parse_bytes, parse_seconds, parse_share
from placement.workload import read_workload
from tests.placement.worlds import MIB, World, group, node, shape


@pytest.fixture
def world():
    return World(
        nodes=[node(3, memory=8 * MIB, host_memory=8 * MIB), node(1, "o", kind="other")],
        profiles={"p": {"shapes": [shape({1: [0.5], 2: [0.75]}, [4 * MIB]), shape({1: [0.25, 0.25]})]}},
        models=[{"name": name, "profile": "p", "slo": 2.0} for name in "abc"],
        groups=[group(["n/0"], ["a", "b"]), group(["n/1", "n/2"], ["a"], parked=["c"])],
        arrivals=[(0.0, 0), (0.5, 1), (0.5, 2)],
        overhead=0.125,
    )


@pytest.fixture
def folder(world, tmp_path):
    world.write(tmp_path)
    return tmp_path


def edit(path, change):
    """Change a JSON document in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def refusal(call, *arguments):
    """The one line that the call is refused with."""
    with pytest.raises(InputError) as caught:
        call(*arguments)
    line = str(caught.value)
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def problem_refusal(folder):
    return refusal(read_problem, folder / "problem.json")


def set_experts(**fields):
    generation = {"stages": [{"fixed": 0.1, **fields}], "kv_bytes_per_token": [1]}
    return lambda shapes: shapes[0].update(generation=generation)


def set_model(field, value):
    return lambda document: document["models"][1].update({field: value})


def test_what_is_right_is_read(folder, world):
    problem = read_problem(folder / "problem.json")
    assert [model.name for model in problem.models] == ["a", "b", "c"]
    assert problem.models[0].slo.end_to_end == 2.0
    assert problem.models[0].profile == world.problem.models[0].profile
    assert problem.cluster == world.problem.cluster
    assert problem.overhead == 0.125
    assert problem.workload.arrival.tolist() == [0.0, 0.5, 0.5]
    assert read_plan(folder / "plan.json", problem) == world.plan


def test_units_in_yaml(folder, world):
    document = world.problem_document() | {"overhead": "125ms"}
    document["cluster"]["nodes"][0] |= {"memory": "8MiB", "host_memory": "16GiB"}
    document["models"][0] |= {"slo": "2000 ms", "target": "99.5%"}
    document["models"][1] |= {"slo": "2s"}
    (folder / "problem.yaml").write_text(yaml.safe_dump(document))
    problem = read_problem(folder / "problem.yaml")
    assert problem.overhead == 0.125
    assert problem.cluster.nodes[0].memory == 8 * MIB
    assert problem.cluster.nodes[0].host_memory == 16 * 2**30
    assert [model.slo.end_to_end for model in problem.models] == [2.0, 2.0, 2.0]
    assert problem.models[0].target == pytest.approx(0.995)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_seconds, "200ms", 0.2),
        (parse_seconds, "1.5min", 90.0),
        (parse_seconds, "2e-3 s", 0.002),
        (parse_seconds, 3, 3.0),
        (parse_bytes, "16GiB", 16 * 2**30),
        (parse_bytes, "16 GB", 16 * 10**9),
        (parse_bytes, "1000", 1000),
        (parse_share, "99%", 0.99),
        (parse_share, 0.5, 0.5),
    ],
)
def test_units(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["200 parsecs", "ms", "-1s", "1.2.3s", "nan", "1e999s", 10**400, "", True, None, [1], "2 2s"]
)
def test_units_that_are_none(text):
    for parse in (parse_seconds, parse_bytes, parse_share):
        with pytest.raises(ValueError, match="expected a"):
            parse(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_model("slo", -1.0), ["models[1] (b)", "slo", "-1"]),
        (set_model("slo", 0), ["models[1] (b)", "slo"]),
        (set_model("slo", "soon"), ["models[1] (b)", "slo", "soon"]),
        (set_model("slo", {"ttfb": 1.0}), ["models[1] (b)", "slo", "ttfb"]),
        (set_model("slo", []), ["models", "slo"]),
        (set_model("profile", "q"), ["models[1] (b)", "'q'", "profiles.json"]),
        (set_model("target", 1.5), ["models[1] (b)", "target", "1.5"]),
        (set_model("weight", 0), ["models[1] (b)", "weight"]),
        (set_model("name", "a"), ["models", "'a'"]),
        (set_model("name", 7), ["models[1].name", "str"]),
        (set_model("colour", "red"), ["models[1]", "colour"]),
        (lambda document: document.pop("cluster"), ["cluster"]),
        (lambda document: document.update(models=[]), ["models"]),
        (lambda document: document.update(workload=5), ["workload"]),
        (lambda document: document.update(workload={"kind": "waves"}), ["workload", "waves"]),
        (lambda document: document.update(overhead="-1s"), ["overhead", "-1s"]),
        (lambda document: document.update(objective="fame"), ["objective", "fame"]),
        (lambda document: document.update(version=2), ["version 2", "reads version 1"]),
        (lambda document: document.update(version="1"), ["version '1'"]),
        (
            lambda document: document["cluster"]["nodes"][0].update(devices="three"),
            ["cluster.nodes[0].devices", "int"],
        ),
        (lambda document: document["cluster"]["nodes"][0].update(devices=-3), ["cluster.nodes[0].devices"]),
        (
            lambda document: document["cluster"]["nodes"][0].update(memory="lots"),
            ["cluster.nodes[0].memory", "lots"],
        ),
        (lambda document: document["cluster"]["nodes"][0].update(memory=0), ["cluster.nodes[0]", "memory"]),
        (
            lambda document: document["cluster"]["nodes"][0].update(load_bandwidth=0),
            ["nodes[0]", "load_bandwidth"],
        ),
        (lambda document: document["cluster"]["nodes"][0].update(name="n/0"), ["nodes[0]", "n/0"]),
        (lambda document: document["cluster"]["nodes"][1].update(name="n"), ["cluster", "'n'"]),
        (lambda document: document["cluster"].update(nodes=[]), ["cluster", "0 devices"]),
    ],
)
def test_a_wrong_problem(folder, change, said):
    edit(folder / "problem.json", change)
    line = problem_refusal(folder)
    assert line.startswith(str(folder / "problem.json"))
    for word in said:
        assert word in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shapes: shapes[0].update(stage_latency={"1": [-0.5]}), ["stage_latency", "-0.5"]),
        (lambda shapes: shapes[0].update(stage_latency={"1": [0]}), ["stage_latency", "above 0"]),
        (lambda shapes: shapes[0].update(stage_latency={"2": [1.0]}), ["stage_latency", "batch size 1"]),
        (lambda shapes: shapes[0].update(stage_latency={"1": [1.0], "0": [1.0]}), ["batch size 0"]),
        (
            lambda shapes: shapes[0].update(stage_latency={"1": [1.0], "two": [1.0]}),
            ["a key of shapes[0].stage_latency", "int"],
        ),
        (lambda shapes: shapes[0].update(stage_latency={"1": [1.0, 1.0]}), ["stage_latency", "2 entries"]),
        (lambda shapes: shapes[0].update(stage_memory=[1, 1]), ["stage_memory", "2 entries"]),
        (lambda shapes: shapes[0].update(stage_memory=["much"]), ["stage_memory", "much"]),
        (lambda shapes: shapes[0].pop("stage_latency"), ["stage_latency"]),
        (set_experts(experts=0.1), ["expert_share", "above 0"]),
        (set_experts(experts=0.1, expert_share=1.5), ["expert_share", "1.5"]),
        (set_experts(experts=-0.1, expert_share=0.5), ["experts", "-0.1"]),
        (lambda shapes: shapes[0].update(tp=0), ["tp"]),
        (lambda shapes: shapes.append(shapes[0]), ["twice"]),
        (lambda shapes: shapes.clear(), ["shapes"]),
    ],
)
def test_wrong_profiles(folder, change, said):
    edit(folder / "profiles.json", lambda document: change(document["p"]["shapes"]))
    line = problem_refusal(folder)
    assert line.startswith(f"{folder / 'profiles.json'}: p: ")
    for word in said:
        assert word in line


def test_a_profile_written_before_there_were_experts_reads_as_a_dense_one():
    names = ("fixed", "weights", "prefill_token", "prefill_context", "sequence", "cached_token")
    old = convert(dict(zip(names, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), strict=True)), StepCost, "test")
    assert (old.experts, old.expert_share) == (0.0, 0.0)
    assert old.seconds(1, 2, 3, 4) == 0.1 + (0.3 * 1 + 0.5 * 2) + 0.4 * 3 + 0.6 * 4


def test_a_token_touches_its_share_of_the_experts_and_many_touch_all():
    cost = StepCost(fixed=1.0, weights=2.0, experts=8.0, expert_share=0.25)
    assert cost.seconds(0, 1, 0, 0) == 1 + 2 + 8 / 4
    assert cost.seconds(1, 1, 0, 0) == 1 + 2 + 8 * (1 - 0.75**2)
    assert cost.seconds(500, 0, 0, 0) == pytest.approx(1 + 2 + 8)
    assert cost.times(3.0) == StepCost(fixed=3.0, weights=6.0, experts=24.0, expert_share=0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda groups: groups[0].update(models=["a", "zebra"]), ["groups[0]", "'zebra'"]),
        (lambda groups: groups[1].update(parked=["zebra"]), ["groups[1]", "'zebra'"]),
        (lambda groups: groups[0].update(devices=["n/9"]), ["groups[0]", "'n/9'"]),
        (lambda groups: groups[0].update(devices=["n/1"]), ["groups[1]", "'n/1'", "groups[0]"]),
        (lambda groups: groups[0].update(models=["a", "b", "c"]), ["groups[0]", "'n/0'", str(12 * MIB)]),
        (lambda groups: groups[0].update(models=["a"], parked=["b", "c"]), ["'n'", "host memory"]),
        (lambda groups: groups[0].update(models=["a", "a"]), ["groups[0]", "twice"]),
        (lambda groups: groups[0].update(tp=2), ["groups[0]", "1 devices", "2 are needed"]),
        (lambda groups: groups[0].update(tp=0), ["groups[0].tp"]),
        (lambda groups: groups[1].update(tp=2, pp=1, parked=[]), ["groups[1]", "'a'", "tp2 x pp1"]),
        (lambda groups: groups[1].update(devices=["n/1", "o/0"]), ["groups[1]", "several kinds"]),
        (lambda groups: groups[0].update(kv_bytes={"a": 5}), ["groups[0]", "kv_bytes", "'a'"]),
        (lambda groups: groups[0].update(size=3), ["groups[0]", "size"]),
        (lambda groups: groups.append("more"), ["groups[2]", "str"]),
    ],
)
def test_a_wrong_plan(folder, world, change, said):
    edit(folder / "plan.json", lambda document: change(document["groups"]))
    line = refusal(read_plan, folder / "plan.json", world.problem)
    assert line.startswith(str(folder / "plan.json"))
    for word in said:
        assert word in line


def test_a_ladder_of_groups_that_are_not_there(folder, world):
    edit(folder / "plan.json", lambda document: document.update(ladder=[[0], [0, 2]]))
    assert "ladder" in refusal(read_plan, folder / "plan.json", world.problem)


@pytest.mark.parametrize("name", ["problem", "profiles", "plan"])
@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b'{"a": 1,}', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_document(folder, world, name, content):
    path = folder / f"{name}.json"
    path.write_bytes(content)
    call = (read_plan, path, world.problem) if name == "plan" else (read_problem, folder / "problem.json")
    assert refusal(*call).startswith(f"{path}: ")


def test_a_truncated_document(folder, world):
    for name in ("problem", "profiles", "plan"):
        path = folder / f"{name}.json"
        whole = path.read_bytes()
        for length in range(0, len(whole), 97):
            path.write_bytes(whole[:length])
            call = (read_plan, path, world.problem) if name == "plan" else (read_problem, folder / "problem.json")
            assert refusal(*call).startswith(f"{path}: not valid JSON")
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "content", ["a: [", "\tx: 1", "a: !!python/object:os.system {}", "- 1", "a: 1\na: {b", "\x00", "a: " + "9" * 5000]
)
def test_what_is_no_yaml(folder, content):
    path = folder / "problem.yaml"
    path.write_text(content)
    assert refusal(read_problem, path).startswith(f"{path}: ")


def test_files_that_are_not_there(folder, world):
    for name, call in {
        "plan.json": (read_plan, folder / "plan.json", world.problem),
        "workload.npz": (read_problem, folder / "problem.json"),
        "profiles.json": (read_problem, folder / "problem.json"),
        "problem.json": (read_problem, folder / "problem.json"),
    }.items():
        (folder / name).unlink()
        line = refusal(*call)
        assert line.startswith(f"{folder / name}: ")
        assert "no such file" in line
    assert refusal(read_problem, folder).startswith(f"{folder}: cannot be read")


ARRIVAL = np.array([0.0, 0.5, 0.5])
MODEL = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"arrival": np.array([0.0, 2.0, 1.0]), "model": MODEL}, "arrival[2] is 1; arrivals must ascend"),
        ({"arrival": np.array([0.0, np.nan, 1.0]), "model": MODEL}, "arrival[1] is nan"),
        ({"arrival": np.array([0.0, 1.0, np.inf]), "model": MODEL}, "arrival[2] is inf"),
        ({"arrival": np.array([-1.0, 0.0, 1.0]), "model": MODEL}, "arrival[0] is -1"),
        ({"arrival": ARRIVAL[:0], "model": MODEL[:0]}, "arrival: 0 requests"),
        ({"arrival": ARRIVAL.astype(str), "model": MODEL}, "arrival: expected one column of numbers"),
        ({"arrival": ARRIVAL[None], "model": MODEL}, "arrival: expected one column of numbers"),
        (
            {"arrival": ARRIVAL, "model": np.array([0, 3, 0])},
            "model[1] is 3; the problem's models are 0 to 2",
        ),
        ({"arrival": ARRIVAL, "model": np.array([0, -1, 0])}, "model[1] is -1"),
        ({"arrival": ARRIVAL, "model": np.array([0, 0.5, 0])}, "model[1] is 0.5"),
        ({"arrival": ARRIVAL, "model": np.array([0, np.nan, 0])}, "model[1] is nan"),
        ({"arrival": ARRIVAL, "model": MODEL[:2]}, "model: 2 entries for 3 arrivals"),
        ({"arrival": ARRIVAL}, "has no `model`"),
        ({"model": MODEL}, "has no `arrival`"),
        ({"arrival": ARRIVAL, "model": MODEL, "prompt_tokens": MODEL}, "has only one of prompt_tokens"),
        (
            {"arrival": ARRIVAL, "model": MODEL, "prompt_tokens": MODEL, "output_tokens": MODEL - 1},
            "output_tokens[0] is -1",
        ),
    ],
)
def test_a_wrong_workload(folder, fields, said):
    np.savez(folder / "workload.npz", **fields)
    line = problem_refusal(folder)
    assert line.startswith(f"{folder / 'workload.npz'}: {said}")


def test_what_is_no_workload(folder):
    path = folder / "workload.npz"
    whole = path.read_bytes()
    array = folder / "array.npy"
    np.save(array, ARRIVAL)
    pickled = folder / "pickled.npz"
    np.savez(pickled, arrival=np.array([{}]), model=MODEL)
    for content in (
        b"",
        b"PK",
        whole[:100],
        whole[:-30],
        b"not numbers",
        array.read_bytes(),
        pickled.read_bytes(),
    ):
        path.write_bytes(content)
        assert refusal(read_workload, path, 3).startswith(f"{path}: not a readable .npz file")
    assert refusal(read_workload, folder, 3).startswith(f"{folder}: ")


def test_a_damaged_workload(folder):
    """Any one byte changed: read as something, or refused, never anything else."""
    path = folder / "workload.npz"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with suppress(InputError):
            read_workload(path, 3)


def test_a_plan_is_read_as_it_was_written(tmp_path, world):
    plan = Plan(
        (
            Group(("n/0",), 1, 1, ("a", "b")),
            Group(("n/1", "n/2"), 1, 2, ("a",), parked=("c",), experts={"a": "experts.json"}),
        ),
        ladder=((0,), (0, 1)),
        planner={"policy": "penstock", "attainment": 0.5, "worst_model": ["b", 0.25]},
    )
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json", world.problem) == plan
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["version"] == 1
    assert "parked" not in written["groups"][0]
    write_plan(tmp_path / "again.json", read_plan(tmp_path / "plan.json", world.problem))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_a_profile_is_read_as_it_was_written(tmp_path, world):
    profile = world.problem.models[0].profile
    write_json(tmp_path / "profiles.json", {"p": profile})
    assert read_document(tmp_path / "profiles.json", dict[str, Profile]) == {"p": profile}


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    replace_file(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    for step in ("replace", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            assert refusal(replace_file, path, b"new") == f"{path}: cannot be written: no space left on device"
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert refusal(replace_file, tmp_path / "nowhere" / "plan.json", b"new").startswith(f"{tmp_path}/nowhere/plan.json")


def test_a_write_that_is_interrupted_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    replace_file(path, b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
