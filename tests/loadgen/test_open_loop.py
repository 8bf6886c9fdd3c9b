"""The client against a real server: requests go out when they are due, whatever the server does."""

import asyncio
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from loadgen import load_test, overrun
from loadgen.client import event_loop
from loadgen.client.limits import Limits
from loadgen.client.run import run_once
from loadgen.demand import make_demand
from loadgen.load_test import LoadTest, look_at
from loadgen.report.progress import _note
from loadgen.results.goals import Goal
from loadgen.target.asks import Asks
from loadgen.target.models import ListedModel
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions
from tests.loadgen.conftest import drive, misplaced_s, serving


def test_requests_go_out_when_due_and_not_before(endpoint):
    outcome = drive(endpoint, models="embed", rate="150", cv="2", duration="2s")
    columns, demand = outcome.columns, outcome.demand
    assert len(columns) == len(demand) == len(endpoint.seen)
    assert np.array_equal(columns.due_s, demand.arrival_s)
    assert (columns.lag_s >= 0).all()
    assert np.median(columns.lag_s) < 0.03
    # The server's own clock agrees with what the client says it did.
    assert misplaced_s(endpoint, demand) < 0.03
    assert outcome.summary.rate == pytest.approx(outcome.summary.drawn_rate, rel=0.02)
    assert outcome.summary.answered == len(demand)


def test_a_stall_shows_in_all_that_were_due_meanwhile():
    with serving(service_s=0.001, stall_after_s=0.5, stall_s=1.0) as stalling:
        columns = drive(stalling, models="embed", rate="100", duration="2s").columns
    began = columns.sent_s[0]
    during = (columns.due_s > began + 0.55) & (columns.due_s < began + 1.4)
    assert during.sum() > 50
    left = began + 1.5 - columns.due_s[during]
    assert (columns.latency_s[during] > left - 0.1).all()
    # They were sent on time all the same: nobody waited for an answer.
    assert np.median(columns.lag_s[during]) < 0.05
    assert np.median(columns.latency_s[columns.due_s < began + 0.4]) < 0.2


def test_refusals_are_counted_by_reason():
    with serving(service_s=0.05, servers=1, queue=1, refuse_every=5) as busy:
        summary = drive(busy, models="embed", rate="60", duration="1s").summary
    assert summary.refused > 10
    assert set(summary.refusals) == {"refused", "queue-full"}
    assert summary.refusals["refused"] == summary.requests // 5
    assert sum(summary.refusals.values()) == summary.refused
    assert summary.answered + summary.refused == summary.requests
    assert summary.attainment == summary.answered / summary.requests


def test_tokens_and_goals_reach_the_server():
    with serving(service_s=0.01, token_s=0.005) as streaming:
        outcome = drive(
            streaming, models="chat,embed", rate="40", duration="1s", slo="chat=300ms/20ms,embed=100ms",
            prompt_tokens="50~0.5", output_tokens="5", test={"goodput": Goal(ttft_s=0.001), "api_key": "secret-key"},
        )  # fmt: skip
    columns, demand = outcome.columns, outcome.demand
    assert np.array_equal(columns.prompt_tokens, demand.prompt_tokens)
    assert np.array_equal(columns.output_tokens, demand.output_tokens)
    chat = columns.model == 0
    assert (columns.ttft_s[chat] > 0.01).all()
    assert (columns.tpot_s[chat] > 0.004).all()
    assert np.isnan(columns.ttft_s[~chat]).all()
    assert outcome.summary.models["chat"].itl.count == 4 * chat.sum()
    assert outcome.summary.goodput == 0
    asked = [seen for seen in streaming.seen if seen.path == "/v1/completions"]
    assert asked[0].headers["x-slo-ms"] == "300"
    assert asked[0].headers["x-slo-tpot-ms"] == "20"
    assert asked[0].headers["authorization"] == "Bearer secret-key"
    assert asked[0].body["ignore_eos"] is True
    assert len({tuple(seen.body["prompt"]) for seen in asked}) == len(asked)
    assert {seen.headers["x-slo-ms"] for seen in streaming.seen if seen.path == "/v1/embeddings"} == {"100"}


def test_words_where_the_server_tells_no_tokens_and_chat():
    with serving(tokenizes=False, models={"m": ""}) as other:
        outcome = drive(other, rate="30", duration="1s", prompt_tokens="20", test={"api": "chat", "stream": False})
    assert outcome.summary.answered == len(outcome.demand)
    assert {seen.path for seen in other.seen} == {"/v1/chat/completions"}
    assert set(outcome.columns.prompt_tokens) == {20}
    assert outcome.summary.ttft is None


def test_too_many_open_are_not_sent_and_the_run_is_invalid():
    with serving(service_s=1.0) as slow:
        outcome = drive(slow, models="embed", rate="50", duration="0.5s", test={"limits": Limits(open=5)})
    unsent = outcome.summary.failures["not-sent"]
    assert outcome.summary.answered == 5
    assert unsent == len(outcome.demand) - 5
    assert f"{unsent} requests were not sent" in " ".join(outcome.summary.invalid_because)


def test_a_generator_that_is_held_up_says_so(endpoint):
    def watcher(demand):
        return lambda tally, recent: time.sleep(0.1)

    summary = drive(endpoint, watcher, models="embed", rate="200", duration="1.2s").summary
    assert not summary.valid
    assert "could not keep up" in summary.invalid_because[0]
    assert summary.lag.max > 0.05
    # What it held up counts: latencies are from the due times.
    assert summary.latency.max > 0.05


def test_answers_that_do_not_come_are_given_up():
    with serving(service_s=5.0) as slow:
        summary = drive(
            slow, models="embed", rate="30", duration="0.5s", test={"limits": Limits(timeout_s=0.3)}
        ).summary
    assert summary.failures == {"timeout": summary.requests}
    assert summary.attainment == 0


def test_a_generator_that_cannot_send_so_fast_stops(endpoint, monkeypatch):
    monkeypatch.setattr(overrun, "_LEAST_S", 0.3)
    summary = drive(endpoint, models="embed", rate="100000", duration="2s").summary
    assert summary.requests < 100_000
    assert summary.answered == summary.requests
    assert len(summary.invalid_because) == 1
    assert re.search(r"cannot send so fast: it managed [\d.e+]+ requests/s", summary.invalid_because[0])


def test_progress_tells_how_far_it_is_behind(endpoint, monkeypatch):
    notes = []

    def watcher(demand):
        return lambda tally, recent: notes.append(_note(tally, recent, demand))

    monkeypatch.setattr(overrun, "_LEAST_S", 1.0)
    drive(endpoint, watcher, models="embed", rate="100000", duration="1s")
    assert re.search(r"  \d\.\d s behind", " ".join(notes))


def test_answers_are_read_while_requests_are_made(endpoint, monkeypatch):
    make = Asks.make

    def slowly(asks, row):
        time.sleep(0.01)
        return make(asks, row)

    monkeypatch.setattr(Asks, "make", slowly)
    # The first is answered at once, the others are far off: 60 are made meanwhile.
    monkeypatch.setattr("loadgen.client.run.make_demand", lambda *given: _with_a_gap(make_demand(*given)))
    outcome = drive(endpoint, models="embed", rate="80", duration="2s")
    assert outcome.columns.latency_s[0] < 0.2


def _with_a_gap(demand):
    times = 1.0 + demand.arrival_s / 2
    times[0] = 0.0
    return replace(demand, arrival_s=times)


def test_the_host_is_looked_up_once(endpoint, monkeypatch):
    asked = []

    async def lookup(loop, host, *more, **named):
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.2", 1)), (2, 1, 6, "", ("127.0.0.1", endpoint.port))]

    monkeypatch.setattr(event_loop, "_loop_factory", lambda: asyncio.new_event_loop)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", lookup)
    monkeypatch.setattr(load_test, "list_models", lambda *given: [ListedModel("embed", "embed")])
    monkeypatch.setattr(load_test, "tokens_of", lambda *given: None)
    test = LoadTest(url=parse_url(f"http://far.invalid:{endpoint.port}"), traffic=TrafficOptions(duration="1s"))
    outcome = run_once(test, look_at(test), test.traffic)
    assert outcome.summary.answered == len(outcome.demand)
    assert asked == ["far.invalid"]
    assert {seen.headers["host"] for seen in endpoint.seen} == {f"far.invalid:{endpoint.port}"}
