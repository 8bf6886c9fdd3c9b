"""The page and its stream over a real server: who may look, what comes, and that nobody holds the server up."""

import asyncio
import gzip
import http.client
import json
import threading
import time

import pytest

from router.statistics import Statistics
from serving.dashboard import Dashboard, viewers
from serving.dashboard.files import POLICY
from serving.http import Keys
from tests.serving.dashboard.worlds import Told
from tests.serving.http.doubles import running

ADMIN = {"authorization": "Bearer key-of-the-admin"}


@pytest.fixture
def shown(request):
    """A server with a dashboard that ticks."""
    keys = getattr(request, "param", Keys(may_anybody_look=True))
    source = Told(("chat", "plain", "embed", "classify"))

    board = Dashboard(source, Statistics())
    with running(keys=keys, pages=board.routes) as server:
        task = server.run(start(board))
        yield server, board, source
        server.run(stop(board, task))


async def start(board):
    return asyncio.create_task(board.viewers.run())


async def stop(board, task):
    board.viewers.close()
    task.cancel()


def get(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def stream(server, **headers):
    """Events as they come: (name, data)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/dashboard/stream", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    name = ""
    try:
        for line in answer:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
    finally:
        connection.close()


def test_the_page_its_files_and_nothing_else(shown):
    server, _, _ = shown
    answer, body = get(server, "/")
    assert answer.status == 200
    assert answer.headers["content-security-policy"] == POLICY.decode()
    assert b"<title>Penstock</title>" in body
    for name, kind in (("app.js", "text/javascript"), ("style.css", "text/css"), ("plotly.js", "text/javascript")):
        answer, body = get(server, f"/dashboard/{name}", **{"accept-encoding": "gzip"})
        assert answer.headers["content-type"].startswith(kind)
        plain = gzip.decompress(body)
        assert b"http://" not in plain or name == "plotly.js"  # nothing is loaded from elsewhere
        again, body = get(server, f"/dashboard/{name}", **{"if-none-match": answer.headers["etag"]})
        assert (again.status, body) == (304, b"")
    for path in ("/dashboard/../app.py", "/dashboard/%2e%2e/routes.py", "/dashboard/routes.py", "/dashboard/"):
        assert get(server, path)[0].status == 404


def test_history_comes_first_and_then_what_is_so(shown, monkeypatch):
    monkeypatch.setattr(viewers, "EVERY_S", 0.1)
    server, _, source = shown
    events = stream(server)
    name, history = next(events)
    assert name == "history"
    assert {"bins", "changes", "marks", "now"} <= set(history)
    assert history["now"]["jobs"] == [{"id": "lesson"}]
    source.held["n/1"] = source.held["n/1"]._replace(kind="job", name="lesson")
    for name, frame in events:
        assert name == "now"
        if frame["changes"]:
            break
    assert frame["changes"][-1][1:] == ["n/1", "job", "lesson"]
    assert frame["now"]["devices"][1]["owner"] == "lesson"
    assert get(server, "/dashboard/jobs/none")[0].status == 404
    assert json.loads(get(server, "/dashboard/explain/plan")[1]) == {"kind": "plan"}


KEYS = Keys({"key-of-anna": "anna"}, "key-of-the-admin")


@pytest.mark.parametrize("shown", [KEYS, Keys(admin="key-of-the-admin")], indirect=True)
def test_with_keys_only_the_admin_looks(shown):
    server, _, _ = shown
    assert get(server, "/")[0].status == 200  # the empty page asks for the key
    for path in ("snapshot", "stream", "jobs/lesson", "experts", "explain/plan"):
        assert get(server, f"/dashboard/{path}")[0].status == 401
        assert get(server, f"/dashboard/{path}", authorization="Bearer key-of-anna")[0].status == 403
    assert next(stream(server, **ADMIN))[0] == "history"
    assert get(server, "/dashboard/snapshot", **ADMIN)[0].status == 200


def test_a_page_of_another_name_cannot_look(shown):
    server, _, _ = shown
    assert get(server, "/dashboard/snapshot", host="evil.example")[0].status == 403


def test_viewers_are_counted_bounded_and_let_go(shown, monkeypatch):
    monkeypatch.setattr(viewers, "EVERY_S", 0.1)
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 3)
    server, board, _ = shown
    open_ones = [stream(server) for _ in range(3)]
    for one in open_ones:
        next(one)
    answer, _ = get(server, "/dashboard/stream")
    assert answer.status == 503
    open_ones.pop().close()
    server.wait_until(lambda: board.viewers._open == 2)
    ended = []
    threads = [threading.Thread(target=lambda one=one: ended.append(len(list(one)))) for one in open_ones]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    board_closed(server, board)
    for thread in threads:
        thread.join(5)
    assert len(ended) == 2
    assert time.monotonic() - began < 3


def board_closed(server, board):
    async def close():
        board.viewers.close()

    server.run(close())


def test_an_error_of_the_source_is_told_and_does_not_end_it(shown, monkeypatch):
    monkeypatch.setattr(viewers, "EVERY_S", 0.05)
    server, _, source = shown
    held = source.holders

    def broken():
        raise RuntimeError("not now")

    monkeypatch.setattr(source, "holders", broken)
    time.sleep(0.3)
    monkeypatch.setattr(source, "holders", held)
    events = stream(server)
    assert [next(events)[0] for _ in range(3)] == ["history", "now", "now"]
