"""Figures of a test: what counts as met, from which moment times count, when a run is not to be believed."""

import math

import msgspec
import numpy as np
import pytest

from loadgen.demand import make_demand
from loadgen.report.text import summary_text
from loadgen.results.columns import columns_of
from loadgen.results.figures import gap_cv, spread
from loadgen.results.goals import Goal
from loadgen.results.record import NOT_SENT, Record
from loadgen.results.summary import summarise
from loadgen.target.models import TargetModel
from loadgen.traffic_options import TrafficOptions

DEMAND = make_demand(TrafficOptions(rate="10", duration="10s"), (TargetModel("chat"), TargetModel("embed", "embed")))


def answered(row, due, took, **more):
    return Record(row, more.pop("model", 0), 0, due, sent_s=due, done_s=due + took, status=200, **more)


def summary(records, slo=None, goodput=None, **more):
    return summarise(columns_of(records), DEMAND, slo or [Goal(), Goal()], goodput, url="u", generator_cpu=0.1, **more)


def test_times_count_from_when_a_request_was_due():
    late = Record(0, 0, 0, 1.0, sent_s=1.5, first_s=2.0, last_s=3.0, done_s=3.0, status=200, output_tokens=3)
    assert (late.lag_s, late.ttft_s, late.latency_s, late.tpot_s) == (0.5, 1.0, 2.0, 0.5)


def test_what_meets_a_goal():
    streamed = answered(0, 0.0, 1.0, first_s=0.2, last_s=1.0, output_tokens=5)
    assert Goal(ttft_s=0.2, tpot_s=0.2).is_met(streamed)
    assert not Goal(ttft_s=0.19).is_met(streamed)
    assert not Goal(tpot_s=0.19).is_met(streamed)
    assert not Goal(latency_s=0.9).is_met(streamed)
    assert Goal(tpot_s=0.01).is_met(answered(0, 0.0, 1.0, first_s=0.2, last_s=0.2, output_tokens=1))
    whole = answered(0, 0.0, 1.0)
    assert Goal(ttft_s=1.0).is_met(whole)
    assert not Goal(ttft_s=0.9).is_met(whole)
    refused = Record(0, 0, 0, 0.0, sent_s=0.0, done_s=0.001, status=429, reason="refused")
    assert not Goal().is_met(refused)


def test_refused_and_failed_count_as_missed_and_by_reason():
    records = [answered(row, row / 10, 0.1 if row % 2 else 0.3, model=row % 2) for row in range(80)]
    records += [Record(80 + n, 0, 0, 8.0, sent_s=8.0, done_s=8.0, status=429, reason="refused") for n in range(15)]
    records += [Record(95 + n, 1, 0, 9.0, sent_s=9.0, done_s=9.0, reason="timeout") for n in range(5)]
    got = summary(records, slo=(Goal(ttft_s=0.2), Goal(latency_s=0.2)), goodput=Goal(latency_s=0.5))
    assert (got.requests, got.answered, got.refused, got.failed) == (100, 80, 15, 5)
    assert got.attainment == 0.4
    assert got.goodput == 8.0
    assert got.refusals == {"refused": 15}
    assert got.failures == {"timeout": 5}
    assert got.latency.p50 == pytest.approx(0.2)
    assert got.models["chat"].attainment == 0.0
    assert got.models["embed"].attainment == pytest.approx(40 / 45)
    assert got.worst_model == ("chat", 0.0)
    assert got.valid


def test_a_run_is_invalid_when_the_generator_lags_or_does_not_send():
    on_time = [answered(row, row / 100, 0.1) for row in range(100)]
    assert summary(on_time).invalid_because == []
    lagging = [Record(100 + n, 0, 0, 1.0, sent_s=1.02, done_s=1.1, status=200) for n in range(5)]
    assert "could not keep up" in summary(on_time + lagging).invalid_because[0]
    unsent = [Record(100, 0, 0, 1.0, reason=NOT_SENT)]
    assert "1 requests were not sent" in summary(on_time + unsent).invalid_because[0]
    assert not summary(on_time, interrupted=True).valid


def test_cv_of_several_models_is_told_as_what_it_is():
    records = [answered(row, row / 10, 0.1, model=row % 2) for row in range(20)]
    [line] = [line for line in summary_text(summary(records)).splitlines() if line.startswith("arrivals")]
    assert line.endswith("cv 0.000 sent (0.000 drawn) of all models together; asked of each model: 1")


def test_json_has_no_nan():
    got = summary([Record(0, 0, 0, 1.0, sent_s=1.0, done_s=1.0, status=503, reason="no-replica")])
    decoded = msgspec.json.decode(msgspec.json.encode(got))
    assert decoded["latency"] is None
    assert decoded["cv"] is None
    assert decoded["version"] == 1


def test_spread_and_cv():
    assert spread(np.array([math.nan])) is None
    got = spread(np.array([1.0, 2.0, 3.0, math.nan]))
    assert (got.count, got.mean, got.p50, got.max) == (3, 2.0, 2.0, 3.0)
    assert gap_cv(np.arange(10.0)) == 0
    assert gap_cv(np.array([1.0, 2.0])) is None


def test_rows_of_requests_can_be_written(tmp_path):
    records = [answered(0, 0.0, 0.1), Record(1, 1, 0, 0.5, sent_s=0.5, done_s=0.6, status=429, reason="refused")]
    columns_of(records[::-1]).write(tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as rows:
        assert rows["due_s"].tolist() == [0.0, 0.5]
        assert rows["reasons"][rows["reason"]].tolist() == ["", "refused"]
        assert np.isnan(rows["latency_s"][1])
