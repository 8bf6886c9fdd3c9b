"""Loans of a real server: a device trains while nobody asks, and is back when somebody does; what it trained serves."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.harness.server import is_alive
from placement.capacity import Rung, with_rungs
from placement.cli.admin import ask_admin
from placement.plan import Group, Plan, write_plan
from serving.cli import run
from tests.e2e.server import CACHE_BYTES, Server, write_config
from training.elastic.door import ask
from training.queue import open_store
from training.queue.submission import Submission


@pytest.fixture
def config(tiny_models, tmp_path):
    """The second device can be lent while next to nothing is asked for."""
    text = "It is what it is, and it was what it was.\n" * 400
    (tmp_path / "text.txt").write_text(text)
    training = {"store": "sqlite:///queue.db", "data": ["text.txt"], "loans": {"minimum": "2s"}}
    path = write_config(tmp_path, tiny_models, training=training)
    groups = tuple(Group((f"local/{n}",), 1, 1, ("chat", "embed"), {"chat": CACHE_BYTES}) for n in range(2))
    plan = with_rungs(Plan(groups, ((1,),)), (Rung((), 100.0), Rung((1,), 0.2)))
    write_plan(tmp_path / "plan.json", plan)
    return path


def job(config, tiny_models, steps, **more):
    lm = {"model": str(tiny_models / "chat"), "data": str(config.parent / "text.txt"), "steps": steps, "context": 32}
    return Submission(id="lesson", type="lm", max_gpus=2, lm=lm | {"batch": 4, "pace": 0.05} | more)


def owner(server, device="local/1"):
    return server.status()["devices"][device]


def steps_made(store):
    record = store.get("lesson")
    try:
        return ask(Path(record.folder), record.run).step
    except (OSError, TypeError):  # it has not begun
        return 0


def burst(server, count=24):
    with ThreadPoolExecutor(8) as pool:
        return [status for status, _, _ in pool.map(lambda _: server.embed(), range(count))]


def test_a_device_is_lent_and_comes_back_and_what_was_trained_serves(config, tiny_models, capsys):
    store = open_store(f"sqlite:///{config.parent}/queue.db")
    with Server(config) as server:
        store.submit([job(config, tiny_models, 100, serve_as="chat")], "me")
        server.wait_until(lambda: owner(server) == "job lesson")
        server.wait_until(lambda: steps_made(store) > 2)
        before = server.complete(16)[1]["choices"][0]["text"]
        assert set(burst(server)) == {200}
        server.wait_until(lambda: owner(server) == "group g1", 10)
        server.wait_until(lambda: owner(server) == "job lesson")
        assert run(["explain", "loans", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert "rung 0 to 1" in shown
        assert "rung 1 to 0" in shown
        decisions = ask_admin(server.url, "/admin/explain/loans")["decisions"]
        took_s = [took for one in decisions for took in one.get("returned_s", {}).values()]
        assert took_s
        assert max(took_s) < 5
        server.wait_until(lambda: store.get("lesson").state == "finished")
        moves = lambda: ask_admin(server.url, "/admin/explain/moves")["moves"]  # noqa: E731
        server.wait_until(lambda: any(one["what"] == "replaced" and one.get("model") == "chat" for one in moves()))
        server.wait_until(lambda: server.complete(16)[1]["choices"][0]["text"] != before)
        after = server.complete(16)[1]["choices"][0]["text"]
        server.wait_until(lambda: owner(server) in ("idle", "group g1"))
    with Server(config) as server:
        assert server.complete(16)[1]["choices"][0]["text"] == after
    assert any("waits in memory" in event.why for event in store.events("lesson"))
    store.close()


def test_a_server_that_dies_while_a_device_is_lent(config, tiny_models):
    store = open_store(f"sqlite:///{config.parent}/queue.db")
    with Server(config) as server:
        store.submit([job(config, tiny_models, 10**6)], "me")
        server.wait_until(lambda: owner(server) == "job lesson")
        server.wait_until(lambda: steps_made(store) > 2)
        record = store.get("lesson")
        workers = ask(Path(record.folder), record.run).workers
        assert server.stop(signal.SIGKILL) != 0
    with Server(config) as server:
        assert server.complete()[0] == 200
        server.wait_until(lambda: owner(server) == "job lesson")
        server.wait_until(lambda: steps_made(store) > 2)
        assert owner(server, "local/0") == "group g0"
        again = ask(Path(store.get("lesson").folder), store.get("lesson").run).workers
        alive = [pid for pid in {*workers.values(), *again.values()} if is_alive(pid)]
        assert sorted(alive) == sorted(again.values())
        assert set(burst(server)) == {200}
        server.wait_until(lambda: owner(server) == "group g1", 10)
    assert not [pid for pid in again.values() if is_alive(pid)]
    assert store.get("lesson").state == "suspended"
    store.close()
