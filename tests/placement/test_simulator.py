"""Laws of serving on simulated time, and what an Outcome says."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import simulator
from placement.dispatch import EXPIRED, NO_REPLICA, REASONS, SERVED
from placement.outcome import write_requests
from placement.plan import Plan
from placement.reference import serve
from placement.rules import RULES
from placement.simulate import simulate
from placement.simulator import OVERTAKE_SHARE, count_served
from placement.tables import Catalogue
from tests.placement.worlds import TICK, group, one_model_world, random_world, worlds

BATCHES = st.sampled_from((1, 2, 16))
FIELDS = ("status", "group", "batch", "finish", "stage_start", "stage_end")


@settings(max_examples=100, deadline=None)
@given(worlds(), st.sampled_from(RULES), BATCHES)
def test_the_outcome_is_the_reference(world, rule, max_batch):
    """Stage by stage, with the batches' numbers."""
    outcome = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    fates = serve(world.problem, world.plan, world.workload, rule, max_batch)
    for request, fate in enumerate(fates):
        assert REASONS[outcome.status[request]] == fate.status
        assert outcome.group[request] == (-1 if fate.group is None else fate.group)
        assert outcome.batch[request] == (-1 if fate.batch is None else fate.batch)
        times = np.array(fate.stages).reshape(-1, 2)
        np.testing.assert_allclose(outcome.stage_start[request, : len(times)], times[:, 0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(outcome.stage_end[request, : len(times)], times[:, 1], rtol=0, atol=1e-9)
        assert np.isnan(outcome.stage_start[request, len(times) :]).all()
        if fate.stages:
            assert outcome.finish[request] == pytest.approx(times[-1, 1] + world.overhead, abs=1e-9)
        else:
            assert np.isnan(outcome.finish[request])


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from(RULES), BATCHES, st.floats(0, 1))
def test_nothing_depends_on_later_arrivals(world, rule, max_batch, share):
    """Without the arrivals after t: the same answer to everybody until t (but for who expires after it), and
    the same batches until t."""
    arrival = world.workload.arrival
    t = share * arrival[-1]
    early = arrival <= t
    if not early.any():
        return
    whole = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    cut = simulate(world.problem, world.plan, world.workload.select(early), rule, max_batch)
    count = int(early.sum())
    status = whole.status[:count].copy()
    status[(status == EXPIRED) & (cut.status == SERVED)] = SERVED
    assert status.tolist() == cut.status.tolist()
    begun = np.flatnonzero(whole.stage_start[:count, 0] <= t)
    assert begun.tolist() == np.flatnonzero(cut.stage_start[:, 0] <= t).tolist()
    for name in ("group", "finish", "stage_start", "stage_end"):
        np.testing.assert_array_equal(getattr(whole, name)[begun], getattr(cut, name)[begun])
    for one in begun:
        same = whole.batch == whole.batch[one]
        assert not same[count:].any()
        assert same[:count].tolist() == (cut.batch == cut.batch[one]).tolist()


@settings(max_examples=100, deadline=None)
@given(worlds(), st.sampled_from(RULES), BATCHES)
def test_served_is_in_time(world, rule, max_batch):
    """So no batch and no newcomer ever makes an admitted request late."""
    outcome = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    assert (outcome.met == (outcome.status == SERVED)).all()
    assert set(outcome.status.tolist()) <= {SERVED, simulator.REFUSED, EXPIRED, NO_REPLICA}
    for index, model in enumerate(world.problem.models):
        rows = world.workload.model == index
        assert (outcome.status[rows] == NO_REPLICA).all() == (not world.plan.replicas(model.name)) or not rows.any()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), BATCHES)
def test_admitted_requests_are_hardly_ever_dropped(seed, max_batch):
    world = random_world(seed, requests=2000)
    outcome = simulate(world.problem, world.plan, max_batch=max_batch)
    expired = int((outcome.status == EXPIRED).sum())
    admitted = expired + int((outcome.status == SERVED).sum())
    assert expired <= OVERTAKE_SHARE * admitted
    bound = simulate(world.problem, world.plan, rule="shortest-queue")
    assert not (bound.status == EXPIRED).any()


def test_some_are_dropped():
    """The law above is not empty."""
    dropped = 0
    for seed in range(30):
        world = random_world(seed, requests=2000)
        dropped += int((simulate(world.problem, world.plan).status == EXPIRED).sum())
    assert dropped > 0


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(RULES), BATCHES)
def test_same_input_same_output_and_the_quick_count_agrees(world, rule, max_batch):
    first, second = (simulate(world.problem, world.plan, rule=rule, max_batch=max_batch) for _ in range(2))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    catalogue = Catalogue(world.problem)
    served = count_served(catalogue.tables(world.plan), catalogue.stages, world.workload, rule, max_batch)
    ones = world.workload.model[first.status == SERVED]
    assert served.tolist() == np.bincount(ones, minlength=len(world.models)).tolist()


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(RULES))
def test_batches_are_numbered_as_they_began(world, rule):
    outcome = simulate(world.problem, world.plan, rule=rule)
    numbers = np.unique(outcome.batch[outcome.batch >= 0])
    assert numbers.tolist() == list(range(len(numbers)))
    for number in range(len(world.groups)):
        rows = np.flatnonzero(outcome.group == number)
        by_time = rows[np.argsort(outcome.stage_start[rows, 0], kind="stable")]
        assert (np.diff(outcome.batch[by_time]) >= 0).all()


def test_more_waiting_than_the_queue_holds(monkeypatch):
    monkeypatch.setattr(simulator, "QUEUE_CAPACITY", 3)
    world = one_model_world({1: [1.0]}, slo=100.0, arrivals=[0.0] * 6)
    outcome = simulate(world.problem, world.plan)
    assert [REASONS[status] for status in outcome.status] == ["served"] * 4 + ["queue-full"] * 2


def test_a_plan_without_replicas_or_groups():
    world = one_model_world({1: [1.0]}, slo=100.0, arrivals=[0.0, 1.0])
    for plan in (Plan(()), world.with_groups([group(["n/0"], [])]).plan):
        for rule in RULES:
            outcome = simulate(world.problem, plan, rule=rule)
            assert outcome.status.tolist() == [NO_REPLICA] * 2
            assert outcome.group.tolist() == [-1] * 2
            assert outcome.attainment == 0.0
            json.dumps(outcome.summary())


def test_the_summary_adds_up():
    world = one_model_world({1: [1.0, 1.0]}, slo=4.0, arrivals=[0.0, 0.0, 0.0, 0.0, 8.0], overhead=TICK)
    outcome = simulate(world.problem, world.plan, max_batch=1)
    summary = outcome.summary()
    # The third leaves at 4 s, and with the overhead that is late; so is the fourth.
    assert summary["reasons"] == {"served": 3, "refused": 2}
    assert summary["attainment"] == 0.6
    assert summary["worst_model"] == ["a", 0.6]
    assert summary["goodput"] == pytest.approx(3 / (10 + TICK))
    assert summary["latency"]["mean"] == pytest.approx((2 + 3 + 2) / 3 + TICK)
    assert summary["models"]["a"]["queue"]["mean"] == pytest.approx(1 / 3)
    assert summary["groups"][0]["requests"] == summary["groups"][0]["batches"] == 3
    # Three seconds on each of two devices.
    assert summary["groups"][0]["utilisation"] == pytest.approx(3 / (10 + TICK))
    json.dumps(summary)


def test_written_requests_are_the_outcome(tmp_path):
    world = random_world(7)
    outcome = simulate(world.problem, world.plan)
    write_requests(tmp_path / "requests.npz", outcome)
    with np.load(tmp_path / "requests.npz") as rows:
        assert set(FIELDS) <= set(rows)
        for name in FIELDS:
            np.testing.assert_array_equal(rows[name], getattr(outcome, name))
