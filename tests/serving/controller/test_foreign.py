"""A group of an engine of others, kept running: here a server that needs a while to end."""

import asyncio
import sys

from placement.plan import Group
from serving.controller.journal import Journal
from serving.controller.probe import Probe
from serving.controller.runner import GRACE_S, GroupRunner, Setup
from serving.worker.foreign import EngineConfig
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec
from tests.serving.controller.worlds import run

SERVER = """
import os, pathlib, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say(b'{"data": [{"id": "m"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.say(b'data: {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "length"}]}\\n\\n')

    def say(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

def end(*_):
    time.sleep(float(sys.argv[2]))
    pathlib.Path(sys.argv[3]).touch()
    os._exit(0)

signal.signal(signal.SIGTERM, end)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def test_a_server_of_others_has_time_to_end(tmp_path):
    script, ended = tmp_path / "server.py", tmp_path / "ended"
    script.write_text(SERVER)
    engine = EngineConfig(kind="openai", command=f"{sys.executable} {script} {{port}} {3 * GRACE_S} {ended}")
    setup = Setup(
        launcher=LocalLauncher(lambda name, line: None),
        devices={"n/0": "cpu:0"},
        spec_of=lambda group, model: ModelSpec(name=model, path=model, engine=engine),
        probes={"m": Probe("generate", [1, 2])},
        foreign=frozenset({"m"}),
    )

    async def work():
        runner = GroupRunner("g", Group(("n/0",), 1, 1, models=("m",)), setup, Journal(), lambda: None)
        runner.start()
        async with asyncio.timeout(50):
            assert await runner.settled() == ""
        await runner.stop()

    run(work())
    assert ended.exists()
