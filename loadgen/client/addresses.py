"""Where connections go: a host's addresses, asked for once, so that no connection waits for the name again."""

from __future__ import annotations

import asyncio
import socket

from loadgen.target.url import TargetUrl


async def addresses_of(url: TargetUrl) -> list[str]:
    """In the order in which to try them; the name itself while it is not known."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError:
        return [url.host]
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
