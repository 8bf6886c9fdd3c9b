"""The admin key that a server makes for itself lies on disk as long as the server lives, and no longer."""

import os
import stat
import subprocess
import sys

import pytest

from placement.cli.admin import key_file
from serving.controller.admin_key import keep_key

KEEPS = """
import sys
from serving.controller.admin_key import keep_key
with keep_key(int(sys.argv[1]), "theirs"):
    print("kept", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))


@pytest.fixture
def other_server():
    """Another process that keeps a key for port 7001."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", KEEPS, "7001"], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"kept\n"
        yield process
        process.kill()


def test_a_key_is_there_while_the_server_runs_for_this_user_alone():
    with keep_key(7000, "ours"):
        assert key_file(7000).read_text() == "ours"
        assert stat.S_IMODE(key_file(7000).stat().st_mode) == 0o600
        assert [path.name for path in key_file(7000).parent.iterdir()] == ["7000.key"]
    assert not key_file(7000).exists()


def test_what_a_killed_server_left_goes_and_what_a_running_one_keeps_stays(other_server):
    with keep_key(7000, "ours"):
        assert key_file(7001).read_text() == "theirs"
    other_server.kill()
    other_server.wait()
    assert key_file(7001).exists()
    with keep_key(7000, "ours"):
        assert not key_file(7001).exists()


def test_a_killed_server_on_the_same_port_is_no_hindrance():
    left = key_file(7000)
    left.parent.mkdir(parents=True)
    left.write_text("old")
    with keep_key(7000, "new"):
        assert left.read_text() == "new"


def test_a_key_that_cannot_be_kept_is_no_reason_to_fail(tmp_path):
    (tmp_path / "penstock").write_text("a file where the folder should be")
    with keep_key(7000, "ours"):
        assert not os.path.exists(key_file(7000))
