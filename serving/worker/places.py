"""Where the processes of a group find each other: sockets in a directory of this machine, or TCP ports and a secret."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec

from placement.errors import InputError
from serving.parallel import Backend
from serving.worker.address import TcpAddress, UnixAddress, explain
from serving.worker.handshake import check_secret


class Tcp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group whose devices may be on several machines: all and the controller connect to the first one's host."""

    host: str
    """Of the group's first device, as the others reach it."""
    secret: str
    """Who does not know it is turned away."""
    ports: tuple[int, int, int] | None = None
    """On that host, for the controller, the other devices and the store they meet at; chosen where absent, which a host
    of this machine alone allows."""
    folder: str | None = None
    """On that host, of this group alone, where all its devices share memory; a folder of this machine when absent."""

    def __post_init__(self) -> None:
        check_secret(self.secret.encode(), f"tcp:{self.host}")
        if self.ports is not None and not all(0 < port < 2**16 for port in self.ports):
            raise InputError(f"tcp:{self.host}: ports are {self.ports}; give three from 1 to 65535")

    def __repr__(self) -> str:
        return f"Tcp({self.host!r}, {self.ports})"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """As a WorkerDocument names them."""

    control: str
    leader: str
    rendezvous: str
    secret: str | None = None


def make_places(directory: Path, tcp: Tcp | None, backend: Backend) -> Places:
    """`directory`: of this group alone, for what is on one machine."""
    if tcp is None:
        control, leader = (str(UnixAddress(directory / name)) for name in ("control", "leader"))
        store, secret = f"file://{directory}/store", None
    else:
        ports = tcp.ports or _free_ports(tcp.host)
        control, leader, store = (str(TcpAddress(tcp.host, port)) for port in ports)
        store, secret = store.replace("tcp:", "tcp://", 1), tcp.secret
    shared = str(directory) if tcp is None or tcp.folder is None else tcp.folder
    met = shared if backend == "shared" else store
    return Places(control=control, leader=leader, rendezvous=met, secret=secret)


def _free_ports(host: str) -> tuple[int, int, int]:
    """All three are taken at once, so that they differ; they are free again when this returns."""
    with ExitStack() as kept:
        try:
            found = [_bind(host, kept) for _ in range(3)]
        except OSError as error:
            raise InputError(f"tcp:{host}: not a host of this machine, so give its ports: {explain(error)}") from error
    return found[0], found[1], found[2]


def _bind(host: str, kept: ExitStack) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
    bound.bind((host, 0))
    port: int = bound.getsockname()[1]
    return port
