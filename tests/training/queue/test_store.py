"""The store: what is refused, who may have how much, who may change what; a law over any order of changes."""

import contextlib
import itertools
import os
import sqlite3
import stat
import tempfile
import threading
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from placement.errors import InputError
from tests.training.queue.worlds import cluster, job
from training.queue import ANYBODY, Ended, JobExists, NoSuchJob, OverQuota, Quota, open_store, read_submission
from training.queue.claims import Grant, register
from training.queue.errors import LeaseLost, Stale, StoreError
from training.queue.record import Process
from training.queue.states import ENDED, FOLLOWING, HOLDING, WAITING


def grant(record, run="r", devices=("n0/0",)):
    return Grant(run, devices, 1.0, record.observed, "/nowhere")


def start(claims, name, run="r"):
    claims.claim(name, grant(claims.store.get(name), run), "tried")
    return claims.runs(name, Process(1, 1), "process 1")


def test_what_is_submitted_is_kept(store_url):
    store = open_store(store_url)
    store.submit([job("a", "echo", "ü", gpus=2, min_gpus=1, max_gpus=3, priority=2, user="ann")], "ann")
    store.close()
    again = open_store(store_url)
    record = again.get("a")
    assert (record.state, record.user, record.job.command, record.job.most) == ("queued", "ann", ("echo", "ü"), 3)
    assert [(event.who, event.before, event.state) for event in again.events("a")] == [("ann", "", "queued")]
    again.close()


def test_the_file_is_its_owners_alone(tmp_path, sqlite_store):
    sqlite_store.submit([job("a")], "me")
    for file in os.listdir(tmp_path):
        assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600


def test_submissions_are_all_or_nothing(store):
    store.submit([job("a")], "me")
    with pytest.raises(JobExists, match="'a' already"):
        store.submit([job("b"), job("a")], "me")
    with pytest.raises(NoSuchJob):
        store.get("b")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 10**12}, "gpus"),
        ({"gpus": 2, "min_gpus": 3}, "they must ascend"),
        ({"duration": -1}, "duration"),
        ({"duration": 1e300}, "duration"),
        ({"deadline": -1}, "deadline"),
        ({"arrival": 1e9}, "a year is the most"),
        ({"priority": 1e300}, "priority"),
        ({"type": "exploit"}, "type"),
        ({"type": "lm"}, "runs no command"),
        ({"command": []}, "no command"),
        ({"command": ["a\0b"]}, "zero byte"),
        ({"command": ["x" * 2**17]}, "bytes; at most"),
        ({"command": ["\ud800"]}, "not Unicode"),
        ({"command": "rm -rf"}, "command"),
        ({"env": {"PENSTOCK_WORKERS": "9"}}, "one of Penstock's"),
        ({"env": {"A=B": "1"}}, "not the name of a variable"),
        ({"directory": "somewhere"}, "relative"),
        ({"id": "../up"}, "id '../up'"),
        ({"id": ""}, "id ''"),
        ({"id": "x" * 65}, "1 to 64"),
        ({"retries": -1}, "retries"),
        ({"grace": 1e6}, "grace"),
        ({"colour": "red"}, "colour"),
        ({"user": "a\0b"}, "user has characters"),
        ({"after": ["a"]}, "after"),
    ],
)
def test_bad_jobs_are_refused_in_one_line(sqlite_store, words, says):
    with pytest.raises(InputError) as caught:
        sqlite_store.submit([read_submission({"id": "a", "command": ["true"]} | words)], "me")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sqlite_store.jobs() == []


def test_what_no_controller_could_run_is_refused(store):
    store.submit([job("before", gpus=50, kind="t4")], "me")  # nobody knows yet
    register(store, "c0", cluster(2))
    with pytest.raises(InputError, match="needs 3 workers; there are 2 devices"):
        store.submit([job("a", gpus=3)], "me")
    with pytest.raises(InputError, match="kind 't4' is not in the cluster"):
        store.submit([job("a", kind="t4")], "me")
    register(store, "c1", cluster(4, "t4"))
    store.submit([job("a", gpus=3)], "me")


def test_quotas(store):
    store.set_quotas({ANYBODY: Quota(jobs=2), "ann": Quota(jobs=3, devices=2)})
    store.submit([job("a", user="bob"), job("b", user="bob")], "bob")
    with pytest.raises(OverQuota, match="'bob' has 2 jobs and may have 2"):
        store.submit([job("c", user="bob")], "bob")
    with pytest.raises(OverQuota, match="needs 3 devices; user 'ann' may have 2"):
        store.submit([job("c", gpus=3, user="ann")], "ann")
    store.submit([job(name, user="ann") for name in "cde"], "ann")
    store.cancel("a", "bob")
    store.submit([job("f", user="bob")], "bob")
    assert [record.id for record in store.jobs(user="ann")] == ["c", "d", "e"]
    assert [record.id for record in store.jobs(states=("cancelled",))] == ["a"]
    assert [record.id for record in store.jobs(limit=2)] == ["e", "f"]


def test_cancelling(store):
    claims = register(store, "c0", cluster())
    store.submit([job("a"), job("b"), job("c")], "me")
    assert store.cancel("a", "me").state == "cancelled"
    assert store.cancel("a", "me").state == "cancelled"
    start(claims, "b")
    record = store.cancel("b", "me")
    assert (record.state, record.cancelling) == ("running", True)
    # What was to be cancelled never waits again, whatever its controller thinks.
    assert claims.leave("b", "suspended", "preempted").state == "cancelled"
    start(claims, "c")
    store.cancel("c", "me")
    claims.leave("c", "finished", "exit code 0")  # just before it could be told
    with pytest.raises(Ended, match="nothing to cancel"):
        store.cancel("c", "me")
    with pytest.raises(NoSuchJob):
        store.cancel("nobody", "me")


def test_an_older_lease_can_change_nothing(store, monkeypatch):
    old = register(store, "c0", cluster())
    with pytest.raises(InputError, match="has a controller 'c0' already"):
        register(store, "c0", cluster())
    store.submit([job("a"), job("b")], "me")
    start(old, "a")
    monkeypatch.setattr("training.queue.claims.is_alive", lambda process: False)
    new = register(store, "c0", cluster())
    for change in (old.renew, old.release, lambda: start(old, "b"), lambda: old.leave("a", "finished", "done")):
        with pytest.raises(LeaseLost):
            change()
    assert new.leave("a", "suspended", "seen gone").state == "suspended"


def test_a_job_is_one_controllers(store):
    one, other = register(store, "c0", cluster()), register(store, "c1", cluster())
    store.submit([job("a")], "me")
    start(one, "a")
    with pytest.raises(Stale):
        start(other, "a")
    with pytest.raises(Stale):
        other.leave("a", "suspended", "mine")
    assert other.free_lost() == []
    with store.database.write() as transaction:
        transaction.run("UPDATE controllers SET heartbeat = ? WHERE name = 'c0'", time.time() - 3600)
    assert [record.id for record in other.free_lost()] == ["a"]
    assert start(other, "a").controller == "c1"
    with pytest.raises(Stale):
        one.leave("a", "finished", "late")


def test_many_claim_at_once_and_one_gets_it(store_url, store):
    store.submit([job("a")], "me")
    stores = [open_store(store_url) for _ in range(6)]
    claims = [register(one, f"c{number}", cluster()) for number, one in enumerate(stores)]
    won, barrier = [], threading.Barrier(len(claims))

    def try_it(one):
        barrier.wait()
        with contextlib.suppress(Stale):
            won.append(one.claim("a", grant(one.store.get("a")), "tried").controller)

    threads = [threading.Thread(target=try_it, args=(one,)) for one in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in stores:
        one.close()
    assert won == [store.get("a").controller]


def test_many_submit_at_once(store_url, store):
    stores = [open_store(store_url) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def submit(number, one):
        barrier.wait()
        for count in range(10):
            one.submit([job(f"{number}-{count}")], str(number))

    threads = [threading.Thread(target=submit, args=(number, one)) for number, one in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in stores:
        one.close()
    assert [record.number for record in store.jobs()] == list(range(1, 41))
    assert store.news().changes == 40


def test_events_are_bounded(store, monkeypatch):
    monkeypatch.setattr("training.queue.store.MAX_EVENTS", 20)
    claims = register(store, "c0", cluster())
    store.submit([job("a")], "me")
    for _ in range(10):
        start(claims, "a")
        claims.leave("a", "suspended", "x" * 1000)
    events = store.events("a")
    assert len(events) == 20
    assert max(len(event.why) for event in events) == 300


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b""])
def test_other_files(tmp_path, content):
    path = tmp_path / "q.db"
    path.write_bytes(content)
    if content:
        with pytest.raises(InputError, match="cannot be opened"):
            open_store(f"sqlite:///{path}")
    else:
        open_store(f"sqlite:///{path}").close()


def test_another_version_is_refused(store_url, store):
    with store.database.write() as transaction:
        transaction.run("UPDATE facts SET value = 2 WHERE name = 'version'")
    with pytest.raises(InputError, match="version 2; this Penstock reads version 1"):
        open_store(store_url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x", "expected sqlite"),
        ("sqlite:///none/q.db", "cannot be opened"),
        ("sqlite:////", "cannot be opened"),
    ],
)
def test_other_stores_are_refused(tmp_path, monkeypatch, url, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        open_store(url)


def test_the_tables_refuse_what_cannot_be(tmp_path, sqlite_store):
    sqlite_store.submit([job("a")], "me")
    raw = sqlite3.connect(tmp_path / "q.db")
    for change in ("state = 'running'", "state = 'finished'", "state = 'odd'", "ended = 1", "cancelling = 1"):
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(f"UPDATE jobs SET {change}")
    raw.close()


def test_a_store_that_others_hold_for_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("training.queue.sqlite.BUSY_S", 0.1)
    store = open_store(f"sqlite:///{tmp_path}/q.db")
    other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.submit([job("a")], "me")
    assert store.jobs() == []  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    store.submit([job("a")], "me")
    store.close()


def test_a_connection_that_breaks_is_made_anew(postgres_url):
    import psycopg

    store = open_store(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(StoreError):
        store.submit([job("a")], "me")
    store.submit([job("a")], "me")
    assert [record.id for record in store.jobs()] == ["a"]
    store.close()


def test_a_postgres_that_is_not_there(tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(InputError) as caught:
        open_store(f"postgresql://me:secret@/db?host={tmp_path}")
    assert "cannot be opened" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


NAMES = st.sampled_from("abcd")


class AnyOrder(RuleBasedStateMachine):
    """Users and two controllers do anything in any order; the store is compared with a plain dictionary."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.open()
        self.claims = {name: register(self.store, name, cluster()) for name in ("c0", "c1")}
        self.model = {}
        self.known, self.changes = {}, 0

    def open(self):
        return open_store(f"sqlite:///{self.folder.name}/q.db")

    def teardown(self):
        self.store.close()
        self.folder.cleanup()

    @rule(name=NAMES)
    def submit(self, name):
        if name in self.model:
            with pytest.raises(JobExists):
                self.store.submit([job(name)], "me")
        else:
            self.store.submit([job(name)], "me")
            self.model[name] = ["queued", None, False]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.model)))
        state, owner, cancelling = self.model[name]
        if state in ("finished", "failed"):
            with pytest.raises(Ended):
                self.store.cancel(name, "me")
            return
        self.store.cancel(name, "me")
        if state in WAITING:
            self.model[name] = ["cancelled", None, cancelling]
        elif state in HOLDING:
            self.model[name] = [state, owner, True]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), who=st.sampled_from(["c0", "c1"]), state=st.sampled_from(sorted(FOLLOWING)))
    def change(self, data, who, state):
        name = data.draw(st.sampled_from(sorted(self.model)))
        before, owner, cancelling = self.model[name]
        claims = self.claims[who]
        is_right = owner in (None, who) and state in FOLLOWING[before]
        if state == "starting":
            is_right = is_right and not cancelling
            work = lambda: claims.claim(name, grant(self.store.get(name)), "tried")  # noqa: E731
        elif state == "running":
            work = lambda: claims.runs(name, Process(1, 1), "there")  # noqa: E731
        elif state == "queued":
            return
        else:
            work = lambda: claims.leave(name, state, "left")  # noqa: E731
        if not is_right:
            with pytest.raises(Stale):
                work()
            return
        work()
        if cancelling and state in WAITING:
            state = "cancelled"
        self.model[name] = [state, who if state in HOLDING else None, cancelling]

    @invariant()
    def is_as_expected(self):
        found = {record.id: record for record in self.store.jobs()}
        assert {name: [one.state, one.controller, one.cancelling] for name, one in found.items()} == self.model
        assert {record.id for record in self.store.live()} == {
            n for n, one in self.model.items() if one[0] not in ENDED
        }
        for name, record in found.items():
            events = self.store.events(name)
            assert events[-1].state == record.state
            for first, second in itertools.pairwise(events):
                assert second.before == first.state
                assert second.state == second.before or second.state in FOLLOWING[second.before]
            assert bool(record.devices) == (record.state in HOLDING)
        news = self.store.news(self.changes)
        self.known |= {record.id: record for record in news.jobs}
        self.changes = news.changes
        assert self.known == found
        assert self.store.news(self.changes).jobs == ()


AnyOrder.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.long
def test_any_order_on_postgres(postgres_url):
    from tests.training.queue.conftest import empty

    class OnPostgres(AnyOrder):
        def open(self):
            empty(postgres_url)
            return open_store(postgres_url)

    run_state_machine_as_test(OnPostgres, settings=AnyOrder.TestCase.settings)
