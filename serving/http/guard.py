"""Keeps web pages out: a page somewhere in the world must not reach a server on loopback through its reader's browser.

Checked are the name the client calls us by (Host), the page a browser comes from (Origin) and the body's type.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

from serving.http.errors import BadRequest, Forbidden, WrongType

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_KNOWN = 256


class Guard:
    """`listen`: the address the server is bound to; `hosts`: further names of it, `*` for any."""

    def __init__(self, listen: str, hosts: Sequence[str] = ()) -> None:
        self._names = {*LOOPBACK, listen.lower(), *(host.lower() for host in hosts)}
        self._any = "*" in hosts
        self._addresses = _is_wildcard(listen)
        if self._addresses:
            self._names.add(socket.gethostname().lower())
        self._known: set[bytes] = set()

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host")
        if host in self._known:
            return
        if host is None:
            raise BadRequest("no Host header; one is needed", code="invalid_host")
        if not self._any and not self._is_ours(host):
            raise Forbidden(f"host {_shown(host)!r} is not this server; name it in `hosts` if it is", code="host")
        if len(self._known) < _MOST_KNOWN:
            self._known.add(host)

    def check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Only for what changes something; programs other than browsers send no Origin."""
        origin = headers.get(b"origin")
        if origin is None:
            return
        if origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower():
            raise Forbidden(f"a page of {_shown(origin)!r} may not ask this server", code="origin")

    def _is_ours(self, host: bytes) -> bool:
        name = _name(host)
        # A page that was re-bound to our address still sends the name it was loaded from, never an address.
        return name in self._names or (self._addresses and _is_address(name))


def check_json(headers: Mapping[bytes, bytes]) -> None:
    """JSON is a type that a page cannot send elsewhere unasked."""
    given = headers.get(b"content-type", b"")
    if given != b"application/json" and given.partition(b";")[0].strip().lower() != b"application/json":
        raise WrongType(f"content-type {_shown(given)!r}; application/json is needed")
    check_encoding(headers)


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise WrongType(f"content-encoding {_shown(encoding)!r}; send the body as it is")


def _name(host: bytes) -> str:
    """Without the port; an IPv6 address without its brackets."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _is_wildcard(listen: str) -> bool:
    return _is_address(listen) and ipaddress.ip_address(listen).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return value[:100].decode("ascii", "replace")
