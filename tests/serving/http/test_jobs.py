"""/v1/jobs: what it answers, who may do what, and that its errors have the shape of all errors."""

import json

import pytest
import schemathesis

from placement.cluster import Cluster, Node
from placement.units import Bytes
from serving.http import Keys
from serving.http.job_desk import JobDesk
from tests.serving.http.doubles import TENANTS, running
from tests.serving.http.raw import ask
from tests.serving.http.test_openapi import check_operation
from training.queue import ANYBODY, Quota, Submission, open_store
from training.queue.claims import Grant, register

ADMIN = [("Authorization", "Bearer key-of-the-admin")]
ANNA = [("Authorization", "Bearer key-of-anna")]
BERT = [("Authorization", "Bearer key-of-bert")]
COMMAND = {"id": "run", "command": ["true"]}
MODEL = {"id": "model", "type": "lm", "lm": {"steps": 3}}
BOTH = frozenset({"lm", "command"})


@pytest.fixture
def store(tmp_path):
    opened = open_store(f"sqlite:///{tmp_path}/q.db")
    yield opened
    opened.close()


def code(answer, status):
    assert answer.status == status, answer.body
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error["code"]


def test_a_jobs_life(store, tmp_path):
    woken = []
    desk = JobDesk(store, BOTH, lambda: woken.append(1))
    with running(keys=Keys(None, "key-of-the-admin"), jobs=desk) as server:
        made = ask(server, "POST", "/v1/jobs", COMMAND | {"gpus": 2, "min_gpus": 1, "duration": "2h"}, ADMIN)
        assert made.status == 200
        assert [(one["id"], one["state"], one["workers"]) for one in made.json()["data"]] == [("run", "queued", [1, 2])]
        listed = ask(server, "GET", "/v1/jobs?state=queued&limit=5", None, ADMIN).json()
        assert (listed["object"], [one["id"] for one in listed["data"]]) == ("list", ["run"])
        claims = register(store, "c", Cluster((Node("n0", 2, Bytes(1)),)))
        (tmp_path / "run" / "log").mkdir(parents=True)
        (tmp_path / "run" / "log" / f"{100:016d}").write_bytes(b"hello\n\xff")
        claims.claim("run", Grant("r", ("n0/0",), 1.0, store.get("run").observed, str(tmp_path / "run")), "tried")
        shown = ask(server, "GET", "/v1/jobs/run", None, ADMIN).json()
        assert (shown["state"], shown["devices"], shown["asked"]["duration"]) == ("starting", ["n0/0"], 7200)
        assert [event["state"] for event in shown["events"]] == ["queued", "starting"]
        log = ask(server, "GET", "/v1/jobs/run/logs", None, ADMIN).json()
        assert (log["data"], log["offset"], log["next_offset"]) == ("hello\n\ufffd", 100, 107)
        assert ask(server, "GET", "/v1/jobs/run/logs?offset=105", None, ADMIN).json()["offset"] == 105
        assert ask(server, "GET", "/v1/jobs/run/logs?offset=-2", None, ADMIN).json()["data"] == "\n\ufffd"
        assert ask(server, "DELETE", "/v1/jobs/run", None, ADMIN).json()["state"] == "cancelling"
        assert store.get("run").cancelling
        claims.leave("run", "finished", "done")
        assert code(ask(server, "DELETE", "/v1/jobs/run", None, ADMIN), 409) == "ended"
        assert len(woken) == 2


def test_without_a_queue_there_is_nothing():
    with running() as server:
        assert code(ask(server, "GET", "/v1/jobs"), 404) == "not_found"


def test_commands_need_the_admin_key_and_the_configuration(store):
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        assert code(ask(server, "POST", "/v1/jobs", COMMAND), 401) == "invalid_api_key"
        assert code(ask(server, "POST", "/v1/jobs", COMMAND, ANNA), 403) == "not_admin"
        assert code(ask(server, "POST", "/v1/jobs", {"jobs": [MODEL, COMMAND]}, ANNA), 403) == "not_admin"
    with running(jobs=JobDesk(store, BOTH), keys=Keys(None, "key-of-the-admin")) as server:
        assert code(ask(server, "POST", "/v1/jobs", COMMAND), 401) == "invalid_api_key"
        assert code(ask(server, "POST", "/v1/jobs", COMMAND, BERT), 403) == "not_admin"
    with running(keys=TENANTS, jobs=JobDesk(store, frozenset())) as server:
        assert code(ask(server, "POST", "/v1/jobs", COMMAND, ADMIN), 403) == "commands_off"
        assert code(ask(server, "POST", "/v1/jobs", MODEL, ADMIN), 400) == "unknown_type"
    assert store.jobs() == []


def test_a_page_elsewhere_cannot_submit(store):
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        page = [*ADMIN, ("Origin", "http://evil.example")]
        assert code(ask(server, "POST", "/v1/jobs", COMMAND, page), 403) == "origin"
        assert code(ask(server, "DELETE", "/v1/jobs/run", None, page), 403) == "origin"
        assert code(ask(server, "GET", "/v1/jobs", None, ADMIN, host="evil.example"), 403) == "host"
    assert store.jobs() == []


def test_tenants_have_their_own(store):
    store.submit([Submission(id="run", command=("true",), user="root")], "admin")
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        assert ask(server, "POST", "/v1/jobs", MODEL, ANNA).json()["data"][0]["user"] == "anna"
        assert code(ask(server, "POST", "/v1/jobs", {"type": "lm", "user": "bert"}, ANNA), 403) == "not_yours"
        for key, seen in ((ANNA, ["model"]), (BERT, []), (ADMIN, ["run", "model"])):
            answer = ask(server, "GET", "/v1/jobs?user=root" if key is ANNA else "/v1/jobs", None, key)
            assert [one["id"] for one in answer.json()["data"]] == seen
        for path in ("/v1/jobs/model", "/v1/jobs/model/logs"):
            assert code(ask(server, "GET", path, None, BERT), 404) == "no_such_job"
            assert ask(server, "GET", path, None, ANNA).status == 200
        assert code(ask(server, "DELETE", "/v1/jobs/model", None, BERT), 404) == "no_such_job"
        assert ask(server, "DELETE", "/v1/jobs/model", None, ANNA).json()["state"] == "cancelled"
    assert store.events("model")[-1].who == "anna"


def test_without_keys_commands_are_hidden(store):
    store.submit([Submission(id="run", command=("true",))], "admin")
    with running(jobs=JobDesk(store, BOTH), keys=Keys(None, "key-of-the-admin")) as server:
        assert ask(server, "POST", "/v1/jobs", MODEL | {"user": "me"}).json()["data"][0]["user"] == "me"
        assert [one["id"] for one in ask(server, "GET", "/v1/jobs").json()["data"]] == ["model"]
        assert code(ask(server, "DELETE", "/v1/jobs/run"), 404) == "no_such_job"
        assert ask(server, "GET", "/v1/jobs/run", None, ADMIN).status == 200
        assert ask(server, "DELETE", "/v1/jobs/model").status == 200


@pytest.mark.parametrize(
    ("words", "param"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 2, "min_gpus": 3}, None),
        ({"duration": -5}, "duration"),
        ({"priority": 1e300}, "priority"),
        ({"command": []}, None),
        ({"id": "a/b"}, None),
        ({"colour": 1}, None),
        ({"jobs": 3}, None),
    ],
)
def test_bad_jobs(store, words, param):
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        answer = ask(server, "POST", "/v1/jobs", COMMAND | words, ADMIN)
        assert code(answer, 400) == "invalid_request"
        assert answer.json()["error"]["param"] == param
        assert code(ask(server, "POST", "/v1/jobs", {"jobs": []}, ADMIN), 400) == "invalid_request"
    assert store.jobs() == []


def test_conflicts_quotas_and_queries(store):
    store.set_quotas({ANYBODY: Quota(jobs=1)})
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        ask(server, "POST", "/v1/jobs", COMMAND | {"user": "a"}, ADMIN)
        assert code(ask(server, "POST", "/v1/jobs", COMMAND | {"user": "b"}, ADMIN), 409) == "exists"
        assert code(ask(server, "POST", "/v1/jobs", COMMAND | {"id": "x", "user": "a"}, ADMIN), 429) == "quota"
        for query in ("state=odd", "limit=0", "limit=1001", "limit=x", "limit=99999999999999999999999"):
            assert code(ask(server, "GET", f"/v1/jobs?{query}", None, ADMIN), 400) == "invalid_request"
        assert code(ask(server, "GET", "/v1/jobs/run/logs?offset=x", None, ADMIN), 400) == "invalid_request"
        assert code(ask(server, "GET", "/v1/jobs/nobody", None, ADMIN), 404) == "no_such_job"


def test_a_store_that_fails_is_told(store):
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        with store.database.write() as transaction:
            transaction.run("DROP TABLE events")
        assert code(ask(server, "POST", "/v1/jobs", COMMAND, ADMIN), 503) == "store"


def test_the_openapi_page_is_true_of_jobs(store):
    store.submit([Submission(id="0", type="lm", user="anna")], "anna")
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        jobs = [operation for operation in operations if operation.path.startswith("/v1/jobs")]
        assert len(jobs) == 5
        for operation in jobs:
            check_operation(operation, 8)


def test_bodies_of_any_kind(store):
    with running(keys=TENANTS, jobs=JobDesk(store, BOTH)) as server:
        for body in (
            [],
            "x",
            3,
            None,
            {"jobs": [3]},
            {"jobs": [None, {}]},
            {"lm": {"a": [[[]]]}, "type": "lm", "id": 4},
        ):
            answer = ask(server, "POST", "/v1/jobs", body, ADMIN)
            assert answer.status in (400, 415), (body, json.loads(answer.body))
