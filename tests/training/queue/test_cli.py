"""The commands on a store: what they print, what they refuse; and on a server, over HTTP."""

import asyncio
import json

import pytest
import typer
from typer.testing import CliRunner

from placement.errors import InputError
from tests.training.queue.worlds import running, service, until
from training.cli import add_train_commands
from training.queue import open_store

STORE = ("--store", "sqlite:///q.db")


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    add_train_commands(app)
    app.callback()(lambda: None)

    def call(*arguments, where=STORE):
        return CliRunner().invoke(app, ["train", arguments[0], *where, *arguments[1:]])

    return call


def done(result):
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def data(result):
    return json.loads(done(result))["data"]


def run_all(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/q.db")

    async def run():
        async with running(service(store, tmp_path / "jobs")):
            await until(lambda: not store.live())

    asyncio.run(run())
    store.close()


def test_from_flags_to_logs(train, tmp_path):
    flags = ("--id", "a", "--gpus", "2", "--min-gpus", "1", "--priority", "3", "--duration", "1h", "--user", "ann")
    more = ("--retries", "1", "--grace", "3s", "--env", "WORD=hello world")
    assert done(train("submit", *flags, *more, "--", "sh", "-c", 'echo "$WORD"; pwd')) == "a\n"
    asked = json.loads(done(train("show", "a", "--json")))["asked"]
    assert (asked["gpus"], asked["min_gpus"], asked["duration"], asked["grace"], asked["user"]) == (
        2,
        1,
        3600,
        3,
        "ann",
    )
    run_all(tmp_path)
    assert done(train("logs", "a")) == f"hello world\n{tmp_path}\n"
    assert done(train("logs", "a", "-f")) == f"hello world\n{tmp_path}\n"
    log = json.loads(done(train("logs", "a", "--json")))
    assert (log["offset"], log["state"]) == (0, "finished")
    assert "finished: exit code 0" in done(train("show", "a"))
    assert "1-2" in done(train("list"))


def test_many_from_a_csv(train, tmp_path):
    (tmp_path / "jobs.csv").write_text("id,arrival,duration,gpus,user\n1,0,5,1,ann\n2,0.1,5,2,\n")
    made = data(train("submit", "--jobs", "jobs.csv", "--user", "bob", "--json", "--", "true"))
    assert [(one["id"], one["user"], one["workers"]) for one in made] == [("1", "ann", [1, 1]), ("2", "bob", [2, 2])]
    run_all(tmp_path)
    assert [one["state"] for one in data(train("list", "--json"))] == ["finished", "finished"]
    assert [one["id"] for one in data(train("list", "--json", "--user", "ann"))] == ["1"]
    assert data(train("list", "--json", "--state", "failed")) == []


def test_many_from_yaml(train, tmp_path):
    (tmp_path / "sub").mkdir()
    text = "jobs:\n  - {id: a, command: [pwd], directory: sub}\n  - {id: b, command: [pwd], grace: 1s}\n"
    (tmp_path / "sub" / "jobs.yaml").write_text(text.replace("directory: sub", "directory: ."))
    assert done(train("submit", "--jobs", "sub/jobs.yaml")) == "a\nb\n"
    for name in "ab":
        asked = json.loads(done(train("show", name, "--json")))["asked"]
        assert asked["directory"] == str(tmp_path / "sub")
    assert done(train("cancel", "a", "b")) == "a cancelled\nb cancelled\n"
    assert [one["state"] for one in data(train("cancel", "a", "--json"))] == ["cancelled"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("submit",), "nothing to run; give a command behind two dashes"),
        (("submit", "--gpus", "0", "--", "x"), "gpus"),
        (("submit", "--gpus", "1", "--min-gpus", "2", "--", "x"), "they must ascend"),
        (("submit", "--duration", "soon", "--", "x"), "duration: expected a time"),
        (("submit", "--type", "odd", "--", "x"), "type"),
        (("submit", "--type", "lm", "--", "x"), "runs no command"),
        (("submit", "--env", "A", "--", "x"), "expected NAME=VALUE"),
        (("submit", "--jobs", "none.csv", "--", "x"), "cannot be read"),
        (("submit", "--jobs", "bad.yaml"), "bad.yaml: jobs[1]: gpus"),
        (("submit", "--jobs", "twice.yaml"), "two jobs have the id 'a'"),
        (("submit", "--jobs", "self.yaml"), "a value holds itself"),
        (("submit", "--jobs", "bad.yaml", "--gpus", "2"), "--gpus and --jobs"),
        (("list", "--state", "odd"), "no such state"),
        (("list", "--url", "http://127.0.0.1:1"), "give one of the two"),
        (("show", "nobody"), "no job 'nobody'"),
        (("cancel", "nobody"), "no job 'nobody'"),
        (("logs", "nobody"), "no job 'nobody'"),
        (("logs", "nobody", "-f", "--json"), "give one of the two"),
    ],
)
def test_what_is_wrong_is_one_line(train, tmp_path, arguments, says):
    (tmp_path / "bad.yaml").write_text("jobs: [{command: [x]}, {command: [x], gpus: 0}]")
    (tmp_path / "twice.yaml").write_text("jobs: [{id: a, command: [x]}, {id: a, command: [x]}]")
    (tmp_path / "self.yaml").write_text("jobs: [{id: a, type: lm, lm: &b {x: *b}}]")
    open_store(f"sqlite:///{tmp_path}/q.db").close()
    result = train(*arguments)
    assert isinstance(result.exception, InputError), result.exception
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)
    assert data(train("list", "--json")) == []


def test_a_store_that_is_not_there(train, tmp_path):
    result = train("list")
    assert "there is no such file" in str(result.exception)
    assert not (tmp_path / "q.db").exists()


def test_a_server_that_is_not_there(train):
    result = train("list", where=("--url", "http://127.0.0.1:9"))
    assert "no Penstock answers there" in str(result.exception)


def test_prune_forgets_what_ended_and_nothing_else(train, tmp_path):
    for name in ("old", "held"):
        done(train("submit", "--id", name, "--", "true"))
    run_all(tmp_path)
    done(train("submit", "--id", "waits", "--", "true"))
    folder = tmp_path / "jobs"
    assert "0 jobs" in done(train("prune"))
    (folder / "held").rename(folder / "moved")  # as after a crash between the folder and the row
    assert json.loads(done(train("prune", "--days", "0", "--json")))["data"] == ["old", "held"]
    assert [job["id"] for job in data(train("list", "--json"))] == ["waits"]
    assert not (folder / "old").exists()
    with pytest.raises(InputError, match="no job 'old'"):
        raise train("show", "old").exception
    done(train("submit", "--id", "old", "--", "true"))


def test_prune_keeps_a_job_whose_folder_stays(train, tmp_path, monkeypatch):
    done(train("submit", "--id", "a", "--", "true"))
    run_all(tmp_path)

    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(InputError, match="cannot be removed: permission denied; the job is kept"):
        raise train("prune", "--days", "0").exception
    assert [job["id"] for job in data(train("list", "--json"))] == ["a"]
