"""Messages cut into frames: 4 bytes of length (little-endian), then so many bytes.

An empty frame is a sign of life. A length with its top bit set is a goodbye: its bytes say why the link ends.
Knows nothing of what is in a message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEAD_BYTES = 4
PING = b"\0\0\0\0"
MAX_GOODBYE_BYTES = 1024

_GOODBYE = 1 << 31
_pack = struct.Struct("<I").pack
_unpack_from = struct.Struct("<I").unpack_from


class FrameError(Exception):
    """The bytes received are no frames of ours."""


class Goodbye(Exception):  # noqa: N818  (not an error: the other end's last words)
    """The other end closes the link; its reason."""


def make_frame(payload: bytes) -> bytes:
    return _pack(len(payload)) + payload


def make_goodbye(reason: str) -> bytes:
    words = reason.encode(errors="replace")[:MAX_GOODBYE_BYTES]
    return _pack(_GOODBYE | len(words)) + words


class FrameReader:
    """Puts chunks together and cuts them into payloads; holds at most one unfinished frame."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_bytes = max_frame_bytes
        self._held = bytearray()
        self._needed_bytes = HEAD_BYTES  # before the next look is worth while

    @property
    def is_mid_frame(self) -> bool:
        return bool(self._held)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The payloads completed by this chunk, pings left out. Raises FrameError or Goodbye after those before it."""
        if self._held:
            self._held += chunk
            if len(self._held) < self._needed_bytes:
                return
            chunk = bytes(self._held)
            self._held.clear()
        start, size = 0, len(chunk)
        while size - start >= HEAD_BYTES:
            (length,) = _unpack_from(chunk, start)
            if length > self._max_bytes:
                self._check_goodbye(length)
            end = start + HEAD_BYTES + (length & ~_GOODBYE)
            if end > size:
                self._needed_bytes = end - start
                break
            if length & _GOODBYE:
                raise Goodbye(chunk[start + HEAD_BYTES : end].decode(errors="replace"))
            if length:
                yield chunk[start + HEAD_BYTES : end]
            start = end
        else:
            self._needed_bytes = HEAD_BYTES
        if start < size:
            self._held += chunk[start:]

    def _check_goodbye(self, length: int) -> None:
        if not length & _GOODBYE:
            raise FrameError(f"a frame of {length} bytes was announced; {self._max_bytes} is the most allowed")
        if length & ~_GOODBYE > MAX_GOODBYE_BYTES:
            raise FrameError("malformed frame: its length makes no sense")
