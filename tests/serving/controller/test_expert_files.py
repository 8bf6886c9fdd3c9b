"""Placements that a plan names: what is read, what is refused and how that is said; and what is learned of routes."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from placement.errors import InputError
from placement.plan import Group, Plan
from serving.config import ExpertsConfig
from serving.controller.expert_files import ExpertModel, Room, check_experts, with_experts_of, with_whole_paths
from serving.controller.expert_popularity import ExpertPopularity
from serving.models.config import parse_config
from serving.small_models.configs import language_config
from serving.small_models.settings import LanguageSettings
from serving.worker.group import RouteCounts
from tests.serving.controller.expert_world import CACHE_BYTES, SPREAD, UNEVEN, plan, problem, write_places

SETTINGS = LanguageSettings(hidden=32, heads=4, kv_heads=2, ffn=24, layers=3, experts=6, top_k=2)
MODEL = ExpertModel(parse_config(language_config(SETTINGS, 300, (2,), 0), "test"), "fp32", Path("nowhere"))
EXPERT_BYTES = 3 * 32 * 24 * 4


def check(given, memory=10**9):
    check_experts(given, problem(memory), {"moe": MODEL})


def test_a_placement_counts_against_the_memory(tmp_path):
    """The profile has slices: half of six experts in three layers on each device."""
    given = plan(write_places(tmp_path / "places.json", UNEVEN))
    assert MODEL.expert_bytes == EXPERT_BYTES
    needed = 2**20 + 4_000_000 + (11 - 9) * EXPERT_BYTES
    check(given, needed)
    with pytest.raises(InputError, match=f"'n/0' would hold {needed} bytes of its {needed - 1}"):
        check(given, needed - 1)
    check(plan(write_places(tmp_path / "spread.json", SPREAD)), needed - 2 * EXPERT_BYTES)


def room(memory=10**9, pp=1):
    """Of a group of one or two stages; the first one has the first two of the three layers."""
    devices = ("n/0", "n/1") if pp == 1 else ("n/0", "n/1", "n/2", "n/3")
    return Room(Group(devices, 2, pp, ("moe",), {"moe": CACHE_BYTES}), problem(memory, pp), {"moe": MODEL})


FULL_BYTES = 2**20 + CACHE_BYTES


def test_slots_are_what_the_plan_has_in_any_layer_and_memory_allows():
    def slots(memory, now=UNEVEN, pp=1):
        return room(memory, pp).slots("moe", UNEVEN, {"moe": now})

    assert slots(10**9) == [5, 5]
    # Slices, half of 18 experts, are in the profile: 12 on each device are four of each layer.
    assert slots(FULL_BYTES + 3 * EXPERT_BYTES, SPREAD) == [4, 4]
    assert slots(FULL_BYTES + 3 * EXPERT_BYTES) == [5, 5], "so many are held in one layer"
    assert slots(FULL_BYTES, SPREAD) == [3, 3]
    # The stage with one layer has room for 5 of it, that with two for 8 in all.
    assert slots(FULL_BYTES + 2 * EXPERT_BYTES, SPREAD, pp=2) == [4, 4]


def test_what_is_decided_is_held_against_the_memory_of_each_stage():
    """Both stages have room for two more experts than slices would be."""
    narrow = room(FULL_BYTES + 2 * EXPERT_BYTES, pp=2)
    five, four = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], [[0, 1, 2, 3], [2, 3, 4, 5]]
    narrow.check({"moe": [four, four, five]}, "group g0")
    with pytest.raises(InputError, match=f"group g0: device 'n/0' would hold {FULL_BYTES + 3 * EXPERT_BYTES} bytes"):
        narrow.check({"moe": [four, five, four]}, "group g0")


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([[[0, 1, 2, 3, 4, 5]]] * 3, "placed for 1 devices, where there are 2"),
        (SPREAD[:2], "placed for 2 layers with experts, where there are 3"),
        ([[[0, 1, 2], [3, 4]]] * 3, "placed for 5 experts, where there are 6"),
        ([[[0, 1, 2], [3, 4, 4]]] * 2 + [[[0, 1, 2], [3, 4, 5]]], "expert 5 lives nowhere"),
        ("none", "placement"),
    ],
)
def test_a_placement_for_something_else_is_refused(places, said, tmp_path):
    path = write_places(tmp_path / "places.json", places)
    with pytest.raises(InputError, match=rf"groups\[0\].*{path}.*{said}"):
        check(plan(path))


def test_files_are_named_wholly(tmp_path):
    with pytest.raises(InputError, match="give the whole path"):
        check(plan("places.json"))
    given = with_whole_paths(plan("places.json"), tmp_path)
    assert given.groups[0].experts == {"moe": str(tmp_path / "places.json")}
    with pytest.raises(InputError, match="cannot be read"):
        check(given)
    write_places(tmp_path / "places.json", SPREAD)
    check(given)
    alone = msgspec.structs.replace(given.groups[0], models=(), kv_bytes={})
    with pytest.raises(InputError, match="experts of 'moe', which is not among its models"):
        check(Plan((alone,)))


def test_a_plan_found_anew_keeps_experts_where_groups_stay():
    old = plan("/a.json")
    apart = Plan((Group(("n/0",), 1, 1, ("moe",)), Group(("n/1",), 1, 1)))
    assert with_experts_of(old, plan()) == old
    assert with_experts_of(old, plan("/b.json")) == plan("/b.json")
    assert with_experts_of(old, apart) == apart


def test_popularity_counts_what_is_enough_and_how_well_it_was_foreseen():
    popularity = ExpertPopularity(layers=2, experts=8, top_k=2, least_tokens=50)
    counts = np.array([[40, 20, 10, 10, 8, 6, 4, 2]] * 2, np.float64)
    popularity.add(counted(0.9 * counts))
    assert not popularity.learn()
    popularity.add(counted(0.1 * counts))
    assert popularity.learn()
    assert popularity.accuracy is None, "nothing was expected yet"
    np.testing.assert_allclose(popularity.top_share(), [[0.4, 0.2, 0.1]] * 2)
    assert popularity.top().tolist() == [[0, 1, 2]] * 2
    assert len(popularity.last_steps) == 0
    assert len(popularity.recent.history()) == 1
    popularity.add(counted(2 * counts))
    assert popularity.learn()
    assert (popularity.accuracy.recall, popularity.accuracy.variation) == (1.0, pytest.approx(0.0))
    popularity.add(counted(counts[:, ::-1]))
    assert popularity.learn()
    assert popularity.accuracy.recall == 0.0
    assert popularity.accuracy.variation > 0.5
    assert not popularity.learn(), "what was learned is not counted twice"


def counted(counts, steps=()):
    return RouteCounts(counts.tolist(), [[step[layer].tolist() for step in steps] for layer in range(len(counts))])


def test_placements_are_searched_with_steps_as_they_came():
    """All that came since the last look has one expert as popular as the other; no step had."""
    popularity = ExpertPopularity(layers=2, experts=2, top_k=1, least_tokens=50)
    steps = [np.array([[40, 0]] * 2), np.array([[0, 40]] * 2)]
    counts = counted(sum(steps), steps)
    counts.steps[1].insert(0, [7, 33])  # the second stage of a pipeline is a step ahead
    popularity.add(counts)
    assert popularity.learn()
    assert popularity.recent.history().tolist() == [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    assert popularity.recent.load().tolist() == [[0.5, 0.5]] * 2
    popularity.add(counted(sum(steps)))
    assert popularity.learn()
    assert len(popularity.last_steps) == 0


@pytest.mark.parametrize(
    ("settings", "said"), [({"every": 0.01}, "every is 0.01"), ({"hold": 0}, "hold is 0"), ({"hold": 1e12}, "hold is")]
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    assert ExpertsConfig().mode == "apply"
    with pytest.raises(ValueError, match=said):
        ExpertsConfig(**settings)
