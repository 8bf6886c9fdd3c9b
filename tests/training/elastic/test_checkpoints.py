"""Checkpoints that are torn, changed or of another kind are never loaded, and never stand in the way of older ones."""

import os

import pytest
import torch

from placement.errors import InputError
from training.elastic.checkpoint_names import names_in, newest_step
from training.elastic.checkpoints import Checkpoints
from training.elastic.state import State, pack, unpack


def state(step):
    return State(step, {"model.a": torch.full((3, 2), float(step)), "optimizer.step.a": torch.tensor(float(step))})


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "checkpoint", keep=3)
    for step in range(1, 6):
        made.write(step, pack(state(step)))
    return made


def newest(checkpoints):
    return max(checkpoints.folder.iterdir())


def test_the_last_few_are_kept(checkpoints):
    assert [path.name[:15] for path in sorted(checkpoints.folder.iterdir())] == [f"step-{n:010d}" for n in (3, 4, 5)]
    found = checkpoints.latest()
    assert found.step == 5
    assert checkpoints.torn() == []
    assert torch.equal(found.tensors["model.a"], state(5).tensors["model.a"])


def test_those_of_a_job_that_went_back_replace_none_that_are_newer(checkpoints):
    checkpoints.write(1, pack(state(1)))
    checkpoints.write(2, pack(state(2)))
    assert [name.step for name in names_in(checkpoints.folder)] == [5, 4, 3, 2, 1]
    assert checkpoints.latest().step == newest_step(checkpoints.folder) == 5
    checkpoints.write(6, pack(state(6)))
    assert [name.step for name in names_in(checkpoints.folder)] == [6, 5, 4]


def test_only_those_that_are_newer_than_what_is_known_are_read(checkpoints, caplog):
    os.truncate(newest(checkpoints), 100)
    assert checkpoints.latest(beyond=3).step == 4
    assert checkpoints.latest(beyond=4) is None
    assert checkpoints.latest(beyond=5) is None
    assert len(caplog.records) == 2  # the torn one was looked at where it could have been of use
    assert newest_step(checkpoints.folder / "none") == -1


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_torn_one_is_passed_over(checkpoints, share, caplog):
    path = newest(checkpoints)
    os.truncate(path, int(share * path.stat().st_size))
    assert checkpoints.latest().step == 4
    assert "is passed over" in caplog.text
    assert checkpoints.torn() == [path.name]


def test_a_changed_bit_is_noticed(checkpoints):
    path = newest(checkpoints)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert checkpoints.latest().step == 4


def test_none_is_whole(checkpoints):
    for path in checkpoints.folder.iterdir():
        path.write_bytes(b"")
    assert checkpoints.latest() is None
    assert Checkpoints(checkpoints.folder / "none", 1).latest() is None


def test_what_was_half_written_has_no_name(checkpoints, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.write(6, pack(state(6)))
    assert len(list(checkpoints.folder.iterdir())) == 3
    (checkpoints.folder / ".writing-abc").write_bytes(b"half")
    assert checkpoints.latest().step == 5
    checkpoints.sweep()
    assert len(list(checkpoints.folder.iterdir())) == 3


@pytest.mark.parametrize("data", [b"", b"x" * 100, pack(state(1))[:40], b"\x02" + bytes(7) + b"{}"])
def test_what_is_no_state_is_refused_in_one_line(data):
    with pytest.raises(InputError) as refused:
        unpack(data)
    assert "\n" not in str(refused.value)


def test_a_state_of_a_later_version_is_refused():
    with pytest.raises(InputError, match="version 9"):
        unpack(pack(state(1)).replace(b'"version":"1"', b'"version":"9"'))
