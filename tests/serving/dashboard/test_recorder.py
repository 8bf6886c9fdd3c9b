"""Half an hour of figures, owners and happenings in bounded memory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.dashboard.recorder import BIN_S, BINS, MOST_MARKS, SERIES
from serving.dashboard.source import Holder, Mark
from serving.dashboard.timeline import MOST_CHANGES, Timeline
from serving.dashboard.totals import quantile
from serving.http.families import SECONDS, Histogram
from tests.serving.dashboard.worlds import World


def row(bin, model="chat"):
    return dict(zip(SERIES, bin["models"][model], strict=True))


def test_a_bin_tells_what_came_in_it_and_the_view_what_came_in_a_minute():
    world = World()
    for number in range(20):
        world.arrive(world.now + number / 4, met=number % 4 > 0)
    world.refuse(world.now + 4.9)
    for took in (0.05, 0.05, 0.9):
        world.meters.models["chat"].latency.observe(took)
    news = world.pass_on(5)
    assert [("bin" in one) for one in news] == [False] * 4 + [True]
    told = row(news[-1]["bin"])
    assert told["rate"] == pytest.approx(21 / 5)
    assert told["in_time"] == pytest.approx(15 / 21, abs=1e-4)
    assert told["refused"] == pytest.approx(1 / 5)
    assert told["latency_p50"] == pytest.approx(0.05, rel=0.3)
    model = world.recorder.view()["models"][0]
    assert model["in_time"] == 15 / 21
    assert model["refusals"] == {"refused": 1}
    assert model["requests"] == 21
    assert model["rate"] == pytest.approx(21 / 5)
    world.pass_on(70)
    model = world.recorder.view()["models"][0]
    assert model["rate"] == 0
    assert model["in_time"] is None
    assert model["refusals"] == {}
    assert model["requests"] == 21


def test_burstiness_is_that_of_the_gaps():
    world, generator = World(), np.random.default_rng(0)
    even, bursty = World(), World()
    for number in range(400):
        even.arrive(even.now + number * 0.01)
    gaps = generator.gamma(1 / 9, 9, 2000)  # cv 3, mean 1
    for at in np.cumsum(gaps / gaps.sum() * 4):
        bursty.arrive(bursty.now + at)
    for one in (world, even, bursty):
        one.pass_on(4)
    assert world.recorder.view()["models"][0]["cv"] is None
    assert even.recorder.view()["models"][0]["cv"] == pytest.approx(0, abs=0.01)
    assert bursty.recorder.view()["models"][0]["cv"] == pytest.approx(np.std(gaps) / np.mean(gaps), rel=0.01)


def test_memory_is_bounded():
    world = World()
    for number in range(BINS + 50):
        world.source.happened = [Mark(world.now + 1e9 + n / 100, "loan", f"{number} {n}", {}) for n in range(1, 4)]
        world.source.held["n/1"] = Holder("job", f"j{number}") if number % 2 else Holder("group", "g1")
        world.pass_on(int(BIN_S))
    kept = world.recorder.history()
    assert len(kept["bins"]) == BINS
    assert len(kept["marks"]) <= MOST_MARKS
    assert len(kept["changes"]) <= 2 * MOST_CHANGES
    oldest = world.now + 1e9 - kept["span_s"]
    of_it = [change for change in kept["changes"] if change.device == "n/1"]
    assert of_it[0].at <= oldest < of_it[1].at


def test_news_are_told_once_and_owners_only_when_they_change():
    world = World()
    assert [change.device for change in world.pass_on(1)[0]["changes"]] == ["n/0", "n/1"]
    world.source.happened = [Mark(world.now + 1e9 + 0.5, "loan", "g1 lent", {})]
    world.source.held["n/1"] = Holder("job", "lesson")
    first, second = world.pass_on(2)
    assert [(one.device, one.kind, one.name) for one in first["changes"]] == [("n/1", "job", "lesson")]
    assert [mark.title for mark in first["marks"]] == ["g1 lent"]
    assert second["changes"] == second["marks"] == []
    assert world.recorder.view()["devices"][1]["since"] == world.now - 1 + 1e9


@given(st.lists(st.floats(0.0005, 150), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values, share):
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    found = quantile(SECONDS, histogram.counts, share)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    bounds = [0.0, *SECONDS]
    place = next(i for i in range(1, len(bounds)) if true <= bounds[i])
    assert bounds[place - 1] <= found <= bounds[place] + 1e-12


def test_a_device_that_joins_has_a_time_line():
    timeline = Timeline("a")
    assert timeline.last("b") is None
    timeline.note(1.0, "b", "idle", "")
    assert timeline.last("b").kind == "idle"


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.sampled_from("ab"), st.integers(0, 2)), max_size=60), st.floats(0, 100)
)
def test_changes_since_a_time_say_who_had_each_device_from_then_on(steps, since):
    timeline, at, owner_at = Timeline("ab"), 0.0, {}
    for step, device, owner in steps:
        at += step
        timeline.note(at, device, "group", str(owner))
        owner_at.setdefault(device, []).append((at, str(owner)))
    told = list(timeline.since(since))
    for device, noted in owner_at.items():
        mine = [change for change in told if change.device == device]
        for moment in (since, since + 10, at):
            true = [name for when, name in noted if when <= moment]
            shown = [change.name for change in mine if change.at <= moment]
            assert (true[-1:] or None) == (shown[-1:] or None)
