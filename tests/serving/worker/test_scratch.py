"""Folders that go with the process that made them, however it ends."""

import signal
import subprocess
import sys
import tempfile

import pytest

from serving.worker.scratch import PREFIX, Scratch
from tests.serving.worker.words import ROOT

MAKER = """
import time
from serving.worker.scratch import Scratch
print(Scratch().path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_is_there_until_it_is_removed(folder):
    with Scratch() as one:
        (one / "inside").touch()
        other = Scratch()
        assert names(folder) == sorted([one.name, other.path.name])
    assert names(folder) == [other.path.name]
    other.remove()
    other.remove()
    assert names(folder) == []


def test_what_a_killed_process_left_goes_with_the_next(folder):
    (folder / "penstock-other").mkdir()
    command = [sys.executable, "-c", MAKER]
    with subprocess.Popen(command, cwd=ROOT, env={"TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True) as maker:
        made = maker.stdout.readline().strip()
        Scratch().remove()
        assert names(folder) == sorted([made.rpartition("/")[2], "penstock-other"])
        maker.send_signal(signal.SIGKILL)
    scratch = Scratch()
    assert names(folder) == sorted([scratch.path.name, "penstock-other"])
    scratch.remove()


def test_what_cannot_be_locked_is_left_alone(folder):
    (folder / f"{PREFIX}file").write_text("no folder")
    (folder / f"{PREFIX}link").symlink_to(folder)
    Scratch().remove()
    assert names(folder) == [f"{PREFIX}file", f"{PREFIX}link"]
