"""The bytes of one HTTP/1.1 answer, fed as they come; the body goes on to whoever reads it. Knows no sockets."""

from __future__ import annotations

from typing import Literal

from loadgen.target.answers import Reading

_LONGEST_HEAD = 2**16
State = Literal["head", "length", "chunk size", "chunk", "chunk end", "trailer", "until close", "complete"]


class NotHttp(Exception):  # noqa: N818  (it says what happened)
    """What came is no HTTP/1.1 answer."""


class Response:
    __slots__ = ("_buffer", "_left", "_reading", "keeps_alive", "state")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._buffer = b""
        self._left = 0
        self.keeps_alive = True
        self.state: State = "head"

    def feed(self, data: bytes, now_s: float) -> None:
        """NotHttp when it cannot be read."""
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer and self.state != "complete" and self._step(now_s):
            pass
        if self.state == "complete" and self._buffer:
            self.keeps_alive = False  # more than was announced: what follows cannot be told apart

    def close(self) -> None:
        """The server closed the connection: for some answers this is the end."""
        self.keeps_alive = False
        if self.state == "until close":
            self.state = "complete"

    def _step(self, now_s: float) -> bool:
        """One part of the answer; False when more bytes are needed."""
        match self.state:
            case "head":
                return self._head()
            case "length" | "chunk":
                self._body(now_s)
            case "chunk size":
                line = self._line()
                if line is None:
                    return False
                self._left = _whole(line.partition(b";")[0], 16)
                self.state = "chunk" if self._left else "trailer"
            case "chunk end":
                line = self._line()
                if line is None:
                    return False
                self.state = "chunk size"
            case "trailer":
                line = self._line()
                if line is None:
                    return False
                if not line:
                    self.state = "complete"
            case "until close":
                self._reading.feed(self._buffer, now_s)
                self._buffer = b""
        return True

    def _head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            if len(head) > _LONGEST_HEAD:
                raise NotHttp
            return False
        first, *lines = head.split(b"\r\n")
        version, _, told = first.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise NotHttp
        status = _whole(told[:3], 10)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._buffer = rest
        if 100 <= status < 200:  # the real answer follows
            return True
        self.keeps_alive = version != b"HTTP/1.0" and headers.get(b"connection", b"").lower() != b"close"
        self._reading.begin(status, headers.get(b"content-type", b"").decode("latin-1"))
        if headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self.state = "chunk size"
        elif b"content-length" in headers:
            self._left = _whole(headers[b"content-length"], 10)
            self.state = "length" if self._left else "complete"
        else:
            self.state = "complete" if status in (204, 304) else "until close"
        return True

    def _body(self, now_s: float) -> None:
        part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(part)
        self._reading.feed(part, now_s)
        if not self._left:
            self.state = "complete" if self.state == "length" else "chunk end"

    def _line(self) -> bytes | None:
        line, end, rest = self._buffer.partition(b"\r\n")
        if not end:
            if len(line) > _LONGEST_HEAD:
                raise NotHttp
            return None
        self._buffer = rest
        return line


def _whole(text: bytes, base: int) -> int:
    try:
        value = int(text, base)
    except ValueError:
        raise NotHttp from None
    if value < 0:
        raise NotHttp
    return value
