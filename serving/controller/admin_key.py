"""The key of /admin: the operator's, or one made for this run and kept where only this user can read it, so that
`penstock status` works on this machine without further ado.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from placement.cli.admin import key_file
from serving.http import Keys, read_keys
from serving.http.auth import ADMIN_VARIABLE


def keys_with_admin(file: str | None, environment: Mapping[str, str]) -> tuple[Keys, str | None]:
    """The keys, and the admin key if it was made here."""
    path = None if file is None else Path(file)
    keys = read_keys(path, environment)
    if keys.has_admin:
        return keys, None
    made = secrets.token_urlsafe(32)
    return read_keys(path, dict(environment) | {ADMIN_VARIABLE: made}), made


@contextmanager
def keep_key(port: int, key: str | None) -> Iterator[None]:
    """While the server runs; a key that cannot be kept is no reason to fail."""
    if key is None:
        yield
        return
    path = key_file(port)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as kept:
            kept.write(key)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
