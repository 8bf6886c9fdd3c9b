"""Comparing policies: every point planned anew, limits as the points say, and the benchmark built on it."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import max_rate
from placement.compare import EVERYBODY, compare_policies, find_limit
from placement.comparison import AXES, Comparison, Point
from placement.errors import InputError
from placement.planner import POLICIES
from placement.simulate import simulate
from placement.vary import gamma_workload, with_cv
from tests.placement.small import chat_problem, small_problem

ENTRIES = 2 * len(POLICIES) + 1
STEPS = 5


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def comparison(told):
    return compare_policies(
        small_problem(devices=3),
        rates=(0.5, 2.0),
        cvs=(1.0, 4.0),
        slo_scales=(0.25, 1.0),
        steps=STEPS,
        window_s=10.0,
        on_progress=lambda share, what: told.append((share, what)),
    )


def test_every_policy_is_tried_at_every_point(comparison, told):
    assert {axis: comparison.values(axis) for axis in AXES} == {
        "rate": [0.5, 1.0, 2.0],
        "cv": [1.0, 4.0],
        "slo_scale": [0.25, 1.0],
        "devices": [1, 2, 3],
    }
    assert len(comparison.points) == ENTRIES * (3 + 2 + 2 + 3)
    assert {point.policy for point in comparison.points} == set(EVERYBODY)
    assert all(0 <= p.worst_model[1] <= p.attainment <= 1 and 0 <= p.planned <= 1 for p in comparison.points)
    assert [what for _, what in told][:3] == ["rate 1", "rate 0.5", "rate 2"]
    assert [share for share, _ in told] == pytest.approx(np.arange(8) / 8)


def test_the_problem_itself_is_on_every_axis_but_cv(comparison):
    for axis, value in {"rate": 1.0, "slo_scale": 1.0, "devices": 3}.items():
        here = [point for point in comparison.points if (point.axis, point.value) == (axis, value)]
        assert [replace(point, axis="rate", value=1.0) for point in here] == list(comparison.base)


def test_planned_is_what_the_plan_does_on_the_workload_it_was_planned_on(comparison):
    problem = small_problem(devices=3)
    assert set(comparison.plans) == set(POLICIES)
    for point in comparison.base:
        if point.policy in comparison.plans:
            outcome = simulate(problem, comparison.plans[point.policy], rule=point.rule)
            assert outcome.attainment == point.planned


def test_harder_is_harder(comparison):
    """Not at each step, but from the easiest to the hardest."""
    for one in comparison.base:
        for axis, falls in {"rate": True, "cv": True, "slo_scale": False, "devices": False}.items():
            curve = [point.attainment for point in comparison.curve(axis, one.policy, one.rule)]
            assert (curve[0] >= curve[-1]) if falls else (curve[0] <= curve[-1])


def test_the_same_seed_gives_the_same_comparison():
    first, second = (
        compare_policies(small_problem(), rates=(), cvs=(3.0,), slo_scales=(), devices=(), steps=STEPS, seed=3)
        for _ in range(2)
    )
    assert first.points == second.points
    assert first.axes == ["cv"]


def test_recordings_handed_in_are_what_is_scored_on():
    problem = small_problem()
    calm = gamma_workload({model.name: 0.2 for model in problem.models}, 0.1, 30.0, seed=1)
    compared = compare_policies(
        problem, policies=("replication",), rates=(50.0,), cvs=(), slo_scales=(), devices=(), held_out=[calm]
    )
    at_one, at_fifty = compared.curve("rate", "replication", "deadline")
    assert at_one.attainment == 1.0
    assert at_fifty.attainment < 0.9
    assert compared.inputs["held_out_kind"] == "recordings handed in"


def test_a_point_without_any_plan_counts_as_nothing_served():
    """One device cannot hold a model that needs two."""
    problem = small_problem()
    large = tuple(
        msgspec.structs.replace(entry, stage_memory=tuple(3 * size for size in entry.stage_memory))
        for entry in problem.models[0].profile.shapes
    )
    profile = msgspec.structs.replace(problem.models[0].profile, shapes=large)
    problem = replace(problem, models=tuple(replace(model, profile=profile) for model in problem.models))
    policies = ("alpaserve", "clockwork")
    compared = compare_policies(problem, policies=policies, rates=(), cvs=(), slo_scales=(), devices=(1, 4))
    assert compared.curve("devices", "alpaserve", "deadline")[0].attainment == 0
    assert compared.curve("devices", "clockwork", "shortest-queue")[0].attainment == 0
    assert len(compared.notes) == 1
    assert compared.notes[0].startswith("devices 1: no plan: model 'm0'")
    assert compared.notes[0] in compared.text()


def test_the_bound_is_left_out_where_models_generate_and_that_is_said():
    policies = ("replication", "clockwork")
    compared = compare_policies(chat_problem(), policies=policies, rates=(), cvs=(2.0,), slo_scales=(), devices=())
    assert {point.policy for point in compared.points} == {"replication"}
    assert compared.curve("cv", "replication", "deadline")[0].attainment > 0
    assert compared.notes == ("clockwork is left out: it plans one-pass models only, and 'chat' generates",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policies": ("penstock", "best")}, "policy 'best' is unknown; give one of penstock"),
        ({"policies": ()}, "policy '' is unknown"),
        ({"rates": (0.0,)}, "between 0.001 and 1000, not 0"),
        ({"cvs": (float("nan"),)}, "not nan"),
        ({"slo_scales": (-1.0,)}, "not -1"),
        ({"devices": (9,)}, "the cluster has 4 devices"),
        ({"at": 0.0}, "attainment 0"),
        ({"steps": 0}, "0 steps"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(wrong, message):
    with pytest.raises(InputError, match=message):
        compare_policies(small_problem(), **wrong)


def point(value, attainment, policy="penstock", axis="rate"):
    return Point(axis, value, policy, "deadline", attainment, ("m", attainment), attainment)


def test_limits_are_the_hardest_values_that_hold():
    """Also where an easier one does not."""
    points = [point(0.5, 0.995), point(1.0, 0.98), point(2.0, 0.99), point(4.0, 0.5)]
    points += [point(scale, value, axis="slo_scale") for scale, value in ((0.5, 0.9), (1.0, 0.98), (2.0, 1.0))]
    points += [point(8, 0.98, axis="devices")]
    limits = Comparison(0.99, (points[1],), tuple(points), {}, {}).limits[0]
    assert (limits.rate, limits.cv, limits.slo_scale, limits.devices) == (2.0, None, 2.0, None)


def test_the_bound_is_never_the_best():
    base = (
        point(1.0, 0.9),
        point(1.0, 0.95, "alpaserve"),
        point(1.0, 0.95, "replication"),
        point(1.0, 1.0, "clockwork"),
    )
    assert Comparison(0.99, base, base, {}, {}).best.policy == "alpaserve"
    assert Comparison(0.99, base[3:], base[3:], {}, {}).best.policy == "clockwork"


def test_the_summary_is_plain_json(comparison):
    summary = json.loads(json.dumps(comparison.summary()))
    assert len(summary["points"]) == len(comparison.points)
    assert len(summary["limits"]) == ENTRIES
    assert summary["plans"]["penstock"]["groups"]


def test_the_text_is_aligned_and_rounds_nothing_up(comparison):
    nearly = point(1.0, 0.99999)
    assert "0.9999" in Comparison(0.99, (nearly,), (nearly,), {}, {}).text()
    table = comparison.text().split("\n\n")[0].splitlines()[1:]
    start = table[0].index("attainment")
    assert all(line[start - 2 : start] == "  " and line[start] != " " for line in table)
    assert len(table) == 1 + ENTRIES


@given(st.floats(0.02, 4.0), st.floats(0.001, 0.5), st.booleans())
def test_bisection_closes_in_on_where_attainment_falls(threshold, precision, more_is_harder):
    easiest, hardest = (0.02, 4.0) if more_is_harder else (4.0, 0.02)

    def attainment(value):
        return 1.0 if (value <= threshold if more_is_harder else value >= threshold) else 0.5

    limit = find_limit(attainment, easiest, hardest, precision=precision)
    assert limit.holds is not None
    assert limit.tried[limit.holds] == 1.0
    if limit.fails is None:
        assert limit.holds == hardest
    else:
        assert limit.tried[limit.fails] == 0.5
        assert min(limit.holds, limit.fails) <= threshold <= max(limit.holds, limit.fails)
        assert max(limit.holds / limit.fails, limit.fails / limit.holds) <= 1 + precision


@pytest.mark.parametrize("more_is_harder", [True, False])
def test_a_dip_does_not_end_the_search_where_harder_values_are_tried_too(more_is_harder):
    def attainment(value):
        hardness = value if more_is_harder else 10 / value
        return 1.0 if hardness <= 2.0 or 2.1 <= hardness <= 2.3 else 0.5

    ends = (0.1, 10.0) if more_is_harder else (100.0, 1.0)
    first = find_limit(attainment, *ends)
    last = find_limit(attainment, *ends, beyond=(1.1, 1.2, 1.3, 1.4))
    hardness = [limit.holds if more_is_harder else 10 / limit.holds for limit in (first, last)]
    assert hardness == pytest.approx([2.0, 2.3], rel=0.02)
    assert attainment(last.fails) == 0.5


def test_bisection_says_when_all_or_nothing_holds():
    assert find_limit(lambda _: 0.5, 1.0, 2.0).holds is None
    assert find_limit(lambda _: 1.0, 1.0, 2.0).fails is None


def test_another_cv_keeps_rates_and_takes_each_models_own_tokens():
    problem = small_problem(models=2, rate=40.0)
    lengths = np.where(problem.workload.model == 0, 10, 200).astype(np.int32)
    problem = replace(problem, workload=replace(problem.workload, prompt_tokens=lengths, output_tokens=lengths + 1))
    drawn = with_cv(problem, 0.5, seed=1)
    np.testing.assert_allclose(drawn.counts(2), problem.workload.counts(2), rtol=0.1)
    for model in range(2):
        gaps = np.diff(drawn.arrival[drawn.model == model])
        assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.15)
        assert set(drawn.prompt_tokens[drawn.model == model]) == {(10, 200)[model]}
    np.testing.assert_array_equal(drawn.output_tokens, drawn.prompt_tokens + 1)


def test_a_cv_that_cannot_be_is_refused():
    with pytest.raises(InputError, match="cv 1e"):
        with_cv(small_problem(), 1e9, seed=0)


def test_the_benchmark_prints_one_line(capsys):
    max_rate.main(["--tiny"])
    line = json.loads(capsys.readouterr().out)
    assert set(line["cases"]["tiny"]) == {"rate", "cv", "slo_scale"}
    assert set(line["cases"]["tiny"]["rate"]) == {f"{policy}/{rule}" for policy, rule in max_rate.CONTESTANTS}
    assert line["cases"]["tiny"]["rate"]["penstock/deadline"] > 0


def test_the_benchmark_without_its_data_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    max_rate.main([])
    printed = capsys.readouterr()
    assert str(tmp_path) in json.loads(printed.out)["skipped"]
    assert "no case c01" in printed.err
