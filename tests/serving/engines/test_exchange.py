"""Requests to servers of others: over connections that are used again, and closed when nobody waits any more."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from placement.errors import InputError
from serving.engines import exchange as module
from serving.engines.exchange import ExchangeFailed, Stock, ask, converse, parse_place
from serving.worker.event_loop import run

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"


class Peer:
    """A server that answers the n-th request of the c-th connection with `answer(c, n)`, and hangs up after None."""

    def __init__(self, answer=lambda connection, number: HEAD + b"\r\nok"):
        self.answer, self.seen, self.closed = answer, [], asyncio.Event()

    @asynccontextmanager
    async def serving(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield parse_place(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")

    async def _serve(self, reader, writer):
        connection, number = len(self.seen), 0
        self.seen.append(0)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.seen[connection] = number = number + 1
                said = self.answer(connection, number)
                if said is None:
                    break
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        writer.close()


async def get(place, stock, into=None):
    return await converse(place, "GET", "/v1/models", None, (into if into is not None else []).append, stock)


def test_one_connection_carries_one_request_after_another():
    async def work():
        peer, stock, parts = Peer(), Stock(), []
        async with peer.serving() as place:
            for _ in range(3):
                assert await get(place, stock, parts) == 200
            assert peer.seen == [3]
            assert parts == [b"ok"] * 3
            assert await asyncio.gather(*(get(place, stock) for _ in range(2))) == [200, 200]
            assert peer.seen == [4, 1]
            stock.close()
            await peer.closed.wait()

    run(work())


@pytest.mark.parametrize("how", ["told", "long ago"])
def test_a_connection_is_used_no_more(how, monkeypatch):
    async def work():
        last = b"connection: close\r\n" if how == "told" else b""
        peer, stock = Peer(lambda connection, number: HEAD + last + b"\r\nok"), Stock()
        monkeypatch.setattr(module, "MOST_IDLE_S", 1.0 if how == "told" else -1.0)
        async with peer.serving() as place:
            for _ in range(2):
                assert await get(place, stock) == 200
            assert peer.seen == [1, 1]
            stock.close()

    run(work())


def test_what_a_server_hangs_up_on_unheard_is_asked_again():
    async def work():
        peer, stock = Peer(lambda connection, number: None if number == 2 else HEAD + b"\r\nok"), Stock()
        async with peer.serving() as place:
            assert [await get(place, stock) for _ in range(2)] == [200, 200]
            assert peer.seen == [2, 1]
            stock.close()

    run(work())


def test_who_waits_no_more_closes_the_connection():
    async def work():
        peer, stock = Peer(lambda connection, number: HEAD + (b"\r\nok" if number == 1 else b"\r\no")), Stock()
        async with peer.serving() as place:
            assert await get(place, stock) == 200
            asking = asyncio.create_task(get(place, stock))
            await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await peer.closed.wait()  # by which the server knows
            assert peer.seen == [2]
            assert stock.take() is None

    run(work())


def test_an_answer_that_breaks_off_is_not_asked_for_again():
    async def work():
        async def serve(reader, writer):
            for said in (HEAD + b"\r\nok", HEAD + b"\r\no"):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(said)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            place, stock = parse_place(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), Stock()
            assert await get(place, stock) == 200
            with pytest.raises(ExchangeFailed, match="hung up"):
                await get(place, stock)

    run(work())


def test_who_cannot_take_a_body_is_told_what_is_wrong_with_it():
    async def work():
        def refuse(data):
            raise ValueError(f"{data!r} is nothing for me")

        peer, stock = Peer(), Stock()
        async with peer.serving() as place:
            for _ in range(2):  # over a new connection, and after another's answer
                with pytest.raises(ValueError, match="b'ok' is nothing for me"):
                    await converse(place, "GET", "/v1/models", None, refuse, stock)
                assert await get(place, stock) == 200
            stock.close()

    run(work())


def test_what_is_too_large_is_no_failure_of_the_server(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 1)

    async def work():
        async with Peer().serving() as place:
            with pytest.raises(InputError, match="/v1/models has over 1 bytes"):
                await ask(place, "GET", "/v1/models")

    run(work())


def test_a_server_that_is_not_there_has_failed_too():
    async def work():
        async with Peer().serving() as place:
            assert (await ask(place, "GET", "/v1/models")).body == b"ok"
        with pytest.raises(ExchangeFailed):
            await get(place, Stock())

    run(work())
