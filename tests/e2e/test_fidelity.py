"""What is simulated is what happens: the tiny run of benchmarks.fidelity, on emulated workers."""

import pytest

from benchmarks.fidelity import summarise
from tests.test_benchmarks import run_tiny

# Passes take 0.1 s and more: what a busy machine adds to each is little beside them.
ATTAINMENT, LATENCY = 0.08, 0.2


@pytest.fixture(scope="module")
def points():
    return run_tiny("fidelity")["points"]


def test_attainment_and_latency_are_those_simulated(points):
    for point in points:
        real, model = point["measured"], point["simulated"]
        assert real["attainment"] == pytest.approx(model["attainment"], abs=ATTAINMENT), point
        assert real["latency_ms"] == pytest.approx(model["latency_ms"], rel=LATENCY), point


def test_the_points_tell_calm_from_overload(points):
    calm, over = points
    assert calm["measured"]["attainment"] > 0.95
    assert over["measured"]["attainment"] < calm["measured"]["attainment"] - 2 * ATTAINMENT


def test_a_point_that_is_missed_counts(points):
    wrong = [point | {"valid": True, "measured": point["measured"] | {"attainment": 0.5}} for point in points]
    assert summarise(wrong)["ratio"] > 1


def test_points_for_which_the_generator_was_too_late_are_counted_apart(points):
    calm, over = points
    right = calm | {"valid": True, "measured": calm["simulated"]}
    wrong = over | {"valid": False, "measured": over["measured"] | {"attainment": 0.0}}
    report = summarise([right, wrong])
    assert report["ratio"] == 0
    assert (report["sets"]["emulated"]["points"], report["invalid"]["emulated"]["points"]) == (1, 1)
