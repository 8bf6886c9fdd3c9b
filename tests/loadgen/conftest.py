"""An endpoint without models in a thread of the test, and ways to drive it."""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from loadgen.client.run import run_once
from loadgen.fake_endpoint import Behaviour, FakeEndpoint
from loadgen.load_test import LoadTest, look_at
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions
from serving.cli import run

ROOT = Path(__file__).parents[2]
PENSTOCK = [sys.executable, "-m", "serving.cli"]


@contextmanager
def serving(**behaviour):
    """A FakeEndpoint that answers while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start():
        endpoint = FakeEndpoint(Behaviour(**behaviour))
        await endpoint.start()
        return endpoint

    endpoint = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield endpoint
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def endpoint():
    with serving(service_s=0.002) as running:
        yield running


def drive(endpoint, on_progress=None, *, test=None, **traffic):
    """One run in this process."""
    given = LoadTest(url=parse_url(endpoint.url), traffic=TrafficOptions(**traffic), **(test or {}))
    return run_once(given, look_at(given), given.traffic, on_progress)


def misplaced_s(endpoint, demand):
    """By how much requests came at the server earlier or later than others, beside when they were due: the median.

    Evenly spaced, the requests of these tests would be a tenth of a second out of place and more."""
    delay = np.sort([seen.at_s for seen in endpoint.seen]) - demand.arrival_s
    return float(np.median(np.abs(delay - np.median(delay))))


def penstock_load(*arguments, env=None):
    return subprocess.run(
        [*PENSTOCK, "load", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
    )


def told(*arguments):
    """What `penstock load --json` prints; an invalid run exits with 1 and prints it too."""
    run = penstock_load(*arguments, "--json")
    assert run.returncode in (0, 1), run.stderr
    assert len(run.stdout.splitlines()) == 1
    return json.loads(run.stdout)


def run_here(*arguments):
    """The exit code of `penstock load` in this process."""
    return run(["load", *arguments])
