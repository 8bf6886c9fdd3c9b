"""Limits and times of the endpoint: what one client may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    body_bytes: int = 4 * 2**20
    """Largest body of a request."""
    prompt_tokens: int = 4096
    """Longest prompt; with several inputs, of each."""
    inputs: int = 2048
    """Texts in one request for embeddings."""
    answers: int = 128
    """Prompts times n in one request that generates."""
    open_requests: int = 4096
    """Requests in work at one time; more are told to come back."""
    connections: int = 8192
    """Open connections; more are closed at once."""
    header_bytes: int = 32 * 2**10
    """Request line and headers together."""
    header_s: float = 10.0
    """From the first byte (or the connection's opening) to the last header."""
    body_s: float = 30.0
    """From the last header to the body's last byte."""
    stall_s: float = 30.0
    """A client that reads nothing of its answer for so long is given up."""
    request_s: float = 600.0
    """A request that is not answered completely by then is ended."""
    idle_s: float = 30.0
    """An open connection without a request is closed."""
    drain_s: float = 30.0
    """What open requests get to finish when the server stops."""
    thread_characters: int = 4096
    """Longer texts are turned into tokens beside the event loop."""
    hosts: tuple[str, ...] = ()
    """Further names in the Host header that are this server; `*` takes any."""
    log_requests: bool = True
    """One line a request in the log."""

    def __post_init__(self) -> None:
        assert min(self.body_bytes, self.prompt_tokens, self.inputs, self.answers) >= 1
        assert min(self.header_s, self.body_s, self.stall_s, self.request_s, self.idle_s) > 0
