"""Where a link's listener is: `unix:/path` or `tcp:host:port`. Knows nothing of what is said there."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from placement.errors import InputError

MAX_UNIX_PATH_BYTES = 107
BACKLOG = 128
PROBE_S = 1.0


@dataclass(frozen=True)
class UnixAddress:
    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    kind, _, rest = text.partition(":")
    if kind == "unix":
        return _parse_unix(text, rest)
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if kind != "tcp" or not host or (":" in host and not rest.startswith("[")):
        raise InputError(f"address {text!r}: give unix:/path, tcp:host:port or tcp:[ipv6]:port")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise InputError(f"address {text!r}: port {port!r} is not a number from 0 to 65535")
    return TcpAddress(host, int(port))


def _parse_unix(text: str, path: str) -> UnixAddress:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InputError(f"address {text!r}: give the whole path of a socket, unix:/directory/name")
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH_BYTES:
        raise InputError(f"address {text!r}: {size} bytes of path; a socket's may have {MAX_UNIX_PATH_BYTES}")
    return UnixAddress(Path(path))


def bind_unix(address: UnixAddress) -> socket.socket:
    """A listening socket that nobody but this user can reach; replaces one whose listener is gone."""
    _make_private(address.path.parent)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(address)
        bound.bind(str(address.path))
        os.chmod(address.path, 0o600)  # until here the directory keeps others out
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise InputError(f"{address}: cannot listen there: {explain(error)}") from error
    except InputError:
        bound.close()
        raise
    return bound


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise InputError(f"{directory}: cannot hold a socket: {explain(error)}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise InputError(f"{directory}: open to other users (mode {mode:o}); sockets need a directory of mode 700")


def _remove_stale(address: UnixAddress) -> None:
    try:
        found = address.path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError(f"{address}: a file that is no socket is in its place")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(address.path))
        except ConnectionRefusedError:
            address.path.unlink(missing_ok=True)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE) and not isinstance(error, TimeoutError):
                raise
    raise InputError(f"{address}: another process listens there")


def explain(error: OSError) -> str:
    """What the system says, in few words."""
    if error.errno is not None and error.errno > 0:  # a resolver's numbers are its own
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or "no answer").lower()
