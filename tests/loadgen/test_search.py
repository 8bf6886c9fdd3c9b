"""The search for the largest rate held, run by run: what is blamed on whom, what an interrupt leaves."""

from dataclasses import replace

import msgspec
import pytest

from loadgen.client.limits import Limits
from loadgen.client.run import run_once
from loadgen.client.search import search
from loadgen.load_test import LoadTest, look_at
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions
from tests.loadgen.conftest import serving

TRAFFIC = TrafficOptions(models="embed", rate="40", duration="0.5s", slo="300ms")


def never_late(outcome):
    """As on a machine that nothing else holds up."""
    because = [why for why in outcome.summary.invalid_because if "not sent" in why]
    summary = msgspec.structs.replace(outcome.summary, invalid_because=because, valid=not because)
    return replace(outcome, summary=summary)


def searching(endpoint, at, traffic=TRAFFIC, limits=None, interrupt_at=None):
    """The search against a server, and the rates that were run; an interrupt comes with that many runs done."""
    test = LoadTest(url=parse_url(endpoint.url), traffic=traffic, limits=limits or Limits())
    target, rates = look_at(test), []

    def run(traffic):
        if len(rates) == interrupt_at:
            raise KeyboardInterrupt
        rates.append(float(traffic.rate))
        return never_late(run_once(test, target, traffic))

    return search(run, traffic, at), rates


def test_too_many_open_is_the_servers_doing():
    with serving(service_s=5.0) as stuck:
        searched, rates = searching(stuck, 0.99, limits=Limits(open=3, timeout_s=0.4))
    assert searched.outcome.summary.failures["not-sent"] > 0
    assert searched.found.rate is None
    assert searched.found.limited_by == "server"
    assert len(rates) == len(set(rates)), "nothing is tried again"


def test_an_interrupt_between_runs_leaves_those_before(endpoint):
    searched, rates = searching(endpoint, 0.5, interrupt_at=2)
    assert rates == [40.0, 80.0]
    assert searched.found.limited_by == "interrupt"
    assert searched.found.rate == searched.outcome.summary.asked.rate
    with pytest.raises(KeyboardInterrupt):
        searching(endpoint, 0.5, interrupt_at=0)
