"""Loads from files of every kind, and one line for what is wrong with them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from moe.loads import read_loads
from placement.errors import InputError

LOAD = np.array([[3.0, 1.0, 2.0], [1.0, 5.0, 0.0]])


def test_every_kind_says_the_same(tmp_path):
    np.savez(tmp_path / "a.npz", load=LOAD)
    np.save(tmp_path / "b.npy", LOAD)
    (tmp_path / "c.json").write_text(json.dumps({"version": 1, "load": LOAD.tolist()}))
    (tmp_path / "d.json").write_text(json.dumps(LOAD.tolist()))
    (tmp_path / "e.csv").write_text("3,1,2\n1,5,0\n")
    for path in sorted(tmp_path.iterdir()):
        assert read_loads(path).load.tolist() == LOAD.tolist(), path
        assert read_loads(path).history is None


def test_batches_are_a_history_with_their_mean_as_the_load(tmp_path):
    np.save(tmp_path / "a.npy", np.stack([LOAD, 3 * LOAD]))
    read = read_loads(tmp_path / "a.npy")
    assert read.load.tolist() == (2 * LOAD).tolist()
    assert read.history is not None
    assert read.history.shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "loads are .npz"),
        ("a.npz", b"no zip", "not a readable .npz"),
        ("a.npy", b"\x93NUMPY", "not a readable .npy"),
        ("a.json", b"{", "not a readable .json"),
        ("a.json", b"[[1,2],[3]]", "not a readable .json"),
        ("a.json", b'{"load": [[1,2],[3]]}', "rows of different lengths"),
        ("a.json", b'{"load": [["x"]]}', "expected numbers"),
        ("a.json", b'{"loads": [[1]]}', "has no `load`"),
        ("a.json", b'{"version": 2, "load": [[1]]}', "version 2"),
        ("a.json", b'{"load": [[-1]]}', "negative"),
        ("a.json", b'{"load": [[1e300]]}', "above 1e"),
        ("a.json", b'{"load": [1, 2]}', r"\[layers, experts\]"),
        ("a.json", b'{"load": [[1]], "history": [[[1, 2]]]}', "must agree"),
        ("a.csv", b"1,x\n", "not a readable .csv"),
        ("a.csv", b"", "expected"),
        ("a.csv", b"nan,1\n", "not numbers"),
    ],
)
def test_one_line_for_what_is_wrong(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_loads(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_pickles_are_not_opened(tmp_path):
    np.savez(tmp_path / "a.npz", load=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="not a readable"):
        read_loads(tmp_path / "a.npz")
