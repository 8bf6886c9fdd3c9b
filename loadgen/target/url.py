"""Where the server is: the parts of the URL that was given."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from loadgen import checks
from loadgen.errors import TrafficError


@dataclass(frozen=True)
class TargetUrl:
    scheme: str
    host: str
    port: int
    path: str
    """Before /v1; empty, or beginning with a slash."""
    option: str = "--url"
    """By which it was given."""

    @property
    def host_header(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host_header}"

    @property
    def base(self) -> str:
        return self.origin + self.path

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"


def parse_url(text: str, option: str = "--url") -> TargetUrl:
    """`text` with or without /v1 at its end; `option` is where it was typed."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise _wrong(text, option) from None
    is_plain = all("!" <= letter <= "~" for letter in text.strip())
    if (
        not is_plain
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or port == 0
    ):
        raise _wrong(text, option)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return TargetUrl(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path, option)


def _wrong(text: str, option: str) -> TrafficError:
    return TrafficError(
        f"{option}: {checks.shown(text)} is not the URL of a server; give one, such as http://127.0.0.1:8000"
    )
