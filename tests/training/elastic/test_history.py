"""A job's history: each step once for all its workers, and once more where a later generation makes it again."""

import logging

import msgspec
import pytest

from training.elastic.history import History
from training.elastic.messages import Squared
from training.elastic.task import HISTORY


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path)
    yield made
    made.close()


def note(history, steps, generation, loss=2.0, workers=2):
    for step in steps:
        for _ in range(workers):
            history.note_step(step, loss, Squared(1.0, 1.0), generation, workers)


def lines(folder, what="step"):
    told = map(msgspec.json.decode, (folder / HISTORY).read_bytes().splitlines())
    return [one for one in told if one["what"] == what]


def test_what_all_workers_tell_of_one_step_is_one_line(history, tmp_path):
    note(history, range(1, 4), 1)
    note(history, range(4, 6), 2)
    history.note_step(3, 2.0, Squared(1.0, 1.0), 1, 2)  # late
    assert [one["step"] for one in lines(tmp_path)] == [1, 2, 3, 4, 5]
    assert not any("again" in one for one in lines(tmp_path))


def test_a_step_that_is_made_again_is_not_passed_over(history, tmp_path, caplog):
    note(history, range(1, 41), 1)
    with caplog.at_level(logging.INFO):
        note(history, range(11, 43), 2)
    assert [one["step"] for one in lines(tmp_path) if one.get("again")] == list(range(11, 41))
    assert [one["step"] for one in lines(tmp_path) if not one.get("again")] == list(range(1, 43))
    assert [one.message for one in caplog.records if "back" in one.message] == ["goes back from step 40 to 10"]
    assert history.step == 42


def test_workers_that_disagree_are_noted(history, tmp_path):
    note(history, [1], 1)
    note(history, [1], 2, loss=3.0, workers=1)
    assert [one["losses"] for one in lines(tmp_path, "disagree")] == [[2.0, 3.0]]
