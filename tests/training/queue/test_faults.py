"""What goes wrong: rows that cannot be read, jobs that cannot be decided on, a store that fails now and then. One job
pays for it at most."""

import asyncio
import math
import os
import time
from pathlib import Path

import msgspec
import pytest

from placement.errors import InputError
from tests.training.queue.test_recall import Elastic
from tests.training.queue.test_service import FOREVER, InPlace
from tests.training.queue.worlds import cluster, job, running, service, shell, states, until
from training.job_files import read_jobs
from training.jobs import Batch, Job, Pollux
from training.policies import policy_named
from training.queue.claims import register
from training.queue.decision import OpenDevices, at_fault
from training.queue.errors import StoreError
from training.queue.keeper import ALIVE
from training.queue.record import Observed, Record
from training.queue.rows import to_cell
from training.queue.submission import with_command

FULL = StoreError("disk full")
HOPELESS = {
    "gpus": 4,
    "curve": Pollux(0.1, 0.01, 0.05, 0.005, 0.2, 0.02, gamma=2.0, noise_scale=1000.0),
    "batch": Batch(1, 1),
}
"""One sample cannot be shared by four workers."""


@pytest.fixture
def store(sqlite_store):
    return sqlite_store


def spoil(store, name, column, text):
    with store.database.write() as transaction:
        transaction.run(f"UPDATE jobs SET {column} = ? WHERE id = ?", text, name)
        transaction.run("UPDATE facts SET value = value + 1 WHERE name = 'changes'")
        transaction.run("UPDATE jobs SET changed = (SELECT value FROM facts WHERE name = 'changes') WHERE id = ?", name)


def failing(work, error=FULL):
    """The work, which fails once before it is done."""
    left = [error]

    def call(*arguments, **words):
        if left:
            raise left.pop()
        return work(*arguments, **words)

    return call


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"retries": 101}, "retries: Expected `int` <= 100"),
        ({"user": "x" * 257}, "user"),
        ({"grace": "soon"}, "grace"),
        ({"command": ()}, "no command"),
    ],
)
def test_what_a_trace_is_given_is_checked_as_any_submission(more, says):
    with pytest.raises(InputError, match=says):
        with_command(Job(id="a", gpus=1, duration=5.0), **{"command": ("true",)} | more)


def test_a_trace_keeps_its_words(tmp_path):
    (tmp_path / "jobs.csv").write_text("id,arrival,duration,gpus,user\na,0,90,2,ann\n")
    (asked,) = (with_command(one, command=("true",), grace="3s") for one in read_jobs(tmp_path / "jobs.csv"))
    assert (asked.duration, asked.gpus, asked.user, asked.grace, asked.command) == (90, 2, "ann", 3, ("true",))


def test_nothing_is_stored_that_could_not_be_read():
    with pytest.raises(InputError, match="observed cannot be kept"):
        to_cell("observed", Observed(done=float("nan")))
    with pytest.raises(InputError, match="retries"):
        to_cell("job", job("a", retries=101))


def test_a_hopeless_curve_is_refused(store):
    with pytest.raises(InputError, match="no speed at 4 workers"):
        store.submit([job("a", **HOPELESS)], "me")
    with pytest.raises(ValueError, match="ten years"):
        job("a", deadline=9e9)


@pytest.mark.parametrize(("column", "text"), [("observed", '{"done": null}'), ("job", "{}"), ("devices", "[1]")])
def test_a_row_that_cannot_be_read_fails_its_job_alone(store, tmp_path, column, text):
    async def run():
        store.submit([shell("bad", FOREVER), shell("good", "true")], "me")
        spoil(store, "bad", column, text)
        assert [record.id for record in store.jobs()] == ["bad", "good"]
        async with running(service(store, tmp_path / "jobs")):
            await until(lambda: not store.live())
        assert states(store) == {"bad": "failed", "good": "finished"}
        assert f"its {column} in the store cannot be read" in store.get("bad").why
        assert not store.get("bad").fault

    asyncio.run(run())


def test_one_that_runs_is_ended(store, tmp_path):
    async def run():
        store.submit([shell("bad", FOREVER)], "me")
        async with running(service(store, tmp_path / "jobs")):
            await until(lambda: states(store)["bad"] == "running")
            process = store.get("bad").process
            spoil(store, "bad", "observed", '{"done": null}')
            await until(lambda: not store.live())
        assert states(store) == {"bad": "cancelled"}
        assert not os.path.exists(f"/proc/{process.pid}")

    asyncio.run(run())


def test_a_job_that_cannot_be_decided_on_fails_alone(store, tmp_path, monkeypatch):
    monkeypatch.setattr("training.queue.store.speedup_table", lambda job, devices: None)  # as an older one did

    async def run():
        store.submit([job("bad", **HOPELESS), shell("good", "true")], "me")
        async with running(service(store, tmp_path / "jobs", count=4)):
            await until(lambda: not store.live())
        assert states(store) == {"bad": "failed", "good": "finished"}
        assert "cannot be decided on: job bad: its curve comes to no speed" in store.get("bad").why

    asyncio.run(run())


def test_what_was_observed_must_be_finite():
    now = 1.8e9
    record = msgspec.structs.replace(Record.of(job("a"), 1, now), observed=Observed(attained=math.inf))
    devices = OpenDevices.of(cluster(2), ["n0/0"])
    assert "its attained comes to inf" in at_fault([record], devices, policy_named("fcfs"), now)["a"]


def test_a_start_that_the_store_refused_is_tried_again(store, tmp_path):
    async def run():
        queue = service(store, tmp_path / "jobs")
        store.submit([shell("a", "true")], "me")
        await queue.begin()
        claims = queue._attendant.claims
        claims.claim = failing(claims.claim)
        async with running(queue):
            await until(lambda: not store.live(), 8)
        assert states(store) == {"a": "finished"}

    asyncio.run(run())


def test_a_stop_that_the_store_refused_is_tried_again(store, tmp_path):
    async def run():
        queue = service(store, tmp_path / "jobs", "priority", count=1)
        store.submit([shell("low", FOREVER)], "me")
        async with running(queue):
            await until(lambda: states(store)["low"] == "running")
            claims = queue._attendant.claims
            claims.leave = failing(claims.leave)
            store.submit([shell("high", FOREVER, priority=1)], "me")
            await until(lambda: states(store) == {"low": "suspended", "high": "running"}, 8)

    asyncio.run(run())


def test_a_change_that_the_store_missed_is_taken_back(store, tmp_path):
    async def run():
        runner = InPlace()
        queue = service(store, tmp_path / "jobs", "penstock", runner=runner, count=3)
        store.submit([shell("e", "-", min_gpus=1, gpus=1, max_gpus=3)], "me")
        async with running(queue):
            await until(lambda: len(store.get("e").devices) == 3)
            claims = queue._attendant.claims
            claims.resized = failing(claims.resized)
            store.submit([shell("two", "-", gpus=2, duration=1)], "me")
            await until(lambda: states(store)["two"] == "running")
            told = [len(devices) for devices in runner.devices["e"]]
            assert told == [3, 1, 3, 1]
            assert runner.devices["e"][-1] == store.get("e").devices

    asyncio.run(run())


def test_the_lease_and_the_recalls_survive_what_nobody_thought_of(store, tmp_path):
    async def run():
        queue = service(store, tmp_path / "jobs", lease_s=0.3)
        told = []
        queue._note = lambda what, facts: told.append(facts.get("reason"))
        async with running(queue):
            await until(lambda: queue.has_lease)
            claims = queue._attendant.claims
            claims.renew = failing(claims.renew, error=KeyError("renew"))
            await until(lambda: "KeyError: 'renew'" in told)
            before = time.time()
            await until(lambda: heartbeat(store) > before)
            take_back, calls = queue._take_back, []

            async def broken():
                calls.append(1)
                if "recalls" in str(asyncio.current_task().get_name()) and len(calls) < 5:
                    raise KeyError("recall")
                return await take_back()

            queue._take_back = broken
            queue.wake()
            await until(lambda: "KeyError: 'recall'" in told)
            assert not [task for task in asyncio.all_tasks() if "recalls" in task.get_name() and task.done()]
            assert any("recalls" in task.get_name() for task in asyncio.all_tasks())

    asyncio.run(run())


def heartbeat(store, name="c0"):
    with store.database.read() as transaction:
        return transaction.all("SELECT heartbeat FROM controllers WHERE name = ?", name)[0][0]


def test_a_lease_is_not_given_up_while_something_may_run(store, tmp_path):
    async def run():
        queue = service(store, tmp_path / "jobs", runner=Elastic())
        store.submit([shell("a", "-")], "me")
        async with running(queue, suspends=False):
            await until(lambda: states(store)["a"] == "running")
        claims = queue._attendant.claims
        claims.leave = failing(claims.leave)
        await queue.stop()
        assert heartbeat(store) > 0
        await queue.stop()
        assert heartbeat(store) == 0

    asyncio.run(run())


def test_keepers_wait_no_longer_than_the_lease_lasts(store, tmp_path):
    """They are told the time at which the lease was renewed, however long it took to tell them."""

    async def run():
        queue = service(store, tmp_path / "jobs", lease_s=0.3)
        store.submit([shell("a", FOREVER)], "me")
        async with running(queue):
            await until(lambda: states(store)["a"] == "running")
            claims = queue._attendant.claims
            free_lost = claims.free_lost

            def slow():
                time.sleep(0.5)
                return free_lost()

            claims.free_lost = slow
            alive = Path(store.get("a").folder) / ALIVE
            began = alive.stat().st_mtime
            await until(lambda: alive.stat().st_mtime > began + 0.6)
            seen = alive.stat().st_mtime
            assert time.time() - seen > 0.4

    asyncio.run(run())


def test_reads_and_leases_go_on_beside_a_row_that_cannot_be_read(store):
    claims = register(store, "c0", cluster())
    store.submit([job("a"), job("b")], "me")
    spoil(store, "a", "observed", "nonsense")
    assert "observed" in store.get("a").fault
    assert len(store.news().jobs) == len(store.live()) == 2
    assert claims.free_lost() == []
    assert claims.fail_unreadable("b").state == "queued"
    assert claims.fail_unreadable("a").state == "failed"
