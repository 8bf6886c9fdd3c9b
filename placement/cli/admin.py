"""Asks a running server's /admin: which key, what goes wrong, in one line."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from placement.cache import cache_folder
from placement.errors import InputError

URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "PENSTOCK_ADMIN_KEY"
WAIT_S = 300.0
"""A new plan is in force when its models are loaded."""


def key_file(port: int) -> Path:
    """Where a server on this machine keeps the admin key it made for itself."""
    return cache_folder("run") / f"{port}.key"


def ask_admin(url: str, path: str, body: bytes | None = None, method: str | None = None) -> Any:
    """GET, or PUT of a body, or another method; an InputError says in one line what stands in the way."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the address of a server; give one such as {URL}")
    headers = {"content-type": "application/json"}
    key = admin_key(parts)
    if key:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        url.rstrip("/") + path, data=body, headers=headers, method=method or ("GET" if body is None else "PUT")
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise InputError(f"{url}: {_told(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"{url}: no Penstock answers there: {getattr(reason, 'strerror', None) or reason}") from error


def admin_key(parts: urllib.parse.SplitResult) -> str:
    """The operator's, or the one that a server on this machine made for itself; nothing where neither is known."""
    given = os.environ.get(KEY_VARIABLE)
    if given:
        return given
    path = key_file(parts.port or 80)
    return path.read_text() if parts.hostname in ("127.0.0.1", "localhost", "::1") and path.is_file() else ""


def _told(error: urllib.error.HTTPError) -> str:
    try:
        told = json.load(error)["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        told = error.reason
    hint = f"; set {KEY_VARIABLE}" if error.code in (401, 403) else ""
    return f"{error.code}: {told}{hint}"
