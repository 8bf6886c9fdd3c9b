"""A group that is led for a server of others, as its controller sees it; the server is a few lines of this process."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from serving.sampling import SamplingParams
from serving.worker.event_loop import run
from serving.worker.foreign import EngineConfig
from serving.worker.group import GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.local_launcher import LocalLauncher
from serving.worker.messages import ModelSpec

LISTED = b'{"data": [{"id": "m"}]}'
FIRST = {"choices": [{"index": 0, "token_ids": [5]}]}
LAST = {"choices": [{"index": 0, "token_ids": [6], "finish_reason": "length"}]}
VECTORS = {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}


def events(*said):
    return b"".join(b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n" for one in said)


def answer(body):
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class Server:
    """Of OpenAI's API, by a script: what it says to each request in turn. None hangs up before all is said."""

    def __init__(self, *said):
        self.said = [LISTED, events(FIRST, LAST), *said]

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [line.partition(b":")[2] for line in head.splitlines() if line.startswith(b"content-length")]
                await reader.readexactly(int(length[0]) if length else 0)
                body = self.said.pop(0)
                writer.write(answer(events(FIRST))[:-2] if body is None else answer(body))
                if body is None:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@asynccontextmanager
async def leading(*said):
    """A group with the model `m` on such a server."""
    async with await asyncio.start_server(Server(*said).serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        spec = GroupSpec(name="g", devices=("cpu:0",), foreign=True)
        group = await start_group(spec, LocalLauncher(lambda name, line: None))
        try:
            await group.load(ModelSpec(name="m", path="m", engine=EngineConfig(kind="openai", url=url)))
            yield group
        finally:
            await group.stop()


async def tokens(group, request):
    stream = group.generate(request, "m", [1, 2], SamplingParams(max_tokens=2))
    return [produced.token async for produced in stream]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (events(FIRST, b"what?"), "the engine's answer is of no use: JSON is malformed"),
        (events({"choices": "none"}), "the engine's answer is of no use: Expected `array`"),
        (events({"error": "too many"}), "too many"),
        (events(FIRST), "ended before it was complete"),
    ],
)
def test_an_odd_answer_fails_its_request_alone(odd, words):
    async def work():
        async with leading(odd, events(FIRST, LAST)) as group:
            with pytest.raises(RequestFailed, match=words) as failed:
                await tokens(group, "odd")
            assert failed.value.code == "failed"
            assert await tokens(group, "next") == [5, 6]
            assert group.lost is None

    run(asyncio.wait_for(work(), 60))


def test_vectors_that_are_none_fail_their_request_alone():
    async def work():
        async with leading(b"[1]", json.dumps(VECTORS).encode()) as group:
            with pytest.raises(RequestFailed, match="of no use"):
                await group.infer("odd", "m", [[1]])
            assert (await group.infer("next", "m", [[1]])).tolist() == [[1.0, 2.0]]

    run(asyncio.wait_for(work(), 60))


def test_a_connection_that_breaks_is_the_end_of_the_group():
    async def work():
        async with leading(None) as group:
            with pytest.raises(GroupLost, match="the server of 'm': it hung up"):
                await tokens(group, "broken")

    run(asyncio.wait_for(work(), 60))
