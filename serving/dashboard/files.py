"""The page's files: few, small, in memory; plotly's JavaScript from its own package. Nothing else can be asked for."""

from __future__ import annotations

import asyncio
import gzip
from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

from serving.http.call import Call, Headers

TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json",
    "svg": b"image/svg+xml",
}
PLOTLY = "plotly.js"
# Plotly writes its style into the page; nothing is fetched from anywhere else, and nobody may frame it.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    b"img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageFile:
    """One file, as a route answers it: packed where the client takes that, and not again to one that has it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._type = TYPES[name.rpartition(".")[2]]
        self._kept: _Kept | None = None

    async def __call__(self, call: Call) -> None:
        if self._kept is None:  # plotly's takes a quarter of a second to pack, which no request shall wait for
            self._kept = await asyncio.to_thread(_read, self._name)
        kept = self._kept
        headers: Headers = [
            (b"etag", kept.tag),
            (b"cache-control", b"no-cache"),
            (b"vary", b"accept-encoding"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        ]
        if self._type == TYPES["html"]:
            headers.append((b"content-security-policy", POLICY))
        if call.headers.get(b"if-none-match") == kept.tag:
            await call.answer(b"", 304, self._type, headers)
        elif b"gzip" in call.headers.get(b"accept-encoding", b""):
            await call.answer(kept.packed, 200, self._type, [*headers, (b"content-encoding", b"gzip")])
        else:
            await call.answer(await asyncio.to_thread(gzip.decompress, kept.packed), 200, self._type, headers)


class _Kept(NamedTuple):
    packed: bytes
    tag: bytes
    """Another one when the file changes."""


def page_files() -> list[str]:
    folder = files("serving.dashboard") / "page"
    return sorted(one.name for one in folder.iterdir() if one.name.rpartition(".")[2] in TYPES)


def _read(name: str) -> _Kept:
    if name == PLOTLY:
        plain = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    else:
        plain = (files("serving.dashboard") / "page" / name).read_bytes()
    tag = b'"' + blake2b(plain, digest_size=12).hexdigest().encode() + b'"'
    return _Kept(gzip.compress(plain, 6, mtime=0), tag)
