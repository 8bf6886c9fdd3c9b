"""A client that goes frees its sequence within two steps of a real engine: from HTTP to the blocks of the cache."""

import asyncio
import json
import os
import signal
from statistics import median

import pytest

from serving.config import read_serve_config
from serving.controller.serve import running_server
from serving.engine.blocks import BLOCK_TOKENS
from serving.worker.event_loop import run
from tests.e2e.server import CACHE_BYTES, write_config, write_plan

LONG = 160
"""Tokens of the prompt whose client goes."""
ATTEMPTS = 5
"""A worker's threads may take their turns in an unlucky order, but not each time."""


@pytest.fixture(scope="module")
def config(tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one-group")
    path = write_config(folder, tiny_models)
    shared = {"tp": 1, "pp": 1, "models": ["chat"], "kv_bytes": {"chat": CACHE_BYTES}}
    write_plan(folder / "plan.json", [{"devices": ["local/0"]} | shared])
    return path


async def ask(port, **more):
    """A request under way."""
    body = {"model": "chat", "prompt": "def main(", "max_tokens": 450, "temperature": 0, "ignore_eos": True} | more
    data = json.dumps(body).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return writer


async def until(holds, seconds=60):
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0)


async def steps_until_free(running, stream):
    """Of an engine with two sequences, one of whose clients goes while the worker stands still."""
    router, group = running.controller.router, running.controller.runners["g0"].group
    port, long = running.port, [7] * LONG
    stays, goes = await ask(port, stream=True), await ask(port, prompt=long, stream=stream)
    await until(lambda: group.states["chat"].running == 2)
    os.kill(group.handles[0].pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(0.05)  # what it had said is heard
        state, steps = group.states["chat"], 0
        held = state.blocks_used
        goes.transport.abort()
        await until(lambda: router.running == 1, 1.0)
    finally:
        os.kill(group.handles[0].pid, signal.SIGCONT)
    while group.states["chat"].running == 2:
        if group.states["chat"] is not state:
            state, steps = group.states["chat"], steps + 1
        await asyncio.sleep(0)
    assert group.states["chat"].blocks_used <= held - LONG // BLOCK_TOKENS + 2  # the other may have begun two more
    stays.transport.abort()
    await until(lambda: group.states["chat"].running == 0)
    assert group.states["chat"].blocks_used == 0
    await until(lambda: router.running == router.waiting == 0)
    return steps


def test_a_client_that_goes_frees_its_cache_within_two_steps(config):
    async def work():
        async with running_server(read_serve_config(config), plan=config.parent / "plan.json") as running:
            for stream in (False, True):
                steps = [await steps_until_free(running, stream) for _ in range(ATTEMPTS)]
                assert median(steps) <= 2, steps

    run(asyncio.wait_for(work(), 120))
