"""What the router counts."""

import pytest

from router.statistics import ClassStatistics


def test_attainment_and_goodput_are_of_the_last_minute():
    counts = ClassStatistics()
    for second in range(100, 130):
        counts.window.add(second + 0.5, second < 115)
    assert counts.attainment(130.0) == 0.5
    assert counts.goodput_per_s(130.0) == pytest.approx(15 / 60)
    assert counts.attainment(175.0) == 0.0  # only those from second 116 on are left
    assert counts.goodput_per_s(175.0) == 0.0
    assert counts.attainment(10_000.0) is None
    counts.window.add(10_000.0, True)
    assert counts.attainment(10_000.0) == 1.0


def test_what_a_client_gave_up_is_nobodys_miss():
    counts = ClassStatistics()
    counts.end_without("refused", 1.0)
    counts.end_without("cancelled", 1.0)
    assert counts.judged == 1
    assert counts.attainment(1.0) == 0.0
