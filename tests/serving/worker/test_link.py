"""Links between real processes and sockets: what is sent arrives in order, and every way to end has its reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import msgspec
import pytest

from placement.errors import InputError
from serving.worker import event_loop
from serving.worker.connect import connect
from serving.worker.frames import PING, make_frame
from serving.worker.link import Link, LinkError
from serving.worker.listener import listen
from serving.worker.settings import LinkSettings
from tests.serving.worker.words import ROOT, Count, Say, Words, fds, until

SECRET = b"sixteen bytes at least"
QUICK = LinkSettings(ping_s=0.1, life_s=0.4)
PATIENT = LinkSettings(life_s=30)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    """Runs a coroutine on either loop; nothing may take longer than 30 s, nor leave a file open."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def go(main):
        factory().close()  # what libuv opens once a process
        before = fds()
        # uvloop hangs when its complaint about a transport that a failed test left open is made an error
        with warnings.catch_warnings(), asyncio.Runner(loop_factory=factory) as runner:
            warnings.simplefilter("ignore", ResourceWarning)
            result = runner.run(asyncio.wait_for(main, 30))
        assert fds() <= before
        return result

    return go


class Here:
    """A listener, its links, what came over them and why they ended."""

    def __init__(self):
        self.links, self.got, self.ended, self.open = [], [], [], []

    async def listen(self, address, settings=QUICK, **more):
        callbacks = (self._open, lambda _, message: self.got.append(message), lambda *end: self.ended.append(end))
        self.listener = await listen(str(address), Words, *callbacks, settings=settings, **more)
        return self

    def _open(self, link):
        assert not self.got or self.links
        self.links.append(link)
        self.open.append(link)

    @property
    def reasons(self):
        return [reason for _, reason in self.ended]

    async def connect(self, settings=QUICK, **more):
        """The other end, in this process: the link, what it got and its reasons."""
        got, reasons = [], []
        link = await connect(
            self.listener.address,
            Words,
            lambda _, message: got.append(message),
            lambda _, why: reasons.append(why),
            settings=settings,
            **more,
        )
        await until(lambda: self.links)
        return link, got, reasons

    async def close(self):
        self.listener.close()
        for link in self.links:
            link.close()
            await link.wait_closed()


async def raw_connect(here):
    """A socket that speaks for itself."""
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(here.listener.address.removeprefix("unix:"))
    raw.setblocking(False)
    await until(lambda: here.links)
    return raw


@contextlib.contextmanager
def peer(address, settings=QUICK, *secret):
    command = [sys.executable, "-m", "tests.serving.worker.peer", address]
    command += [msgspec.json.encode(settings).decode(), *secret]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_messages_arrive_in_order_both_ways_between_processes(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", PATIENT)
        with peer(here.listener.address, PATIENT) as process:
            await until(lambda: here.links)
            sent = [Say(n, b"x" * (n % 700 + 1)) for n in range(2000)]
            for message in sent:
                assert here.links[0].send(message)
            here.links[0].send(Say(0))
            await until(lambda: len(here.got) == 2001)
            assert here.got == [*sent, Count(2001)]
            here.links[0].close("enough")
            assert process.communicate(timeout=10)[0] == "the other end closed the link: enough\n"
        await here.close()
        assert here.reasons == ["enough"]

    run(main())


def test_a_large_message_arrives_whole(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", PATIENT)
        link, *_ = await here.connect(PATIENT)
        body = bytes(range(256)) * (15 * 2**12)
        for number in range(3):
            link.send(Say(number, body))
            await link.drained()
        await until(lambda: len(here.got) == 3)
        assert here.got == [Say(number, body) for number in range(3)]
        await here.close()
        await link.wait_closed()

    run(main())


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_any_cut_of_the_stream_gives_the_same_messages(run, tmp_path, size):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", PATIENT)
        raw = await raw_connect(here)
        sent = [Say(n, b"y" * n) for n in range(20)]
        stream = b"".join(make_frame(msgspec.msgpack.encode(message)) + PING for message in sent)
        for start in range(0, len(stream), size):
            raw.send(stream[start : start + size])
            await asyncio.sleep(0)
        await until(lambda: len(here.got) == 20)
        assert here.got == sent
        await here.close()
        raw.close()

    run(main())


def test_what_is_sent_in_one_iteration_is_one_write(run):
    class Wire:
        def __init__(self):
            self.writes = []
            self.write = self.writes.append

        def set_write_buffer_limits(self, *_): ...

        def get_extra_info(self, name):
            return self

        def fileno(self):
            return -1

        def abort(self): ...

    async def main():
        link = Link("nobody", msgspec.msgpack.Decoder(Words), print, lambda *_: None, LinkSettings())
        link.connection_made(wire := Wire())
        for number in range(100):
            link.send(Say(number))
        assert wire.writes == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert wire.writes == [b"".join(make_frame(msgspec.msgpack.encode(Say(n))) for n in range(100))]
        link.eof_received()
        link.connection_lost(None)

    run(main())


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ((2**24 + 1).to_bytes(4, "little"), "a frame of 16777217 bytes was announced; 16777216 is the most allowed"),
        (b"\xff\xff\xff\xff", "malformed frame"),
        (make_frame(b"\xc1"), "malformed message: MessagePack data is malformed"),
        (make_frame(msgspec.msgpack.encode({"type": "Shout"})), "malformed message: Invalid value 'Shout'"),
        (make_frame(b"\x82\xa4type\xa3Say\xa6number\xa1\xff"), "malformed message"),
    ],
)
def test_what_is_no_message_ends_the_link_and_says_so_to_both(run, tmp_path, wrong, reason):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s")
        raw = await raw_connect(here)
        raw.send(make_frame(msgspec.msgpack.encode(Say(1))) + wrong)
        await until(lambda: here.ended)
        assert here.got == [Say(1)]
        assert here.reasons[0].startswith(reason)
        await here.links[0].wait_closed()
        assert reason.encode() in raw.recv(4096)
        assert not here.links[0].send(Say(2))
        await here.close()
        raw.close()

    run(main())


def test_too_large_a_message_is_refused_before_it_is_sent(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s")
        link, *_ = await here.connect(LinkSettings(max_frame_bytes=1000, ping_s=0.1))
        for send in (link.send, link.post):
            with pytest.raises(InputError, match="a frame may have 1000"):
                send(Say(1, b"x" * 1000))
        assert link.send(Say(2))
        await until(lambda: here.got == [Say(2)])
        await here.close()
        await link.wait_closed()

    run(main())


@pytest.mark.parametrize("number", [2**70, object(), "\udce9"])
def test_what_cannot_be_encoded_is_refused_and_the_link_goes_on(run, tmp_path, number):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s")
        link, *_ = await here.connect()
        for send in (link.send, link.post):
            with pytest.raises(InputError, match="this Say cannot be sent: "):
                send(Say(number))
        assert link.send(Say(2))
        await until(lambda: here.got == [Say(2)])
        await here.close()
        await link.wait_closed()

    run(main())


def test_a_handler_that_fails_ends_its_link_with_the_reason(run, tmp_path, caplog):
    async def main():
        here = Here()
        here.got = None
        await here.listen(f"unix:{tmp_path}/s")
        here.got = None
        link, _, reasons = await here.connect()
        link.send(Say(1))
        await until(lambda: reasons and here.ended)
        assert "a message could not be handled: AttributeError" in here.reasons[0]
        assert "AttributeError" in reasons[0]
        await here.close()
        await link.wait_closed()

    run(main())
    assert "a message could not be handled" in caplog.text


def test_a_killed_peer_is_noticed_at_once(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", PATIENT)
        with peer(here.listener.address, PATIENT) as process:
            await until(lambda: here.links)
            process.kill()
            assert await until(lambda: here.ended) < 0.5
            assert here.reasons == ["the other end went away"]
        await here.close()

    run(main())


def test_a_stopped_peer_is_noticed_after_its_life_and_told_when_it_wakes(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", QUICK)
        with peer(here.listener.address, LinkSettings(ping_s=0.1, life_s=30)) as process:
            await until(lambda: here.links)
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            took = await until(lambda: here.ended)
            assert 0.25 < took < 1.5
            assert here.reasons == ["no sign of life for 0.4 s"]
            process.send_signal(signal.SIGCONT)
            output = await asyncio.to_thread(process.communicate, timeout=10)
            assert output[0] == "the other end closed the link: no sign of life for 0.4 s\n"
        await here.close()

    run(main())


def test_an_idle_link_lives_on_pings_and_survives_a_hiccup_of_its_own_loop(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", QUICK)
        with peer(here.listener.address, LinkSettings(ping_s=0.1, life_s=30)):
            await until(lambda: here.links)
            await asyncio.sleep(0.6)
            for _ in range(2):
                time.sleep(0.6)  # more than a life without looking
                await asyncio.sleep(0.15)
            assert here.ended == []
            here.links[0].send(Say(1, b"x"))
            await until(lambda: here.got)
        await here.close()

    run(main())


def test_a_flood_of_messages_does_not_pass_for_silence(run, tmp_path):
    """The receiver has far more than a life of work before it, and still gives signs of life."""

    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", LinkSettings(ping_s=0.25, life_s=2.0))
        slowly = []

        def handle(_, message):
            slowly.append(message)
            time.sleep(500e-6)

        here.listener._on_message = handle
        script = """if True:
            import asyncio, sys
            from serving.worker.connect import connect
            from serving.worker.event_loop import run
            from serving.worker.settings import LinkSettings
            from tests.serving.worker.words import Say, Words
            async def main():
                ended = []
                settings = LinkSettings(ping_s=0.25, life_s=2.0)
                link = await connect(sys.argv[1], Words, print, lambda _, why: ended.append(why), settings=settings)
                for number in range(6_000):
                    link.send(Say(number))
                    await link.drained()
                while not ended:
                    await asyncio.sleep(0.01)
                print(*ended)
            run(main())"""
        command = [sys.executable, "-c", script, here.listener.address]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            await until(lambda: len(slowly) == 6_000 or here.ended, 60)
            assert here.ended == []
            await here.close()
            assert process.communicate(timeout=30)[0] == "the other end closed the link: closed\n"

    run(main())


def test_a_reader_too_slow_ends_the_link_at_the_bound(run, tmp_path):
    async def main():
        bound = 2**20
        settings = LinkSettings(max_frame_bytes=2**17, max_unsent_bytes=bound, life_s=30)
        here = await Here().listen(f"unix:{tmp_path}/s", settings)
        raw = await raw_connect(here)
        sent, message = 0, Say(1, b"x" * 2**16)
        while here.links[0].send(message):
            sent += 2**16
            await asyncio.sleep(0)
            assert sent < bound + 2**21, "the kernel's buffer is smaller than that"
        await until(lambda: here.ended)
        assert here.reasons == [f"the other end reads too slowly: over {bound} bytes wait"]
        with pytest.raises(LinkError, match="reads too slowly"):
            await here.links[0].drained()
        await here.close()
        raw.close()

    run(main())


def test_one_burst_over_the_bound_ends_the_link(run, tmp_path):
    async def main():
        settings = LinkSettings(max_frame_bytes=2**17, max_unsent_bytes=2**20, life_s=30)
        here = await Here().listen(f"unix:{tmp_path}/s", settings)
        raw = await raw_connect(here)
        message = Say(1, b"x" * 2**16)
        assert not all(here.links[0].send(message) for _ in range(64))
        await until(lambda: here.ended)
        assert "reads too slowly" in here.reasons[0]
        await here.close()
        raw.close()

    run(main())


def test_a_peer_that_takes_nothing_is_given_up_though_it_pings(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", LinkSettings(ping_s=0.1, life_s=0.4, stall_s=0.6))
        raw = await raw_connect(here)
        for _ in range(10):
            here.links[0].send(Say(1, b"x" * 2**18))

        def keep_pinging():
            with contextlib.suppress(OSError):
                raw.send(PING)
            return here.ended

        assert 0.4 < await until(keep_pinging) < 2.5
        assert "taken nothing of what waits to be sent for 0.6 s" in here.reasons[0]
        await here.close()
        raw.close()

    run(main())


def test_a_big_sender_that_waits_is_held_to_the_readers_pace(run, tmp_path):
    async def main():
        settings = LinkSettings(max_frame_bytes=2**17, max_unsent_bytes=2**20, life_s=30)
        here = await Here().listen(f"unix:{tmp_path}/s", settings)
        raw = await raw_connect(here)
        most = 0

        async def send():
            nonlocal most
            for number in range(200):
                assert here.links[0].send(Say(number, b"x" * 2**16))
                await here.links[0].drained()
                most = max(most, here.links[0]._transport.get_write_buffer_size())

        async def read():
            total = 0
            while total < 200 * 2**16:
                total += len(await asyncio.get_running_loop().sock_recv(raw, 2**16))
                if total < 2**22:
                    await asyncio.sleep(0.001)

        await asyncio.gather(send(), read())
        assert most < 2**20
        await here.close()
        raw.close()

    run(main())


def test_threads_post_and_each_ones_messages_stay_in_order(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s", PATIENT)
        link, *_ = await here.connect(PATIENT)

        def post(thread):
            for number in range(2000):
                assert link.post(Say(number, bytes([thread])), at_once=thread % 2 == 0)

        threads = [threading.Thread(target=post, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: len(here.got) == 8000)
        for n in range(4):
            assert [message.number for message in here.got if message.body == bytes([n])] == list(range(2000))
            threads[n].join()
        assert all(link.post(Say(n)) for n in range(10))
        link.close()  # what was posted before goes first
        await link.wait_closed()
        await until(lambda: here.ended)
        assert here.got[8000:] == [Say(n) for n in range(10)]
        assert not link.post(Say(1))
        await here.close()

    run(main())


def test_a_frame_of_which_the_socket_takes_a_part_is_not_torn_by_the_loops_own(run, tmp_path):
    async def main():
        settings = LinkSettings(max_frame_bytes=2**21, max_unsent_bytes=2**28, life_s=30, ping_s=0.01)
        here = await Here().listen(f"unix:{tmp_path}/s", settings)
        link, *_ = await here.connect(settings)
        large = b"x" * 700_000  # no socket's buffer holds it
        thread = threading.Thread(target=lambda: [link.post(Say(number, large), at_once=True) for number in range(40)])
        thread.start()
        for number in range(400):
            link.send(Say(number, b"small"))
            await asyncio.sleep(0.001)
        await until(lambda: len(here.got) == 440)
        thread.join()
        for body, count in ((large, 40), (b"small", 400)):
            assert [message.number for message in here.got if message.body == body] == list(range(count))
        link.close()
        await link.wait_closed()
        await here.close()

    run(main())


def test_posting_more_than_the_loop_takes_ends_the_link(run, tmp_path):
    async def main():
        settings = LinkSettings(max_frame_bytes=2**17, max_unsent_bytes=2**20, life_s=30)
        here = await Here().listen(f"unix:{tmp_path}/s", settings)
        link, _, reasons = await here.connect(settings)
        posted = [link.post(Say(n, b"x" * 2**16)) for n in range(40)]
        assert posted == [True] * 15 + [False] * 25
        await until(lambda: reasons and here.ended)
        assert reasons == ["over 1048576 bytes were posted before the loop woke"]
        await here.close()
        await link.wait_closed()

    run(main())


def test_a_loop_in_a_thread_keeps_its_link_while_the_main_thread_keeps_the_interpreter(tmp_path):
    ended, opened, link = [], threading.Event(), None
    with peer(f"unix:{tmp_path}/s", LinkSettings(ping_s=0.1, life_s=30)):

        async def serve():
            nonlocal link
            here = await Here().listen(f"unix:{tmp_path}/s", QUICK)
            await until(lambda: here.links)
            link = here.links[0]
            opened.set()
            await until(lambda: here.got, 20)
            ended.extend(here.ended)
            await here.close()

        thread = threading.Thread(target=lambda: event_loop.run(serve()))
        thread.start()
        assert opened.wait(20)
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.8:
            sum(range(30_000_000))  # never lets the interpreter go
        link.post(Say(1, b"x"))
        thread.join(20)
        assert not thread.is_alive()
    assert ended == []
    assert not link.post(Say(2))


def test_tcp_links_open_with_the_same_secret(run):
    async def main():
        here = await Here().listen("tcp:127.0.0.1:0", PATIENT, secret=SECRET)
        assert here.listener.address != "tcp:127.0.0.1:0"
        with peer(here.listener.address, PATIENT, SECRET.decode()):
            await until(lambda: here.links)
            for number in range(100):
                here.links[0].send(Say(number, b"x"))
            await until(lambda: len(here.got) == 100)
        await until(lambda: here.ended)
        await here.close()

    run(main())


def test_a_wrong_secret_is_told_to_both_ends_and_logged_once(run, caplog):
    async def main():
        here = await Here().listen("tcp:127.0.0.1:0", secret=SECRET)
        for _ in range(3):
            with pytest.raises(LinkError, match="the listener refuses our secret"):
                await connect(here.listener.address, Words, print, print, secret=SECRET[::-1], deadline_s=20)
        assert here.links == []
        await here.close()

    with caplog.at_level(logging.INFO):
        run(main())
    turned_away = [record for record in caplog.records if "wrong secret" in record.getMessage()]
    assert len(turned_away) == 1
    assert turned_away[0].levelno == logging.WARNING
    assert "turned away 127.0.0.1" in turned_away[0].getMessage()
    assert SECRET.decode() not in caplog.text


def test_an_impostor_listener_gets_no_message(run):
    async def main():
        async def pretend(reader, writer):
            writer.write(b"PENSTK\x00\x01" + bytes(32))
            await reader.readexactly(72)
            writer.write(b"\x01" + bytes(32))
            heard.append(await reader.read())
            writer.close()

        heard = []
        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LinkError, match="the listener does not know our secret"):
            await connect(f"tcp:127.0.0.1:{port}", Words, print, print, secret=SECRET)
        await until(lambda: heard)
        assert heard == [b""]
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PENSTK\x00\x01", b"PENSTK\x00\x01" + bytes(500)])
def test_strangers_are_let_go_soon_and_never_heard(run, words):
    async def main():
        here = await Here().listen("tcp:127.0.0.1:0", LinkSettings(handshake_s=0.3), secret=SECRET)
        port = int(here.listener.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        begin = time.perf_counter()
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) == 40  # the greeting, and then the end
        assert time.perf_counter() - begin < 2
        assert here.links == []
        assert here.listener._greetings == set()
        writer.close()
        await here.close()

    run(main())


def test_strangers_in_their_handshake_are_bounded(run, monkeypatch):
    async def main():
        monkeypatch.setattr("serving.worker.listener.MAX_GREETINGS", 3)
        here = await Here().listen("tcp:127.0.0.1:0", secret=SECRET)
        port = int(here.listener.address.rpartition(":")[2])
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        await until(lambda: len(here.listener._greetings) == 3)
        greeted = [len(await asyncio.wait_for(_read_some(reader), 5)) for reader, _ in streams]
        assert sorted(greeted) == [0, 0, 40, 40, 40]
        here.listener.close()
        for reader, writer in streams:
            assert await _read_some(reader) == b""
            writer.close()
        assert here.listener._greetings == set()

    run(main())


async def _read_some(reader):
    try:
        return await reader.read(100)
    except ConnectionError:
        return b""


def test_tcp_without_a_secret_is_refused(run):
    async def main():
        with pytest.raises(InputError, match="needs a secret"):
            await listen("tcp:127.0.0.1:0", Words, print, print, print)
        with pytest.raises(InputError, match="needs a secret"):
            await connect("tcp:127.0.0.1:1", Words, print, print)

    run(main())


def test_connecting_waits_for_a_listener_and_gives_up_at_the_deadline(run, tmp_path):
    async def main():
        here = Here()
        early = asyncio.ensure_future(connect(f"unix:{tmp_path}/s", Words, print, lambda *_: None, settings=QUICK))
        await asyncio.sleep(0.2)
        await here.listen(f"unix:{tmp_path}/s")
        link = await early
        await until(lambda: here.links)
        await here.close()
        await link.wait_closed()
        begin = time.perf_counter()
        with pytest.raises(LinkError, match=r"s: no listener within 0.3 s: no such file or directory"):
            await connect(f"unix:{tmp_path}/s", Words, print, print, deadline_s=0.3)
        with pytest.raises(LinkError, match=r"no listener within 0.3 s: .*refused"):
            await connect("tcp:127.0.0.1:1", Words, print, print, secret=SECRET, deadline_s=0.3)
        assert time.perf_counter() - begin < 2

    run(main())


def test_a_closed_listener_takes_its_file_along_but_leaves_links_open(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s")
        link, got, reasons = await here.connect()
        here.listener.close()
        assert list(tmp_path.iterdir()) == []
        here.links[0].send(Say(1))
        await until(lambda: got == [Say(1)])
        assert reasons == []
        other = await Here().listen(f"unix:{tmp_path}/s")
        here.listener.close()  # once more: not the other's file
        assert (tmp_path / "s").exists()
        await other.close()
        await here.close()
        await link.wait_closed()
        assert here.reasons == ["closed"]
        await until(lambda: reasons == ["the other end closed the link: closed"])

    run(main())


def test_links_come_and_go_without_leaving_anything(run, tmp_path):
    async def main():
        here = await Here().listen(f"unix:{tmp_path}/s")
        before = fds()
        for number in range(30):
            link, *_ = await here.connect()
            link.send(Say(number))
            link.close()
            await link.wait_closed()
        await until(lambda: len(here.ended) == 30)
        for link in here.links:
            await link.wait_closed()
        assert fds() == before
        assert [message.number for message in here.got] == list(range(30))
        await here.close()

    run(main())


def test_a_cancelled_connect_leaves_nothing(run):
    async def main():
        silent = socket.create_server(("127.0.0.1", 0))
        connecting = asyncio.ensure_future(
            connect(f"tcp:127.0.0.1:{silent.getsockname()[1]}", Words, print, print, secret=SECRET)
        )
        await asyncio.sleep(0.1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        silent.close()
        await asyncio.sleep(0.05)

    run(main())


def test_without_uvloop_asyncio_serves(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def which():
        return type(asyncio.get_running_loop()).__module__

    assert event_loop.run(which()).startswith("asyncio")
