"""Whoever gives up the start of a group is heard, at whatever moment."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from serving.worker.emulated_launcher import EmulatedLauncher
from serving.worker.event_loop import run
from serving.worker.group import Group, GroupSpec, start_group
from serving.worker.messages import Hello


def test_a_start_given_up_as_the_group_says_hello(monkeypatch, tmp_path):
    """A cancellation that was lost here made a server that was told to stop while it started wait for ever."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    take = Group._take

    async def work():
        starting = asyncio.create_task(start_group(GroupSpec(name="g", devices=("cpu:0",)), EmulatedLauncher()))

        def take_and_give_up(group, link, message):
            take(group, link, message)
            if isinstance(message, Hello):
                starting.cancel()

        monkeypatch.setattr(Group, "_take", take_and_give_up)
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert list(Path(tmp_path).iterdir()) == []

    run(asyncio.wait_for(work(), 20))
