"""What a route is: the one description from which requests are dispatched and the OpenAPI page is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from serving.http.call import Call

Access = Literal["open", "key", "look", "admin"]


@dataclass(frozen=True, kw_only=True)
class Route:
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """Starlette's form: {name} is one part of a path, {name:path} any number."""
    handle: Callable[[Call], Awaitable[None]]
    summary: str
    tag: str
    access: Access = "key"
    """open: to anybody, under any host name; key: a tenant's key; admin: the admin key; look: the same, unless anybody
    may look."""
    body: Any = None
    """The body's type; None when there is none."""
    answer: Any = None
    """Its type, if it is JSON."""
    media: str = "application/json"
    streams: bool = False
    """Whether the answer can come as server-sent events."""
    any_type: bool = False
    """Whether bodies other than JSON are taken."""
    plain_errors: bool = False
    """KServe's {"error": "..."} instead of OpenAI's shape."""
    statuses: tuple[int, ...] = (200,)
    """Under which its answer comes."""

    @property
    def changes(self) -> bool:
        return self.method != "GET"
