"""What front ends are told that workers are not: keys, and where traces go."""

import asyncio
import json

from placement.files import convert
from serving.config import ServeConfig
from serving.controller.front_keeper import FrontKeeper
from serving.controller.front_process import FrontDocument
from serving.controller.journal import Journal
from tests.serving.controller.worlds import run

CONFIG = {
    "cluster": {"nodes": [{"name": "n", "devices": 1, "kind": "cpu", "memory": "1GiB"}]},
    "models": [{"name": "m", "path": "m", "slo": 1}],
    "listen": "127.0.0.1:0",
    "fronts": 1,
}
TRACES = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
KEYS = {"PENSTOCK_ADMIN_KEY": "key-of-the-admin", "PENSTOCK_API_KEYS": "key-of-anna anna"}


class Desk:
    fronts = 0

    async def open(self, address):
        return address


class Launcher:
    """Remembers what it is to start, and starts nothing."""

    def __init__(self, desk):
        self.desk, self.specs = desk, []

    async def start(self, spec):
        self.specs.append(spec)
        self.desk.fronts += 1
        return self

    async def wait(self):
        await asyncio.Event().wait()

    async def terminate(self, grace_s):
        return None


def test_front_ends_have_the_keys_and_send_traces(monkeypatch):
    for name, value in (TRACES | KEYS).items():
        monkeypatch.setenv(name, value)

    async def start(made):
        desk = Desk()
        keeper = FrontKeeper(convert(CONFIG, ServeConfig, "config"), desk, Journal(), made)
        keeper._launcher = Launcher(desk)
        await keeper.start()
        await keeper.stop(0.0)
        return keeper._launcher.specs[0]

    spec = run(start(None))
    assert spec.environment == TRACES
    assert convert(spec.document, FrontDocument, "document").keys == KEYS
    assert "key-of" not in json.dumps([spec.environment, repr(spec)])
    assert run(start("made")).document["keys"] == KEYS | {"PENSTOCK_ADMIN_KEY": "made"}
