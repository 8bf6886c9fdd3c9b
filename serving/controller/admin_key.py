"""The key of /admin: the operator's, or one made for this run and kept where only this user can read it, so that
`penstock status` works on this machine without further ado.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from placement.cli.admin import key_file
from serving.http import Keys, read_keys
from serving.http.auth import ADMIN_VARIABLE
from serving.http.guard import LOOPBACK


def keys_with_admin(file: str | None, environment: Mapping[str, str], host: str) -> tuple[Keys, str | None]:
    """The keys, and the admin key if it was made here. Where nobody set any, anybody on this machine may look."""
    path = None if file is None else Path(file)
    keys = read_keys(path, environment)
    if keys.has_admin:
        return keys, None
    made = secrets.token_urlsafe(32)
    keys = read_keys(path, dict(environment) | {ADMIN_VARIABLE: made})
    keys.may_anybody_look = keys.is_open and host in LOOPBACK
    return keys, made


@contextmanager
def keep_key(port: int, key: str | None) -> Iterator[None]:
    """While the server runs; a key that cannot be kept is no reason to fail."""
    if key is None:
        yield
        return
    path = key_file(port)
    try:
        lock = _keep(path, key)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _keep(path: Path, key: str) -> int:
    """Write the file, and hold its lock as long as the returned handle is open: nobody's file has no lock."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in path.parent.glob("*.key"):
        _remove_if_nobodys(other)
    fresh = path.with_suffix(f".{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.write(handle, key.encode())
    fresh.replace(path)
    return handle


def _remove_if_nobodys(path: Path) -> None:
    """A server that was killed leaves its file behind."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
