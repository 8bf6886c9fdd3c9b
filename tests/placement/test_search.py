"""Laws of the search: candidates stay valid, draws are like the traffic, the bound bounds, the ladder covers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placement.clocks import Floats
from placement.cluster import Node
from placement.plan import check_plan
from placement.problem import Problem
from placement.profile import Profile, ShapeProfile
from placement.search.alpaserve import alpaserve, replication, round_robin
from placement.search.bound import upper_bound
from placement.search.candidate import Candidate, Space
from placement.search.cells import split_cells
from placement.search.draws import believed_rates, make_draws, rise_together
from placement.search.fill import spread_fill
from placement.search.ladder import drain_order
from placement.search.layouts import mixed_layouts, uniform_layout, useful_classes
from placement.search.moves import MOVES
from placement.search.scorer import Scorer, judge
from placement.simulate import simulate
from placement.tables import Catalogue
from placement.units import Bytes
from placement.workload import Workload
from tests.placement.problems import GB, make_problem

TWO_KINDS = (Node("a", 4, Bytes(4 * GB), kind="v100"), Node("b", 4, Bytes(2 * GB), kind="t4"))


def space_of(problem: Problem) -> Space:
    return Space(Catalogue(problem))


def uniform(space: Space, pp: int) -> Candidate:
    kind = space.kinds[0]
    one = next(c for c in useful_classes(space, kind) if space.catalogue.classes[c].shape == (1, pp))
    return spread_fill(space, uniform_layout(space, kind, one))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), two_kinds=st.booleans(), models=st.integers(2, 9))
def test_moves_keep_candidates_valid_and_models_covered(seed: int, two_kinds: bool, models: int) -> None:
    space = space_of(make_problem(models, TWO_KINDS if two_kinds else TWO_KINDS[:1], duration=5.0))
    rng = np.random.default_rng(seed)
    candidate = spread_fill(
        space,
        tuple(c for kind in space.kinds for c in uniform_layout(space, kind, useful_classes(space, kind)[0])),
    )
    missed: Floats = rng.random(models)
    for _ in range(12):
        move, _ = MOVES[rng.integers(len(MOVES))]
        moved = move(space, candidate, missed, rng)
        if moved is not None:
            assert space.valid(moved), move.__name__
            assert moved.holds.any(axis=0)[candidate.holds.any(axis=0)].all(), move.__name__
            candidate = moved
    check_plan(space.plan(candidate), space.problem, "law")


@given(pp=st.sampled_from([1, 2, 4]), nodes=st.integers(1, 4), devices=st.integers(1, 5))
def test_packing_gives_each_device_to_one_group_and_keeps_groups_of_a_node_together(
    pp: int, nodes: int, devices: int
) -> None:
    space = space_of(make_problem(2, [Node(f"n{n}", devices, Bytes(4 * GB)) for n in range(nodes)], duration=2.0))
    for c in useful_classes(space, "any"):
        layout = uniform_layout(space, "any", c)
        packed = space.pack(layout)
        assert packed is not None
        flat = [device for group in packed for device in group]
        assert len(flat) == len(set(flat)) == sum(int(space.sizes[k]) for k in layout)
        for kind, group in zip(layout, packed, strict=True):
            homes = {space.problem.cluster.devices[device].node for device in group}
            assert (len(homes) == 1) == (space.catalogue.classes[kind].span == "node")


def test_mixed_layouts_hold_both_classes() -> None:
    space = space_of(make_problem(4, [Node("n0", 8, Bytes(4 * GB))], duration=2.0))
    one, two = useful_classes(space, "any")[0], useful_classes(space, "any")[-1]
    layouts = list(mixed_layouts(space, "any", one, two))
    assert layouts
    assert all(one in layout and two in layout for layout in layouts)


def test_draws_have_the_rate_of_the_traffic_and_depend_on_the_seed_alone() -> None:
    workload = make_problem(8, duration=200.0).workload
    draws = make_draws(workload, 8, 5, seed=3)
    assert draws[0] is workload
    assert np.mean([len(draw) for draw in draws[1:]]) == pytest.approx(len(workload), rel=0.15)
    again = make_draws(workload, 8, 5, seed=3)
    assert all((one.arrival == two.arrival).all() for one, two in zip(draws, again, strict=True))
    assert (make_draws(workload, 8, 2, seed=4)[1].arrival[:50] != draws[1].arrival[:50]).any()
    assert make_draws(workload, 8, 2, seed=3, scale=2.0)[0].duration == pytest.approx(workload.duration / 2)


def test_equal_rates_are_believed_equal_and_different_ones_different() -> None:
    alike = make_problem(12, rate=2.0, cv=5.0, duration=200.0).workload
    raw = alike.counts(12) / alike.duration
    assert believed_rates(alike, 12).std() < 0.5 * raw.std()
    keep = np.random.default_rng(0).random(len(alike)) < np.where(alike.model < 6, 1.0, 0.05)
    skewed = alike.select(keep)
    believed = believed_rates(skewed, 12)
    assert believed[:6].min() > 3 * believed[6:].max()


def test_a_common_day_is_seen_and_kept() -> None:
    rng = np.random.default_rng(0)
    arrival = np.sort(rng.beta(4, 4, 5000) * 100)
    workload = Workload(arrival, rng.integers(0, 10, 5000).astype(np.int32))
    assert rise_together(workload, 10)
    assert not rise_together(make_problem(10, duration=200.0).workload, 10)
    drawn = make_draws(workload, 10, 2, seed=0)[1]
    assert abs(np.mean(drawn.arrival) - 50) < 5
    middle = np.mean((arrival > 30) & (arrival < 70))
    assert np.mean((drawn.arrival > 30) & (drawn.arrival < 70)) == pytest.approx(middle, abs=0.1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rate=st.floats(0.5, 30),
    slo=st.floats(0.05, 1.5),
    batch=st.sampled_from([1, 2]),
)
def test_no_plan_exceeds_the_upper_bound(seed: int, rate: float, slo: float, batch: int) -> None:
    problem = make_problem(4, rate=rate, slo=slo, duration=6.0, seed=seed)
    assume(len(problem.workload) > 0)
    bound = upper_bound(problem, max_batch=batch)
    space = space_of(problem)
    for pp in (1, 2, 4):
        plan = space.plan(uniform(space, pp))
        assert simulate(problem, plan, max_batch=batch).attainment <= bound + 1e-12
        assert simulate(problem, plan, rule="shortest-queue").attainment <= bound + 1e-12


def test_the_bound_is_tight_for_one_burst() -> None:
    """Ten requests at once, one device, 0.1 s each, due in 0.45 s: four can be served, by bound and by plan."""
    problem = make_problem(1, [Node("n0", 1, Bytes(4 * GB))], slo=0.45)
    problem = replace(problem, workload=Workload(np.zeros(10), np.zeros(10, np.int32)))
    assert upper_bound(problem, max_batch=1) == pytest.approx(0.4)
    space = space_of(problem)
    assert simulate(problem, space.plan(uniform(space, 1)), max_batch=1).attainment == pytest.approx(0.4)


def test_the_ladder_is_nested_and_covers_every_model() -> None:
    space = space_of(make_problem(4, [Node("n0", 8, Bytes(4 * GB))], duration=10.0))
    candidate = uniform(space, 2)
    scorer = Scorer(space, [space.problem.workload], "deadline", 2)
    ladder = drain_order(scorer, candidate)
    assert ladder
    for smaller, larger in itertools.pairwise(ladder):
        assert set(smaller) < set(larger)
    for step in ladder:
        left = [group for group in range(len(candidate.classes)) if group not in step]
        assert candidate.holds[left].any(axis=0).all()


def test_judged_by_target_a_starved_model_counts_more_than_many_requests() -> None:
    problem = make_problem(2, objective="target", duration=5.0)
    counts = np.array([1000, 10])
    starving = judge(problem, np.array([1000, 0]), counts)
    fair = judge(problem, np.array([985, 10]), counts)
    assert fair > starving
    overall = replace(problem, objective="overall")
    assert judge(overall, np.array([1000, 0]), counts) < judge(overall, np.array([1000, 10]), counts)


def test_a_score_that_cannot_be_reached_is_not_simulated_to_the_end() -> None:
    space = space_of(make_problem(6, rate=10.0, duration=10.0))
    scorer = Scorer(space, make_draws(space.problem.workload, 6, 3, 0), "deadline", 2)
    candidate = uniform(space, 1)
    assert scorer.measure_if(candidate, needed=2.0) is None
    exact = scorer.score(candidate).value
    assert scorer.measure_if(candidate, exact) is not None


@pytest.mark.parametrize("nodes", [TWO_KINDS, TWO_KINDS[:1]])
def test_baselines_make_valid_plans_on_any_kinds(nodes: tuple[Node, ...]) -> None:
    space = space_of(make_problem(5, nodes, duration=10.0))
    for candidate in (
        alpaserve(space, "shortest-queue"),
        replication(space, "shortest-queue"),
        round_robin(space),
    ):
        plan = space.plan(candidate)
        check_plan(plan, space.problem, "baseline")
        assert {name for group in plan.groups for name in group.models} == {m.name for m in space.problem.models}


def test_cells_part_devices_and_models() -> None:
    problem = make_problem(200, [Node(f"n{n}", 8, Bytes(4 * GB)) for n in range(24)], rate=0.2, duration=5.0)
    cells = split_cells(problem, space_of(problem).demand)
    assert len(cells) > 1
    assert sorted(m for cell in cells for m in cell.models) == list(range(200))
    names = [device.name for cell in cells for device in cell.problem.cluster.devices]
    assert sorted(names) == sorted(device.name for device in problem.cluster.devices)
    assert sum(len(cell.problem.workload) for cell in cells) == len(problem.workload)
    for cell in cells:
        assert [problem.models[m] for m in cell.models] == list(cell.problem.models)
    small = make_problem(5, duration=2.0)
    assert split_cells(small, space_of(small).demand)[0].problem is small


def test_a_model_goes_to_a_cell_that_can_hold_it() -> None:
    nodes = [Node("a", 8, Bytes(4 * GB), kind="a100")] + [Node(f"t{n}", 8, Bytes(4 * GB), kind="t4") for n in range(24)]
    problem = make_problem(8, nodes, duration=5.0)
    only = Profile(tuple(msgspec.structs.replace(shape, kind="a100") for shape in problem.models[0].profile.shapes))
    models = tuple(replace(model, profile=only) if m < 2 else model for m, model in enumerate(problem.models))
    problem = replace(problem, models=models)
    cells = split_cells(problem, space_of(problem).demand)
    assert len(cells) > 1
    assert all(space_of(cell.problem).fits_alone.any(axis=0).all() for cell in cells)
    assert sorted(m for cell in cells for m in cell.models) == list(range(8))


def test_cells_are_large_enough_for_the_largest_model() -> None:
    problem = make_problem(4, [Node(f"n{n}", 8, Bytes(4 * GB)) for n in range(20)], duration=5.0)
    wide = ShapeProfile(tp=80, pp=1, stage_memory=(Bytes(GB),), stage_latency={1: (0.1,)})
    models = (replace(problem.models[0], profile=Profile((wide,))), *problem.models[1:])
    cells = split_cells(replace(problem, models=models), np.ones(4))
    assert all(space_of(cell.problem).fits_alone.any(axis=0).all() for cell in cells)


def test_a_part_without_requests_has_draws_without_requests() -> None:
    silent = Workload(np.empty(0), np.empty(0, np.int32))
    assert [len(draw) for draw in make_draws(silent, 3, 4, seed=0)] == [0] * 4
    none = silent.counts(3)
    assert judge(make_problem(3, objective="target", duration=5.0), none, none).kept == 0


def test_the_ladder_keeps_the_only_group_that_can_wake_a_model() -> None:
    space = space_of(make_problem(2, [Node("n0", 3, Bytes(4 * GB))], duration=5.0))
    candidate = uniform(space, 1)
    holds = candidate.holds.copy()
    holds[:, 1] = False
    parked = np.zeros_like(holds)
    parked[1, 1] = True
    scorer = Scorer(space, [space.problem.workload], "deadline", 2)
    ladder = drain_order(scorer, replace(candidate, holds=holds), parked)
    assert len(ladder) == 2
    assert all(1 not in step for step in ladder)
