"""Frames that other threads leave for a link's loop. Bounded: past its bound it takes no more, ever. One thread at a
time: the link holds its lock.
"""

from __future__ import annotations


class Posts:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: list[bytes] = []
        self._bytes = 0
        self.is_over = False

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._frames)

    def put(self, frame: bytes) -> bool:
        """Whether the loop must be woken: for the first frame since it took them, and for the one too many."""
        if self.is_over:
            return False
        self.is_over = self._bytes + len(frame) > self._max_bytes
        is_first = not self._frames
        if not self.is_over:
            self._frames.append(frame)
            self._bytes += len(frame)
        return is_first or self.is_over

    def take(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        self._bytes = 0
        return frames
