"""How fast are the links between processes? Messages per second one way, and the round trip of 1 KB.

    python -m benchmarks.links [--tiny]

Against plain asyncio streams with msgspec and, where pyzmq is installed, its asyncio sockets: the same messages, the
same loop (uvloop if installed), the same Unix sockets between two processes, interleaved in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from benchmarks.cases import emit, note
from serving.worker.connect import connect
from serving.worker.event_loop import run
from serving.worker.link import Link
from serving.worker.listener import listen

ROUNDS = 7
BATCH = 1000
BODY = b"x" * 1000


class Token(msgspec.Struct, tag=True, frozen=True):
    request: int
    token: int


class Echo(msgspec.Struct, tag=True, frozen=True):
    body: bytes


class Done(msgspec.Struct, tag=True, frozen=True):
    count: int = 0


Words = Token | Echo | Done
Reply = Echo | Done


class Counter:
    """What the other end does with any message: answers some, counts the rest."""

    def __init__(self) -> None:
        self._count = 0

    def handle(self, message: Words) -> Reply | None:
        if isinstance(message, Token):
            self._count += 1
            return None
        if isinstance(message, Echo):
            return message
        count, self._count = self._count, 0
        return Done(count)


class Wire(Protocol):
    """One way to carry messages, at the end that measures."""

    async def flood(self, count: int) -> Done:
        """Send so many tokens, then wait for the other end's count."""
        ...

    async def ask(self, message: Reply) -> Reply: ...

    def close(self) -> None: ...


class LinkWire:
    def __init__(self) -> None:
        self._link: Link[Words, Reply] | None = None
        self._answer: asyncio.Future[Reply] | None = None

    async def open(self, path: str) -> LinkWire:
        self._link = await connect(f"unix:{path}", Words, self._take, lambda *_: None)
        return self

    async def flood(self, count: int) -> Done:
        assert self._link is not None
        for number in range(count):
            self._link.send(Token(number, 7))
            if number % BATCH == 0:
                await self._link.drained()
        done = await self.ask(Done())
        assert isinstance(done, Done)
        return done

    async def ask(self, message: Reply) -> Reply:
        assert self._link is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._link.send(message)
        return await self._answer

    def close(self) -> None:
        assert self._link is not None
        self._link.close()

    def _take(self, _: Link[Words, Reply], reply: Reply) -> None:
        assert self._answer is not None
        self._answer.set_result(reply)


async def serve_link(path: str) -> None:
    counter, closed = Counter(), asyncio.Event()

    def take(link: Link[Reply, Words], message: Words) -> None:
        reply = counter.handle(message)
        if reply is not None:
            link.send(reply)

    await listen(f"unix:{path}", Words, lambda _: None, take, lambda *_: closed.set())
    await closed.wait()


class StreamWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: msgspec.msgpack.Decoder[Words] = msgspec.msgpack.Decoder(Words)

    def send(self, message: Words) -> None:
        payload = self._encode(message)
        self._writer.write(len(payload).to_bytes(4, "little") + payload)

    async def receive(self) -> Words:
        size = int.from_bytes(await self._reader.readexactly(4), "little")
        return self._decoder.decode(await self._reader.readexactly(size))

    async def flood(self, count: int) -> Done:
        for number in range(count):
            self.send(Token(number, 7))
            if number % BATCH == 0:
                await self._writer.drain()
        done = await self.ask(Done())
        assert isinstance(done, Done)
        return done

    async def ask(self, message: Reply) -> Reply:
        self.send(message)
        reply = await self.receive()
        assert not isinstance(reply, Token)
        return reply

    def close(self) -> None:
        self._writer.close()


async def open_streams(path: str) -> StreamWire:
    return StreamWire(*await asyncio.open_unix_connection(path))


async def serve_streams(path: str) -> None:
    closed = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire, counter = StreamWire(reader, writer), Counter()
        try:
            while True:
                reply = counter.handle(await wire.receive())
                if reply is not None:
                    wire.send(reply)
        except asyncio.IncompleteReadError:
            closed.set()

    await asyncio.start_unix_server(take, path)
    await closed.wait()


class ZmqWire:
    def __init__(self, path: str, is_server: bool) -> None:
        import zmq.asyncio

        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        (self._socket.bind if is_server else self._socket.connect)(f"ipc://{path}")
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: msgspec.msgpack.Decoder[Words] = msgspec.msgpack.Decoder(Words)

    async def send(self, message: Words) -> None:
        await self._socket.send(self._encode(message))

    async def receive(self) -> Words:
        return self._decoder.decode(await self._socket.recv())

    async def flood(self, count: int) -> Done:
        for number in range(count):
            await self.send(Token(number, 7))
        done = await self.ask(Done())
        assert isinstance(done, Done)
        return done

    async def ask(self, message: Reply) -> Reply:
        await self.send(message)
        reply = await self.receive()
        assert not isinstance(reply, Token)
        return reply

    def close(self) -> None:
        self._socket.close(linger=0)


async def open_zmq(path: str) -> ZmqWire:
    return ZmqWire(path, is_server=False)


async def serve_zmq(path: str) -> None:
    wire, counter = ZmqWire(path, is_server=True), Counter()
    while True:  # it does not notice that the other end is gone: it is ended
        reply = counter.handle(await wire.receive())
        if reply is not None:
            await wire.send(reply)


OPEN: dict[str, Callable[[str], Coroutine[Any, Any, Wire]]] = {
    "link": lambda path: LinkWire().open(path),
    "streams": open_streams,
    "zmq": open_zmq,
}
SERVE = {"link": serve_link, "streams": serve_streams, "zmq": serve_zmq}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few messages, one round: a check that it runs")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        kind, path = arguments.serve
        run(SERVE[kind](path))
    else:
        emit({"benchmark": "links", **run(_compare(arguments.tiny))})


async def _compare(tiny: bool) -> dict[str, object]:
    """Medians over interleaved rounds, and the least and most."""
    kinds = [kind for kind in OPEN if kind != "zmq" or importlib.util.find_spec("zmq")]
    rounds, messages, trips = (1, 2_000, 100) if tiny else (ROUNDS, 200_000, 3_000)
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    round_trips: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        others = {kind: _start(kind, f"{folder}/{kind}") for kind in kinds}
        try:
            wires = {kind: await _open(kind, f"{folder}/{kind}") for kind in kinds}
            for number in range(rounds):
                for kind, wire in wires.items():
                    some = messages if kind != "zmq" else messages // 10
                    rates[kind].append(await _measure_rate(wire, some))
                    round_trips[kind].append(await _measure_round_trip(wire, trips) * 1e6)
                note(f"round {number + 1} of {rounds}: {rates['link'][-1]:,.0f} messages/s over links")
            for wire in wires.values():
                wire.close()
        finally:
            for other in others.values():
                other.kill()
                other.wait()
    return _summarize(rates, round_trips)


def _start(kind: str, path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.links", "--serve", kind, path])


async def _open(kind: str, path: str) -> Wire:
    """The other process needs a moment."""
    end = time.monotonic() + 20
    while True:
        try:
            wire = await OPEN[kind](path)
            await asyncio.wait_for(wire.ask(Echo(b"ready")), 20)
            return wire
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.02)


async def _measure_rate(wire: Wire, messages: int) -> float:
    begin = time.perf_counter()
    done = await wire.flood(messages)
    assert done.count == messages, f"{done.count} of {messages} messages arrived"
    return messages / (time.perf_counter() - begin)


async def _measure_round_trip(wire: Wire, trips: int) -> float:
    """The median, in seconds."""
    took = []
    for _ in range(trips):
        begin = time.perf_counter()
        await wire.ask(Echo(BODY))
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def _summarize(rates: dict[str, list[float]], round_trips: dict[str, list[float]]) -> dict[str, object]:
    rate = {kind: statistics.median(each) for kind, each in rates.items()}
    trip = {kind: statistics.median(each) for kind, each in round_trips.items()}
    result: dict[str, object] = {
        "messages_per_s": {kind: round(value) for kind, value in rate.items()},
        "messages_per_s_spread": {kind: [round(min(each)), round(max(each))] for kind, each in rates.items()},
        "round_trip_us": {kind: round(value, 1) for kind, value in trip.items()},
        "round_trip_us_spread": {kind: [round(min(e), 1), round(max(e), 1)] for kind, e in round_trips.items()},
        "ratio_to_streams": round(rate["link"] / rate["streams"], 2),
        "round_trip_ratio_to_streams": round(trip["link"] / trip["streams"], 2),
        "ratio_to_100_thousand": round(rate["link"] / 100_000, 2),
        "round_trip_ratio_to_150_us": round(trip["link"] / 150, 2),
    }
    if "zmq" in rate:
        result |= {"ratio_to_zmq": round(rate["link"] / rate["zmq"], 2)}
        result |= {"round_trip_ratio_to_zmq": round(trip["link"] / trip["zmq"], 2)}
    else:
        result["zmq"] = "skipped: pyzmq is not installed"
    return result


if __name__ == "__main__":
    main()
