"""A server with tiny real models, asked over HTTP."""

import json
import os
import time
import urllib.error
import urllib.request

from benchmarks.harness.server import Server as ServerProcess
from benchmarks.harness.server import write_config as write_server_config
from benchmarks.harness.server import write_plan
from placement.files import write_json
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.units import Bytes

PLACES = "PENSTOCK_TEST_DEVICES"
"""The variable with the devices that plans name, where a suite is run on a cluster."""
DEVICES = tuple(os.environ.get(PLACES, "local/0,local/1").split(","))
MEGABYTE = 2**20
CACHE_BYTES = 4 * MEGABYTE


def profiles():
    """As slow as a loaded machine may be; nothing is measured here."""
    shapes = [(1, 1), (1, 2), (2, 1)]

    def chat(tp, pp):
        generation = Generation((StepCost(fixed=0.02),) * pp, (512.0,) * pp)
        return ShapeProfile(tp, pp, (Bytes(MEGABYTE),) * pp, generation=generation)

    def embed(tp, pp):
        return ShapeProfile(tp, pp, (Bytes(MEGABYTE),) * pp, {1: (0.02,) * pp, 4: (0.04,) * pp})

    return {
        "chat": Profile(tuple(chat(tp, pp) for tp, pp in shapes)),
        "embed": Profile(tuple(embed(tp, pp) for tp, pp in shapes)),
    }


def write_config(folder, directory, **more):
    """Two devices with a chat and an embedding model, and a plan with both on each device; the configuration's path."""
    write_json(folder / "profiles.json", profiles())
    shared = {"tp": 1, "pp": 1, "models": ["chat", "embed"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(folder / "plan.json", [{"devices": [device]} | shared for device in DEVICES])
    models = [
        {"name": "chat", "path": str(directory / "chat"), "slo": {"ttft": "20s", "tpot": "10s"}},
        {"name": "embed", "path": str(directory / "embed"), "slo": "20s"},
    ]
    settings = {"models": models, "profiles": "profiles.json"} | more
    return write_server_config(folder / "config.yaml", 2, settings.pop("models"), **settings)


class Server(ServerProcess):
    """With the plan beside the configuration, where there is one."""

    def __init__(self, config):
        plan = config.parent / "plan.json"
        super().__init__(config, *(("--plan", str(plan)) if plan.exists() else ()))

    def get(self, path):
        return self.ask(path, None)

    def ask(self, path, body, **headers):
        """(status, answer, headers)"""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"} | headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers

    def complete(self, tokens=8, prompt="def main("):
        body = {"model": "chat", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.ask("/v1/completions", body)

    def embed(self, text="a list"):
        return self.ask("/v1/embeddings", {"model": "embed", "input": text})

    def wait_until(self, holds, seconds=60):
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.05)
