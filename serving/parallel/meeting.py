"""How the processes of a group on one machine find each other: each listens on a socket in a directory that they all
know, and connects to the neighbours of lower rank. When all have come, the directory is empty again.

The directory belongs to whoever starts the group and must be closed to other users. Knows nothing of tensors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from placement.errors import InputError
from serving.parallel.base import PeerLost
from serving.parallel.layout import Layout

LONGEST_PATH = 100
"""Bytes; the kernel's structure for a socket's address has 104 or 108."""
_HELLO = struct.Struct("<4I")  # version, tp, pp, rank
_VERSION = 1
_WELCOME = b"welcome"
_REPLY_BYTES = 512
_RETRY_S = 0.01


@dataclass(frozen=True)
class Meeting:
    layout: Layout
    directory: Path
    end: float
    """When waiting ends, on the monotonic clock."""
    wait_s: float

    def connect(self) -> dict[int, socket.socket]:
        """A socket to each neighbour, by rank."""
        with ExitStack() as kept, self._listener() as listener:
            hosts = {rank: kept.enter_context(self._join(rank)) for rank in neighbours(self.layout) if rank < self.rank}
            guests = self._welcome(listener, kept)
            for rank, host in hosts.items():
                self._await_welcome(rank, host)
            kept.pop_all()
        return hosts | guests

    def take_memory(self, rank: int, peer: socket.socket) -> int:
        """The descriptor of the memory that a neighbour shares."""
        peer.settimeout(self.left_s)
        with self._naming(rank):
            _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        if not descriptors:
            raise PeerLost(f"rank {rank} left while rank {self.rank} was connecting")
        return descriptors[0]

    @property
    def rank(self) -> int:
        return self.layout.rank

    def _path(self, rank: int) -> Path:
        return self.directory / f"{rank}.sock"

    @property
    def left_s(self) -> float:
        return max(self.end - time.monotonic(), 0.001)

    @contextlib.contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        path = self._path(self.rank)
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise InputError(f"{self.directory}: a directory to meet in needs a path of less than 90 bytes")
        if not self.directory.is_dir():
            raise InputError(f"{self.directory}: no directory; the ranks of a group meet in one of their own")
        path.unlink(missing_ok=True)  # of a process that was killed here
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            try:
                listener.listen(self.layout.tp + 1)
                yield listener
            finally:
                path.unlink(missing_ok=True)

    def _join(self, rank: int) -> socket.socket:
        """Connect to a neighbour as soon as it listens, and say who comes."""
        while True:
            host = socket.socket(socket.AF_UNIX)
            try:
                host.connect(str(self._path(rank)))
                host.sendall(_HELLO.pack(_VERSION, self.layout.tp, self.layout.pp, self.rank))
                return host
            except (FileNotFoundError, ConnectionError):
                host.close()
            if time.monotonic() > self.end:
                raise self._missing([rank])
            time.sleep(_RETRY_S)

    def _welcome(self, listener: socket.socket, kept: ExitStack) -> dict[int, socket.socket]:
        """Let all neighbours of higher rank in, and tell them when the last has come, or why not."""
        expected = [rank for rank in neighbours(self.layout) if rank > self.rank]
        guests: dict[int, socket.socket] = {}
        try:
            while len(guests) < len(expected):
                listener.settimeout(self.left_s)
                try:
                    guest = kept.enter_context(listener.accept()[0])
                    guest.settimeout(self.left_s)
                    hello = guest.recv(_HELLO.size)
                except TimeoutError:
                    raise self._missing([rank for rank in expected if rank not in guests]) from None
                except ConnectionError:
                    continue
                if hello:
                    guests[self._name(hello, expected)] = guest
        except (PeerLost, InputError) as failure:
            for guest in guests.values():
                with contextlib.suppress(OSError):
                    guest.sendall(str(failure).encode()[:_REPLY_BYTES])
            raise
        for rank, guest in guests.items():
            with self._naming(rank):
                guest.sendall(_WELCOME)
        return guests

    def _name(self, hello: bytes, expected: list[int]) -> int:
        if len(hello) == _HELLO.size:
            version, tp, pp, rank = _HELLO.unpack(hello)
            if (version, tp, pp) == (_VERSION, self.layout.tp, self.layout.pp) and rank in expected:
                return int(rank)
        raise InputError(f"{self.directory}: a process of another layout or version came to rank {self.rank}")

    def _await_welcome(self, rank: int, host: socket.socket) -> None:
        host.settimeout(self.left_s)
        with self._naming(rank):
            reply = host.recv(len(_WELCOME))
            if reply != _WELCOME:
                host.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    reply += host.recv(_REPLY_BYTES)
                raise PeerLost(reply.decode(errors="replace") or f"rank {rank} left while connecting")

    @contextlib.contextmanager
    def _naming(self, rank: int) -> Iterator[None]:
        """Errors of a socket, with the rank behind it."""
        try:
            yield
        except TimeoutError:
            raise self._missing([rank]) from None
        except ConnectionError:
            raise PeerLost(f"rank {rank} left while rank {self.rank} was connecting") from None

    def _missing(self, ranks: list[int]) -> PeerLost:
        absent = [rank for rank in ranks if not self._path(rank).exists()]
        who, did = (absent, "did not come") if absent else (ranks, "came, but did not finish connecting")
        names = ", ".join(f"rank {rank}" for rank in who)
        return PeerLost(
            f"{names} of {self.layout.devices} {did} within {self.wait_s:g} s, where rank {self.rank} waits"
        )


def neighbours(layout: Layout) -> list[int]:
    """The ranks that a device exchanges tensors with: its stage's, and its place in the stages beside it."""
    beside = [rank for rank in (layout.previous, layout.next) if rank is not None]
    return sorted([rank for rank in layout.stage_ranks if rank != layout.rank] + beside)


def give_memory(peer: socket.socket, descriptor: int) -> None:
    """Share memory with a neighbour, who takes it with take_memory."""
    socket.send_fds(peer, [b"m"], [descriptor])
