"""What makes up a run of Locust, without Locust: options, a worker and what the master hears of it, the verdict."""

import math
import time
from argparse import Namespace
from types import SimpleNamespace
from unittest.mock import MagicMock

import gevent
import msgspec
import pytest

from loadgen.errors import TrafficError
from loadgen.overrun import Overrun
from loadgen.results.record import Record
from loadgen.stages import stages_from
from loadgen.swarm import crew as crew_module
from loadgen.swarm import worker as worker_module
from loadgen.swarm.arguments import given_arguments, load_test_from
from loadgen.swarm.crew import Crew
from loadgen.swarm.messages import REPORT, Report, Share, packed, unpacked
from loadgen.swarm.prepared import prepare
from loadgen.swarm.rows import Rows, stage_names
from loadgen.swarm.verdict import summary_of, tell_verdict
from loadgen.swarm.web_page import goal_rows
from loadgen.swarm.worker import Worker
from loadgen.traffic_options import TrafficOptions
from tests.loadgen.conftest import serving

SHORT = {"models": "embed", "rate": "50", "duration": "200ms"}


@pytest.fixture
def worker():
    one = Worker(MagicMock())
    yield one
    one.stop()


def given(**options):
    return given_arguments(Namespace(**options))


def share(endpoint, run, begun_s=0.0, **options):
    return msgspec.msgpack.encode(Share(run, 0, 1, time.time() - begun_s, endpoint.url, given(**(SHORT | options))))


def report_of(worker):
    data = {}
    worker.report(data)
    return msgspec.msgpack.decode(data[REPORT], type=Report)


def hear(crew, worker):
    return crew.take("w", report_of(worker))


def never_lost(worker):
    return False


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        gevent.sleep(0.01)


def hear_all(crew, worker):
    def is_over():
        hear(crew, worker)
        return crew.is_over(never_lost)

    wait_for(is_over)


def test_a_run_is_not_ended_by_what_is_reported_of_the_one_before(worker, endpoint, monkeypatch):
    first, second = Crew(1, ["w"]), Crew(2, ["w"])
    worker.take_share(share(endpoint, 1))
    hear_all(first, worker)
    hear(second, worker)
    assert not second.is_over(never_lost)

    def slow_prepare(*arguments):
        hear(second, worker)
        assert not second.is_over(never_lost)
        return prepare(*arguments)

    monkeypatch.setattr(worker_module, "prepare", slow_prepare)
    worker.take_share(share(endpoint, 2, seed="7"))
    hear_all(second, worker)
    demands = [prepare(given(**SHORT, seed=seed), endpoint.url).demand for seed in ("0", "7")]
    assert [len(crew.records) for crew in (first, second)] == [len(demand) for demand in demands]


def test_a_run_that_is_still_sent_is_given_up_for_the_next(worker, endpoint):
    second = Crew(2, ["w"])
    worker.take_share(share(endpoint, 1, duration="60s"))
    gevent.sleep(0.1)
    sent = len(endpoint.seen)
    worker.take_share(share(endpoint, 2))
    hear_all(second, worker)
    assert 0 < len(second.records) == len(endpoint.seen) - sent


def test_trouble_is_told_once_and_does_not_outlive_its_run(worker, endpoint):
    first, second = Crew(1, ["w"]), Crew(2, ["w"])
    worker.take_share(share(endpoint, 1, models="nope"))
    assert "'nope' is not served" in hear(first, worker)
    assert hear(first, worker) == ""
    worker.take_share(share(endpoint, 1, models="nope"))
    assert hear(second, worker) == ""
    worker.take_share(share(endpoint, 2))
    assert hear(second, worker) == ""
    hear_all(second, worker)


def test_a_worker_without_a_share_reports_nothing():
    data = {}
    Worker(MagicMock()).report(data)
    assert data == {}


def test_records_come_over_whole():
    record = Record(3, 1, 2, 0.25, sent_s=0.26, reason="refused")
    record.gaps_s.extend([0.1, 1 / 3])
    [came] = unpacked(msgspec.msgpack.decode(msgspec.msgpack.encode(packed([record]))))
    assert repr(came) == repr(record)
    assert math.isnan(came.first_s)


@pytest.mark.parametrize("service_s", [0.0, 30.0])
def test_a_run_stopped_after_its_last_request_went_out_is_invalid(worker, service_s):
    with serving(service_s=service_s) as endpoint:
        crew = Crew(1, ["w"])
        prepared = prepare(given(**SHORT), endpoint.url)
        worker.take_share(share(endpoint, 1))
        wait_for(lambda: len(endpoint.seen) == len(prepared.demand))
        gevent.sleep(0.1)
        worker.stop()
        hear(crew, worker)
    assert len(crew.records) == len(prepared.demand)
    ended = "it ended before all requests had come to an end"
    assert (ended in summary_of(prepared, crew.records, 0.1, None).invalid_because) == (service_s > 0)


def test_a_worker_far_behind_stops_and_with_it_the_run(worker, endpoint, caplog):
    crew = Crew(1, ["w", "other"])
    worker.take_share(share(endpoint, 1, begun_s=5.5))
    hear_all(crew, worker)
    assert crew.overrun.behind_s > 5
    assert endpoint.seen == crew.records == []
    assert tell_verdict(prepare(given(**SHORT), endpoint.url), [], 0.1, crew.overrun, "") == 1
    [line] = [one.message for one in caplog.records]
    assert line.startswith("the generator cannot send so fast")


def test_what_one_worker_managed_all_would_have():
    crew = Crew(1, ["a", "b"])
    crew.take("a", Report(run=1, at_epoch_s=0.0, overrun=Overrun(10, 8.0, 6.0)))
    crew.take("b", Report(run=1, at_epoch_s=0.0, overrun=Overrun(30, 9.0, 7.0)))
    assert crew.overrun == Overrun(20, 8.0, 6.0)


def test_of_a_run_that_fell_behind_that_alone_is_said(endpoint):
    prepared = prepare(given(**SHORT), endpoint.url)
    record = Record(0, 0, 0, 0.1, sent_s=0.1, done_s=0.2, status=200)
    overrun = Overrun(1, 7.0, 6.0)
    assert summary_of(prepared, [record], 0.1, overrun).invalid_because == [str(overrun)]


def test_a_clock_that_is_off_is_told_in_one_line(caplog, monkeypatch):
    monkeypatch.setattr(crew_module, "time", SimpleNamespace(time=lambda: 1000.0))
    crew = Crew(1, ["good", "late"])
    for worker, off_s in (("good", 0.3), ("good", 0.001), ("late", 0.3), ("late", 0.2)):
        crew.take(worker, Report(run=1, at_epoch_s=1000.0 - off_s))
    crew.warn_of_clocks()
    [line] = caplog.records
    assert "worker late is 200 ms behind" in line.message


def test_options_come_from_the_form_then_as_typed_then_by_default(monkeypatch):
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    typed = Namespace(rate="5", stream=False, ignore_eos=True, max_open="", timeout="3s", api_key="")
    got = given_arguments(typed, {"rate": "9", "ignore_eos": "false"})
    test = load_test_from(got, "http://h:1")
    assert (got["rate"], got["max_open"], got["api_key"]) == ("9", "8000", "secret")
    assert (test.stream, test.ignore_eos, test.limits.timeout_s) == (False, False, 3.0)
    assert given_arguments(Namespace(api_key="own"))["api_key"] == "own"


@pytest.mark.parametrize(
    ("options", "host", "message"),
    [
        ({}, "nope", "--host: 'nope' is not the URL"),
        ({}, "http://127.0.0.1:9", "give the right --host"),
        ({}, "", "--host: missing"),
        ({"max_open": "0"}, "http://h", "--max-open: "),
        ({"timeout": "soon"}, "http://h", "--timeout: "),
    ],
)
def test_what_is_wrong_is_named_as_locust_names_it(options, host, message):
    with pytest.raises(TrafficError, match=message):
        prepare(given(**options), host)


def test_timeout_and_most_open_hold(worker):
    with serving(service_s=5.0) as endpoint:
        crew = Crew(1, ["w"])
        worker.take_share(share(endpoint, 1, timeout="100ms", max_open="1"))
        hear_all(crew, worker)
    assert {record.reason for record in crew.records} == {"timeout", "not-sent"}


def test_stages_have_names_of_their_own_in_order():
    names = stage_names(stages_from(TrafficOptions(stages=",".join(["10:1:1s"] * 11))))
    assert len(set(names)) == 11
    assert names == sorted(names)
    assert stage_names(stages_from(TrafficOptions(stages="10:1:1s,10:1:1s"))) == [
        "1: rate 10, cv 1",
        "2: rate 10, cv 1",
    ]


def test_stages_are_judged_by_the_goals_of_goodput(endpoint):
    prepared = prepare(given(models="embed", stages="20:1:1s,20:1:1s", slo="1s", goodput="e2el:100"), endpoint.url)
    entries = {}
    stats = SimpleNamespace(get=lambda name, kind: entries.setdefault((name, kind), MagicMock()))
    rows = Rows(
        SimpleNamespace(events=MagicMock(), stats=stats), prepared.demand, prepared.target.slo, prepared.test.goodput
    )
    rows.add(Record(0, 0, 1, 1.0, sent_s=1.0, done_s=1.5, status=200))
    assert not entries["2: rate 20, cv 1", "STAGE"].log_error.called
    assert entries["2: rate 20, cv 1", "GOODPUT"].log_error.called
    assert entries["embed", "GOODPUT"].log_error.called
    assert ("1: rate 20, cv 1", "GOODPUT") not in entries


def test_goodput_of_a_stage_is_over_the_stage():
    def entry(requests, failures):
        return SimpleNamespace(num_requests=requests, num_failures=failures, fail_ratio=failures / requests)

    entries = {
        ("1: a", "STAGE"): entry(30, 0),
        ("2: b", "STAGE"): entry(60, 0),
        ("2: b", "GOODPUT"): entry(60, 45),
        ("m", "SLO"): entry(90, 9),
    }
    stats = SimpleNamespace(entries=entries, get=lambda name, kind: entries[name, kind], errors={})
    rows = goal_rows(stats, {"": 9.0, "1: a": 3.0, "2: b": 3.0}.__getitem__)
    assert [(row["model"], row["goodput"]) for row in rows] == [("m", "9.00"), ("1: a", "10.00"), ("2: b", "5.00")]
    assert {row["goodput"] for row in goal_rows(stats, lambda name: 0.0)} == {""}
