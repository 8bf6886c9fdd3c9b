"""How far a job is, from a history of any length."""

import msgspec
import pytest

from training.elastic.progress import POINTS, read_curve, read_progress
from training.elastic.task import HISTORY


def write(folder, steps, workers=1, first=0):
    with open(folder / HISTORY, "ab") as file:
        for step in range(first, first + steps):
            line = {"what": "step", "at": 1000 + step / 10, "step": step, "loss": 5 / (1 + step), "workers": workers}
            file.write(msgspec.json.encode(line | {"squared": [1.0, 2.0], "generation": 1}) + b"\n")
        file.write(msgspec.json.encode({"what": "goes on", "at": 1.0, "workers": ["a"]}) + b"\n")


def test_nothing_before_the_first_step(tmp_path):
    assert read_progress(tmp_path) is None
    assert read_curve(tmp_path).step == []
    (tmp_path / HISTORY).write_bytes(b'{"what":"ready","at":1}\n')
    assert read_progress(tmp_path) is None


@pytest.mark.parametrize("steps", [1, 10, 5000])
def test_the_last_step_its_pace_and_the_whole_curve(tmp_path, steps):
    write(tmp_path, steps)
    write(tmp_path, 1, workers=2, first=steps)
    with open(tmp_path / HISTORY, "ab") as file:
        file.write(b'{"what":"step","at":99')  # it is being written
    found = read_progress(tmp_path)
    assert (found.step, found.workers) == (steps, 2)
    assert found.per_s == pytest.approx(10)
    curve = read_curve(tmp_path)
    assert curve.step[0] == 0
    assert curve.step == sorted(set(curve.step))
    assert len(curve.step) <= 2 * POINTS
    assert curve.step[-1] >= steps * 0.98
    assert all(loss == 5 / (1 + step) for step, loss in zip(curve.step, curve.loss, strict=True))


def test_steps_that_are_made_again_are_progress_but_no_second_point(tmp_path):
    write(tmp_path, 100)
    with open(tmp_path / HISTORY, "ab") as file:
        for step in range(80, 90):
            line = {"what": "step", "at": 1100 + step / 5, "step": step, "loss": 5 / (1 + step), "workers": 1}
            file.write(msgspec.json.encode(line | {"again": True}) + b"\n")
    found = read_progress(tmp_path)
    assert found.step == 89
    assert found.per_s == pytest.approx(5)
    curve = read_curve(tmp_path)
    assert curve.step == list(range(100))
    assert curve.at == sorted(curve.at)


def test_a_history_of_a_million_steps_is_read_in_a_moment(tmp_path):
    line = {"what": "step", "at": 1000.0, "step": 0, "loss": 1.0, "workers": 1, "squared": [1.0, 2.0]}
    with open(tmp_path / HISTORY, "wb") as file:
        for step in range(200_000):
            file.write(msgspec.json.encode(line | {"step": step, "at": 1000.0 + step}) + b"\n")
    curve = read_curve(tmp_path)
    assert len(curve.step) == POINTS
    assert curve.step[-1] > 199_000
