"""The long counts: kills under load and around loans, and overload, held to their goals."""

import pytest

from tests.test_benchmarks import run_benchmark


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_twenty_kills_cost_nothing_but_what_had_begun():
    found = run_benchmark("chaos")
    assert found["wrong"] == 0
    assert found["kills"] == 20
    assert found["back_s"]["most"] < found["back_within_s"]
    assert not any(found["left_behind"].values()), found["left_behind"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_times_the_load_for_a_minute():
    found = run_benchmark("overload")
    goals = found["goals"]
    assert found["ratio"] >= goals["ratio"]
    assert found["worst_over_best"] >= goals["worst_over_best"]
    assert found["refused_p99_ms"] < goals["refused_p99_ms"]
    assert found["dropped_later_share"] < goals["dropped_later_share"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_recalls_take_less_than_a_second():
    found = run_benchmark("loans", "--parts", "cycles")
    for workers in found["workers"].values():
        assert workers["cycles"]["cycles"] >= 50
        assert workers["cycles"]["unanswered"] == 0
        assert workers["cycles"]["served_s"]["p99"] < found["limits"]["served_s"]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_kills_while_devices_are_lent_and_called_back():
    found = run_benchmark("chaos_loans", timeout_s=3600)
    assert found["wrong"] == []
    assert sum(found["kills"].values()) == 50
    assert found["ratio"] == 1.0
    assert found["loans"] > 0
