"""Laws of the loan officer: what it never lends, what it learns, and that it does not flap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.capacity import Rung
from training.lending import Held, LoanOfficer, Terms, Verdict, order_victims
from training.lending.day_curve import BIN_S, DAY_S, DayCurve, covering
from training.lending.recent_demand import RecentDemand
from training.lending.surges import look_ahead

STEP_S = 0.5
HELD = (10.0, 6.0, 3.0, 1.0)


def ladder(held: tuple[float, ...] = HELD) -> list[Rung]:
    return [Rung(tuple(range(number)), work) for number, work in enumerate(held)]


@dataclass(frozen=True)
class Step:
    now: float
    load: list[float]
    before: int
    verdict: Verdict

    @property
    def depth(self) -> int:
        return self.verdict.depth


def steps(
    officer: LoanOfficer, demand: Callable[[float], float], seconds: float, explain: bool = True
) -> Iterator[Step]:
    """The officer is obeyed at once, and devices are back after a step."""
    seen, depth = RecentDemand(officer.terms.windows_s[-1]), 0
    for now in np.arange(0.0, seconds, STEP_S).tolist():
        work_s = demand(now) * STEP_S
        officer.saw(now, "m", work_s)
        seen.add(now, "m", work_s)
        load = [rung.load(seen.work_per_s(now)) for rung in officer.rungs]
        verdict = officer.decide(now, depth, explain=explain)
        yield Step(now, load, depth, verdict)
        if verdict.depth < depth:
            officer.returned(STEP_S)
        depth = verdict.depth


def noise(seed: int, calm: float = 0.5, burst: float = 9.0, chance: float = 0.05) -> Callable[[float], float]:
    rng = np.random.default_rng(seed)
    return lambda now: float(rng.gamma(4, 0.25) * (burst if rng.random() < chance else calm))


@given(seed=st.integers(0, 10_000), calm=st.floats(0.1, 4.0), chance=st.floats(0.0, 0.2), minimum_s=st.floats(1, 60))
@settings(max_examples=40, deadline=None)
def test_laws_of_any_traffic(seed, calm, chance, minimum_s):
    terms = Terms(minimum_s=minimum_s)
    changed = -np.inf
    for step in steps(LoanOfficer(ladder(), terms), noise(seed, calm, chance=chance), 200):
        depth, options = step.depth, step.verdict.options
        # Nothing is lent that demand exceeds, nothing new above the low mark, nothing again before it has been calm.
        assert all(load <= 1 for load in step.load[1 : depth + 1])
        assert all(load <= terms.low for load in step.load[step.before + 1 : depth + 1])
        if depth > step.before:
            assert step.now - changed >= terms.calm_s
        # Rungs are nested: the deepest that is open with all before it.
        assert all(option.is_open for option in options[:depth])
        assert depth == len(options) or not options[depth].is_open
        if depth != step.before:
            changed = step.now
            told = options[depth] if depth < step.before else options[depth - 1]
            assert step.verdict.why == told.why


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_the_same_traffic_gives_the_same_loans_explained_or_not(seed):
    def run(explain: bool) -> list[int]:
        return [step.depth for step in steps(LoanOfficer(ladder()), noise(seed), 200, explain)]

    assert run(True) == run(True) == run(False)


def test_trouble_recalls_everything_at_once():
    officer = LoanOfficer(ladder())
    *_, last = steps(officer, lambda now: 0.2, 20)
    assert last.depth == 3
    verdict = officer.decide(20.0, last.depth, trouble="requests wait")
    assert (verdict.depth, verdict.why) == (0, "requests wait")
    assert officer.decide(20.5, 0).depth == 0


def lent_when_surges_begin(begins: list[float], seconds: float) -> tuple[list[bool], float]:
    """Whether each surge of 10 s found devices lent, and the share of the quiet time in which they were."""
    times = np.array(begins)

    def is_on(now: float) -> bool:
        since = now - times
        return bool(((since >= 0) & (since < 10)).any())

    run = list(steps(LoanOfficer(ladder((10.0, 1.0))), lambda now: 9.0 if is_on(now) else 0.2, seconds))
    found = [next(step.before > 0 for step in run if step.now >= begin) for begin in begins]
    quiet = [step.depth > 0 for step in run if not is_on(step.now)]
    return found, float(np.mean(quiet))


def test_surges_that_come_like_a_clock_are_awaited():
    rng = np.random.default_rng(1)
    begins = [60.0 * n + float(rng.uniform(-3, 3)) for n in range(1, 21)]
    found, lent = lent_when_surges_begin(begins, 1260)
    assert found[0]
    assert not any(found[5:])
    assert lent > 0.5


def test_surges_that_come_by_chance_are_not_awaited():
    begins = np.cumsum(np.random.default_rng(2).exponential(120, 40) + 15).tolist()
    found, lent = lent_when_surges_begin(begins, begins[-1] + 30)
    assert np.mean(found) > 0.5
    assert lent > 0.6


def test_what_surprises_cost_is_kept_below_the_risk():
    begins = np.cumsum(np.random.default_rng(2).exponential(40, 60) + 15)

    def lent(missed: int) -> int:
        officer = LoanOfficer(ladder((10.0, 1.0)))
        depth = together = 0
        for now in np.arange(0, begins[-1], STEP_S).tolist():
            is_on = bool(((now >= begins) & (now < begins + 5)).any())
            officer.saw(now, "m", STEP_S * (9.0 if is_on else 0.2), requests=1)
            verdict = officer.decide(now, depth, explain=False)
            if verdict.depth < depth:
                officer.returned(STEP_S, missed)
            depth = verdict.depth
            together += depth
        return together

    assert lent(missed=100) < 0.5 * lent(missed=0)


def test_a_rise_that_yesterday_had_closes_what_today_would_open():
    officer = LoanOfficer(ladder((10.0, 3.0)), Terms(minimum_s=30))
    for now in np.arange(0, 2 * BIN_S + 5, 1.0).tolist():
        officer.saw(now, "m", 1.0 if now < BIN_S else 5.0)
        officer.decide(now, 0, explain=False)
    depths = {}
    for before_s in (100.0, 10.0):  # a loan is for 30 s
        now = DAY_S + BIN_S - before_s
        officer.saw(now, "m", 1.0)
        depths[before_s] = officer.decide(now, 0)
    assert depths[100.0].depth == 1
    assert depths[10.0].depth == 0
    assert "at this time of day" in depths[10.0].options[0].why


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 0.9))
def test_a_level_covers_all_but_the_risk(demand, risk):
    level, values = covering(demand, risk), np.array(demand)
    above = np.maximum(values - level, 0).sum()
    assert above == pytest.approx(risk * values.sum(), rel=1e-6, abs=1e-6)


def test_the_day_curve_forgets_older_days():
    curve = DayCurve(risk=0.0)
    for day, demand in enumerate((8.0, 4.0)):
        for now in np.arange(0, 2 * BIN_S + 1, 10.0).tolist():
            curve.look(day * DAY_S + now, 3.0 if now < BIN_S else demand)
    assert curve.rise(2 * DAY_S, 10) == 1.0
    assert curve.rise(2 * DAY_S, BIN_S) == pytest.approx(2.0)
    assert curve.rise(2 * DAY_S + 5 * BIN_S, BIN_S) == 1.0


@given(
    st.lists(st.floats(1, 1000), min_size=2, max_size=64), st.floats(0.1, 30), st.floats(0.01, 0.5), st.floats(0.5, 1)
)
@settings(max_examples=50, deadline=None)
def test_surges_that_may_cost_more_are_awaited_less(intervals, horizon_s, less, more):
    narrow, wide = look_ahead(intervals, horizon_s, less), look_ahead(intervals, horizon_s, more)
    assert narrow.safe is not None
    assert wide.safe is not None
    assert (narrow.safe <= wide.safe).all()


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=6),
    st.floats(0, 20),
    st.floats(0, 20),
)
@settings(max_examples=50, deadline=None)
def test_rungs_are_weighed_by_their_own_load(held, a, b):
    rungs = [Rung((), first + second, {"a": first, "b": second}) for first, second in [(10.0, 10.0), *held]]
    officer = LoanOfficer(rungs, Terms(windows_s=(1.0,)))
    officer.saw(0.0, "a", a)
    officer.saw(0.0, "b", b)
    options = officer.decide(0.0, 0).options
    assert [option.load for option in options] == pytest.approx([rung.load({"a": a, "b": b}) for rung in rungs[1:]])


def order(held: list[Held], quotas: dict[str, int] | None = None) -> list[str]:
    """In which groups g1 to g4, of a device each, come back; those that are alike are so to g1."""
    groups = {f"g{number}": (f"d{number}",) for number in range(1, 5)}
    alike = dict.fromkeys(groups, "g1") if quotas is None else {name: name for name in groups}
    return [victim.group for victim in order_victims(groups, held, quotas or {"g1": 4}, alike)]


def test_what_nobody_uses_comes_back_first_then_what_jobs_can_do_without():
    wide = Held("wide", ("d1", "d2", "d9"), fewest=2)
    assert order([Held("fixed", ("d4",), 1), wide]) == ["g3", "g1", "g2", "g4"]
    victims = order_victims({"g1": ("d1",)}, [wide], {"g1": 1}, {"g1": "g1"})
    assert (victims[0].preempted, victims[0].cost) == ((), 0.0)


def test_then_whose_preemption_costs_least_and_then_whose_checkpoint_is_newest():
    # A job on two groups costs half for each, and the second is free when the first is gone.
    pair = Held("pair", ("d3", "d4"), fewest=2, unsaved_s=900.0)
    old, new = Held("old", ("d1",), 1, unsaved_s=60.0), Held("new", ("d2",), 1, unsaved_s=5.0)
    assert order([pair, old, new]) == ["g3", "g4", "g2", "g1"]


def test_only_as_many_of_each_form_come_back_as_are_asked_for():
    held = [Held("a", ("d1",), 1), Held("b", ("d2",), 1)]
    assert order(held, {"g2": 1}) == ["g2"]
    assert order(held, {"g2": 0}) == []


@given(st.lists(st.tuples(st.sets(st.integers(1, 4), min_size=1), st.integers(1, 3)), max_size=4))
def test_each_group_comes_back_once_and_the_cheapest_first(jobs):
    held = [Held(str(n), tuple(f"d{one}" for one in on), min(fewest, len(on))) for n, (on, fewest) in enumerate(jobs)]
    groups = {f"g{number}": (f"d{number}",) for number in range(1, 5)}
    victims = order_victims(groups, held, {"g1": 4}, dict.fromkeys(groups, "g1"))
    assert sorted(victim.group for victim in victims) == sorted(groups)
    stopped = [job for victim in victims for job in victim.preempted]
    assert len(stopped) == len(set(stopped))


def test_what_comes_by_chance_recalls_nothing_and_a_burst_shows_at_once():
    terms = Terms(minimum_s=5, calm_s=0.5, windows_s=(1.0, 4.0), patience_s=0.2)
    plain = replace(terms, windows_s=(1.0,), patience_s=0.0)
    recalls: dict[Terms, int] = {}
    for each in (terms, plain):
        officer, rng, depth = LoanOfficer(ladder((130.0, 100.0, 60.0, 13.0)), each), np.random.default_rng(1), 0
        recalls[each] = 0
        for now in np.arange(0.0, 62.0, 0.05).tolist():
            is_burst = now >= 60
            for _ in range(int(rng.poisson(0.05 * (82 if is_burst else 8)))):
                officer.saw(now, "m", 1.0)
            before, depth = depth, officer.decide(now, depth, explain=False).depth
            recalls[each] += depth < before and not is_burst
            assert now < 61 or depth <= 1  # three groups hold a burst
    assert recalls[terms] <= 3
    assert recalls[plain] > 5


def test_who_is_turned_away_while_nothing_is_lent_would_be_with_less_too():
    officer = LoanOfficer(ladder())
    assert officer.decide(0.0, 0, "a request was turned away").depth == 0
    assert all("turned away" in option.why for option in officer.decide(0.05, 0, "a request was turned away").options)
