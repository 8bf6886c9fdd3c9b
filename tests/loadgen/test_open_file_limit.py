"""Room for connections where a system allows few open files."""

import resource

import pytest

from loadgen.client.limits import Limits
from loadgen.client.open_file_limit import room_for
from loadgen.errors import TrafficError


@pytest.fixture
def few(monkeypatch):
    """At most 1000 open files, 256 to begin with; gives what was set."""
    was_set = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: was_set.append(limits))
    return was_set


def test_the_usual_number_is_lowered_to_what_there_is(few):
    assert room_for(Limits().open) == 800
    assert few == [(1000, 1000)]


def test_another_is_refused_when_there_are_not_so_many(few):
    assert room_for(800) == 800
    with pytest.raises(TrafficError, match=r"^--max-open 801: .*give at most 800"):
        room_for(801)
