"""What metrics are made of."""

from serving.http.families import Histogram


def test_a_value_that_equals_a_bound_is_within_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 8.0
