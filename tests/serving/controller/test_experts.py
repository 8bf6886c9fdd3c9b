"""Experts moved by a controller over real worker processes: by themselves, by a plan, and never to a bad copy."""

import asyncio
import json
import os
import shutil
import signal
import time

import numpy as np
import pytest

from moe.popularity import FILE_NAME, Paths, save_profile
from placement.errors import InputError
from router import NotServed
from serving.controller import views
from serving.controller.expert_files import ExpertModel
from serving.controller.expert_share import LEAST
from serving.controller.expert_views import expert_figures, explain_experts
from serving.controller.experts import Where
from serving.controller.group_experts import Placed
from serving.controller.status import explain_text, status_text
from serving.models import read_config
from tests.serving.controller.expert_world import (
    CACHE_BYTES,
    SPREAD,
    UNEVEN,
    answer,
    answers,
    clients,
    make_model,
    plan,
    serving,
    write_places,
)
from tests.serving.controller.worlds import run, until

WHERE = Where("g0", "moe")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "moe")


def test_experts_move_to_where_they_are_less_waited_for_and_stay_through_a_death(directory, tmp_path):
    async def work():
        first = plan(write_places(tmp_path / "places.json", UNEVEN))
        async with serving(directory, first) as (controller, keeper):
            runner = controller.runners["g0"]
            expected = await answers(controller, "before")
            pids = [handle.pid for handle in runner.group.handles]
            async with clients(controller, expected):
                await keeper.look()
            uneven = keeper.seen[WHERE].balance.mean()
            check_gain(keeper)
            moved = runner.experts.placed["moe"].now
            assert keeper.moves[WHERE] == 1
            assert keeper.moved_bytes[WHERE] > 0
            assert moved != UNEVEN
            assert [handle.pid for handle in runner.group.handles] == pids, "nothing was loaded anew"
            for number in range(2):
                assert await answers(controller, f"after{number}") == expected
                await keeper.look()
            assert keeper.seen[WHERE].balance.mean() > uneven + 0.1
            assert keeper.moves[WHERE] == 1, "the same traffic is no reason to move again"
            check_told(controller, keeper)
            await check_death(controller, keeper, expected, moved)

    run(work(), 100)


def test_experts_are_placed_by_the_models_profile_before_anybody_asks(directory, tmp_path):
    own = shutil.copytree(directory, tmp_path / "moe")
    paths = Paths(3, 6)
    paths.learn(np.random.default_rng(0).integers(0, 5, (500, 3, 1)))  # nobody chooses the last, alone on its device
    save_profile(own / FILE_NAME, paths)

    async def work():
        first = plan(write_places(tmp_path / "places.json", UNEVEN))
        async with serving(own, first) as (controller, keeper):
            await keeper.look()
            assert keeper.moves[WHERE] == 1
            assert controller.runners["g0"].experts.placed["moe"].now != UNEVEN
            await keeper.look()
            assert keeper.moves[WHERE] == 1

    run(work(), 100)


def test_nothing_is_moved_to_where_there_is_no_memory_for_it(directory, tmp_path):
    """Just enough for what the plan has on the first device, 11 experts of three layers; slices would be 9."""
    size = ExpertModel(read_config(directory), "fp32", directory).expert_bytes

    async def work():
        first = plan(write_places(tmp_path / "places.json", UNEVEN))
        async with serving(directory, first, memory=2**20 + CACHE_BYTES + 2 * size) as (controller, keeper):
            await answers(controller, "asked")
            await keeper.look()
            assert keeper.seen[WHERE].decision.changes
            assert (keeper.moves[WHERE], keeper.failures[WHERE]) == (0, 1)
            assert "group g0: device 'n/0' would hold" in explain_experts(keeper)["experts"][0]["reason"]
            assert controller.runners["g0"].experts.placed["moe"].now == UNEVEN

    run(work(), 100)


def test_what_cannot_be_moved_leaves_the_group_serving(directory, tmp_path, monkeypatch):
    """A refusal by the workers is told, and tried again much later."""

    async def work():
        first = plan(write_places(tmp_path / "places.json", UNEVEN))
        async with serving(directory, first) as (controller, keeper):
            runner = controller.runners["g0"]
            expected = await answers(controller, "asked")
            monkeypatch.setattr(runner.group, "place_experts", refuse)
            for _ in range(2):
                await keeper.look()
                assert await answers(controller, f"asked{_}") == expected
            assert keeper.failures[WHERE] == 1, "it rests"
            assert explain_experts(keeper)["experts"][0]["reason"] == "experts are moved on CPUs so far"

    run(work(), 100)


async def refuse(model, experts):
    raise InputError("experts are moved on CPUs so far")


def test_a_profile_of_another_model_is_not_used(directory, tmp_path):
    own = shutil.copytree(directory, tmp_path / "moe")
    paths = Paths(2, 6)
    paths.learn(np.zeros((5, 2, 1), np.int64))
    save_profile(own / FILE_NAME, paths)
    with pytest.raises(InputError, match="of a model with other experts"):
        ExpertModel(read_config(own), "fp32", own).profile()
    assert ExpertModel(read_config(directory), "fp32", directory).profile() is None


def check_gain(keeper):
    """By the model's profile, experts are next to nothing of a step."""
    decision, hold_s = keeper.seen[WHERE].decision, float(keeper.settings.hold)
    gained = 1 - decision.expected_after / decision.expected_before
    assert decision.gain_s == pytest.approx(gained * LEAST * hold_s)


def check_told(controller, keeper):
    families = {family.name: family for family in expert_figures(keeper)}
    assert families["expert_moves"].values == {("g0", "moe"): 1.0}
    assert families["expert_layer_balancedness"].values.keys() == {("moe", str(layer)) for layer in range(3)}
    shares, names = families["expert_top_share"].values, families["expert_top"].values
    assert shares.keys() == names.keys() == {("moe", str(layer), str(rank)) for layer in range(3) for rank in (1, 2, 3)}
    assert all(1 / 6 <= share <= 0.5 for (_, _, rank), share in shares.items() if rank == "1")
    assert all(len({names["moe", str(layer), str(rank)] for rank in (1, 2, 3)}) == 3 for layer in range(3))
    assert 0 <= families["expert_estimate_variation"].values[("moe",)] < 0.5
    assert sum(len(family.values) for family in families.values()) == 5 + 3 + 2 * 9 + 2
    told = explain_experts(keeper)
    assert told["experts"][0]["moves"] == 1
    shown = explain_text("experts", told)
    assert "moving experts: apply" in shown
    assert "were foreseen" in shown
    assert "experts of" in status_text(views.status(controller) | {"experts": told["experts"]})
    moves = [move for move in views.explain_moves(controller)["moves"] if move["what"] == "experts moved"]
    assert moves[0]["becomes"] > moves[0]["balancedness"]


async def check_death(controller, keeper, expected, moved):
    """The second device alone has some experts: with it all requests are lost, at once and clearly."""
    runner = controller.runners["g0"]
    held = runner.experts.placed["moe"]
    with pytest.raises(InputError, match="moved meanwhile"):
        await runner.move_experts("moe", Placed(UNEVEN, UNEVEN), SPREAD)
    alone = set(moved[0][1]) - set(moved[0][0])
    assert alone, "every expert has a replica; the kill would show nothing"
    asked = [asyncio.create_task(answer(controller, f"lost{index}", index, 400)) for index in range(4)]
    await until(lambda: runner.group.states["moe"].running == 4)
    killed = time.monotonic()
    os.kill(runner.group.handles[1].pid, signal.SIGKILL)
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert time.monotonic() - killed < 2.0
    assert all(isinstance(one, NotServed) for one in ended)
    assert all("g0" in str(one) for one in ended)
    await until(lambda: runner.group is None)
    await keeper.look()
    with pytest.raises(InputError, match="does not serve 'moe'"):
        await runner.move_experts("moe", held, SPREAD)
    assert keeper.failures == {}
    await until(lambda: runner.deaths == 1 and runner.state == "serving", 30)
    assert runner.experts.placed["moe"].now == moved
    assert await answers(controller, "again") == expected


def test_a_plan_that_differs_in_experts_alone_moves_them(directory, tmp_path, monkeypatch):
    monkeypatch.setattr("serving.controller.runner.LOAD_AGAIN_S", (0.2,))
    model = shutil.copytree(directory, tmp_path / "moe")
    spread, places = write_places(tmp_path / "spread.json", SPREAD), tmp_path / "places.json"

    async def work():
        async with serving(model, plan(), mode="suggest") as (controller, keeper):
            runner = controller.runners["g0"]
            expected = await answers(controller, "before")
            pids = [handle.pid for handle in runner.group.handles]
            async with clients(controller, expected):
                await controller.apply(plan(spread), "placed")
                await controller.apply(plan(write_places(places, UNEVEN)), "placed otherwise")
            assert runner.experts.placed["moe"].now == UNEVEN
            await keeper.look()
            assert explain_experts(keeper)["experts"][0]["worth_moving"]
            assert (runner.experts.placed["moe"].now, keeper.moves[WHERE]) == (UNEVEN, 0), "it was only suggested"
            write_places(places, SPREAD)
            await controller.apply(plan(places), "the same plan, another file")
            assert runner.experts.placed["moe"].now == SPREAD
            await check_corrupted(controller, model, places, expected)
            assert [handle.pid for handle in runner.group.handles] == pids
            assert what(controller, "loaded") == [], "no model was loaded anew"
            await controller.apply(plan(), "slices again")
            assert runner.experts.placed == {}
            assert len(what(controller, "loaded")) == 1
            assert await answers(controller, "after") == expected

    run(work(), 100)


async def check_corrupted(controller, model, places, expected):
    """What is read is not what the other device has: all stays, is told, and is tried again."""
    runner = controller.runners["g0"]
    whole = corrupt(model / "model.safetensors")
    write_places(places, UNEVEN)
    await controller.apply(plan(places), "a bad copy")
    (reason,) = views.explain_plan(controller)["not_as_planned"].values()
    assert "is not the same on all devices" in reason
    assert runner.experts.placed["moe"].now == SPREAD
    assert await answers(controller, "not corrupted") == expected
    replace(model / "model.safetensors", whole)
    await until(lambda: runner.experts.placed["moe"].now == UNEVEN)
    assert views.explain_plan(controller)["not_as_planned"] == {}
    assert await answers(controller, "moved") == expected


def corrupt(path):
    """Change a few bytes of every expert, in another file of the same name; what was there."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    changed = bytearray(whole)
    for name, tensor in json.loads(whole[8 : 8 + size]).items():
        if ".experts." in name:
            begin = 8 + size + tensor["data_offsets"][0]
            changed[begin : begin + 2] = bytes(byte ^ 1 for byte in whole[begin : begin + 2])
    replace(path, bytes(changed))
    return whole


def replace(path, data):
    other = path.with_suffix(".new")
    other.write_bytes(data)
    other.replace(path)


def what(controller, happened):
    return [move for move in views.explain_moves(controller)["moves"] if move["what"] == happened]
