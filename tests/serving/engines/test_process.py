"""A server's process and what it has started end together."""

import asyncio
import os
import signal
import sys

from benchmarks.harness.server import is_alive
from serving.engines.process import descendants, start_process

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.02)


def test_a_server_that_will_not_go_is_killed_with_its_children(monkeypatch):
    monkeypatch.setattr("serving.engines.process.GRACE_S", 0.2)
    sent, kill = [], os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: (sent.append((pid, number)), kill(pid, number)))

    async def run():
        process = start_process([sys.executable, "-c", STUBBORN], {})
        await until(lambda: len(descendants(process.pid)) == 1)
        family = [process.pid, *descendants(process.pid)]
        await process.stop()
        await until(lambda: not any(map(is_alive, family)))
        assert [pid for pid, number in sent if number == signal.SIGKILL] == [process.pid], "children by their handles"
        return await process.ended

    assert asyncio.run(run()) == -9


def test_a_command_that_is_not_there_ends_at_once(capfd):
    async def run():
        return await start_process(["no-such-server"], {}).ended

    assert asyncio.run(run()) == 127
    assert "cannot start no-such-server" in capfd.readouterr().err
