"""A link: typed control messages between two processes, over one stream socket, in both directions.

All of it runs on one event loop, which may be a thread's beside a busy main thread; other threads `post`.
Every buffer and every wait is bounded (LinkSettings), and a link that ends says why, once, to both ends.
Knows nothing of what the messages mean, nor how the socket was made (connect.py, listener.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar, cast

import msgspec

from placement.errors import InputError
from serving.worker.frames import PING, FrameError, FrameReader, Goodbye, make_frame, make_goodbye
from serving.worker.heartbeat import Heartbeat
from serving.worker.posts import Posts
from serving.worker.settings import LinkSettings

S = TypeVar("S")
R = TypeVar("R")
OnMessage = Callable[["Link[S, R]", R], None]
OnClose = Callable[["Link[S, R]", str], None]

HIGH_WATER_BYTES = 2**20
BATCH_BYTES, BATCH_MESSAGES = 2**16, 128
"""Who sends or gets much lets the loop breathe this often."""
LATE_TICK_S = 0.001
"""After a late tick the next comes soon, once what has arrived is read: it may be a goodbye."""
LINGER_S = 1.0
"""How long a closed link's last bytes may take."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)
_UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError)
_log = logging.getLogger(__name__)


class LinkError(ConnectionError):
    """A link cannot be made, or has ended; its one line says why."""


class Link(asyncio.Protocol, Generic[S, R]):
    """`Link[Send, Receive]`. Call it from its loop's thread, but for `post`; `connect` and `listen` make it."""

    def __init__(
        self,
        peer: str,
        decoder: msgspec.msgpack.Decoder[R],
        on_message: OnMessage[S, R],
        on_close: OnClose[S, R],
        settings: LinkSettings,
    ) -> None:
        self.peer = peer
        self._decoder, self._encode = decoder, msgspec.msgpack.Encoder().encode
        self._on_message, self._on_close = on_message, on_close
        self._payloads: Iterator[bytes] = iter(())
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._heartbeat = Heartbeat(settings, self._loop.time())
        self._reader = FrameReader(settings.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        self._frames: list[bytes] = []
        self._frames_bytes = self._written_bytes = 0
        self._is_flushing = self._is_full = False
        self._drain_waiters: list[asyncio.Future[None]] = []
        self._gone = self._loop.create_future()
        self._posts = Posts(settings.max_unsent_bytes)
        self._writing = threading.Lock()
        """Whoever holds it may write to the socket, and nobody else."""
        self._socket = -1
        """The socket's number, while others than the loop may write to it."""

    # What users call

    def send(self, message: S) -> bool:
        """Queue a message; all of one loop iteration leave in one write. False: the link has ended, nobody gets it."""
        if self._reason is not None:
            return False
        frame = self._make_frame(message)
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)
        if self._frames_bytes > self._settings.max_unsent_bytes:
            self._flush()
        return self._reason is None

    def post(self, message: S, at_once: bool = False) -> bool:
        """`send` from any thread: in order within a thread, one wake-up of the loop for many. `at_once`: this thread
        writes it, if nothing else waits to be sent; for one that has nothing else to do, since the loop, not woken,
        reads nothing either."""
        if self._reason is not None:
            return False
        frame = self._make_frame(message)
        with self._writing:
            rest = frame[self._write_now(frame) :] if at_once else frame
            wakes = bool(rest) and self._posts.put(rest)
        try:
            if wakes:
                self._loop.call_soon_threadsafe(self._take_posts)
        except RuntimeError:  # the loop is closed
            return False
        return not self._posts.is_over

    async def drained(self) -> None:
        """Until little is left to send; who sends much awaits this between messages. LinkError: the link has ended."""
        if self._frames_bytes >= BATCH_BYTES:
            self._flush()
            await asyncio.sleep(0)
        while self._is_full and self._reason is None:
            waiter = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter
        if self._reason is not None:
            raise LinkError(f"{self.peer}: {self._reason}")

    def close(self, reason: str = "closed") -> None:
        """End the link once what was sent is out (within a second); the other end is told the reason."""
        self._take_posts()
        self._end(reason)

    async def wait_closed(self) -> None:
        """Until the socket is gone."""
        await asyncio.shield(self._gone)

    @property
    def reason(self) -> str | None:
        """Why the link has ended; None while it is open."""
        return self._reason

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)
        high = min(HIGH_WATER_BYTES, self._settings.max_unsent_bytes // 2)
        stream.set_write_buffer_limits(high, high // 4)
        self._socket = stream.get_extra_info("socket").fileno()
        self._heartbeat = Heartbeat(self._settings, self._loop.time())
        self._timer = self._loop.call_later(self._heartbeat.tick_s, self._tick)

    def data_received(self, data: bytes) -> None:
        self._payloads = self._reader.feed(data)
        if self._deliver(BATCH_MESSAGES) == BATCH_MESSAGES or len(data) >= BATCH_BYTES:
            self._pause_reading()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake_drain_waiters()

    def eof_received(self) -> None:
        where = " in the middle of a frame" if self._reader.is_mid_frame else ""
        self._end(f"the other end went away{where}", at_once=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep_others_off()
        self._transport = None
        self._deliver(None)
        self._end(f"the connection is lost: {getattr(exc, 'strerror', None) or exc or 'closed'}")
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)

    # Inside

    def _decode(self, payload: bytes) -> R:
        try:
            return self._decoder.decode(payload)
        except _UNREADABLE as error:
            raise FrameError(f"malformed message: {error}") from error

    def _make_frame(self, message: S) -> bytes:
        """An InputError says why a message cannot be sent; the link goes on."""
        try:
            payload = self._encode(message)
        except _UNSENDABLE as error:
            what = type(message).__name__
            raise InputError(f"{self.peer}: this {what} cannot be sent: {type(error).__name__}: {error}") from error
        if len(payload) > self._settings.max_frame_bytes:
            most = self._settings.max_frame_bytes
            raise InputError(f"{self.peer}: a message of {len(payload)} bytes; a frame may have {most}")
        return make_frame(payload)

    def _write_now(self, frame: bytes) -> int:
        """By whoever may write: how many bytes the socket takes at once, none if others wait to be sent before."""
        transport = self._transport
        if self._socket < 0 or transport is None or self._posts or transport.get_write_buffer_size():
            return 0
        try:
            written = os.write(self._socket, frame)
        except OSError:  # it is full, or broken, which the loop will see
            return 0
        self._written_bytes += written
        self._heartbeat.sent()
        return written

    def _keep_others_off(self) -> None:
        """Before the socket is closed: its number may soon be another's."""
        with self._writing:
            self._socket = -1

    def _flush(self) -> None:
        self._is_flushing = False
        with self._writing:
            self._write_frames()
        stream, most = self._transport, self._settings.max_unsent_bytes
        if self._is_full and stream is not None and stream.get_write_buffer_size() > most:
            self._end_overfull()

    def _write_frames(self) -> None:
        posts = self._posts.take()  # the first may be the rest of a frame
        self._frames[:0] = posts
        self._frames_bytes += sum(map(len, posts))
        if self._frames and self._transport is not None:
            self._transport.write(self._frames[0] if len(self._frames) == 1 else b"".join(self._frames))
            self._frames.clear()
            self._written_bytes += self._frames_bytes
            self._frames_bytes = 0
            self._heartbeat.sent()

    def _deliver(self, most: int | None) -> int:
        """Hand on what has come, `most` messages; returns how many."""
        handed = 0
        try:
            for payload in islice(self._payloads, most):
                if self._reason is not None:
                    break
                self._on_message(self, self._decode(payload))
                handed += 1
        except FrameError as error:
            self._end(str(error))
        except Goodbye as goodbye:
            self._end(f"the other end closed the link: {goodbye}", at_once=True)
        except Exception as error:  # what handles messages is another's; its failure must not pass for the loop's
            _log.exception("%s: a message could not be handled", self.peer)
            self._end(f"a message could not be handled: {type(error).__name__}: {error}")
        self._heartbeat.heard()
        return handed

    def _pause_reading(self) -> None:
        """Let the loop breathe: in a flood it would do nothing but read, and give no sign of life."""
        if self._transport is not None and self._reason is None:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._deliver(BATCH_MESSAGES) == BATCH_MESSAGES:
            self._loop.call_soon(self._read_on)
        elif self._transport is not None and self._reason is None:
            self._transport.resume_reading()

    def _take_posts(self) -> None:
        if self._posts.is_over:
            self._end(f"over {self._settings.max_unsent_bytes} bytes were posted before the loop woke")
        elif self._reason is None:
            self._flush()

    def _tick(self) -> None:
        assert self._transport is not None
        beat, unsent = self._heartbeat, self._transport.get_write_buffer_size()
        beat.tick(self._loop.time(), self._written_bytes - unsent, unsent)
        self._timer = self._loop.call_later(LATE_TICK_S if beat.is_late else beat.tick_s, self._tick)
        if beat.complaint is not None:
            self._end(beat.complaint)
        elif beat.is_ping_due and not beat.is_late and not self._is_full:
            self._frames.append(PING)
            self._frames_bytes += len(PING)
            self._flush()

    def _end_overfull(self) -> None:
        self._end(f"the other end reads too slowly: over {self._settings.max_unsent_bytes} bytes wait", at_once=True)

    def _end(self, reason: str, at_once: bool = False) -> None:
        """Let the first reason stand, tell whom it concerns, and let the socket go."""
        if self._reason is not None:
            return
        self._reason = reason
        self._loop.call_soon(self._tell)
        transport = self._transport
        if transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._keep_others_off()
        if at_once:
            self._frames.clear()
            transport.abort()
        else:
            self._frames.append(make_goodbye(reason))
            self._flush()
            transport.close()
            self._timer = self._loop.call_later(LINGER_S, transport.abort)

    def _tell(self) -> None:
        assert self._reason is not None
        self._wake_drain_waiters()
        self._on_close(self, self._reason)

    def _wake_drain_waiters(self) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
