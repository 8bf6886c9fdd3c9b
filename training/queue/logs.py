"""Reading a job's log: its last bytes, or what has come since a place in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.queue.keeper import LOGS, segments

MOST_BYTES = 2**20
"""Of one part."""


@dataclass(frozen=True)
class LogPart:
    """Bytes `start` .. `end` of everything the job has written."""

    data: bytes
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


def read_log(folder: str | None, offset: int = 0, most_bytes: int = MOST_BYTES) -> LogPart:
    """From `offset` on, or from the first byte that is still kept; negative: so many bytes before the end."""
    if folder is None:
        return LogPart(b"", 0, 0)
    logs = Path(folder) / LOGS
    starts = segments(logs)
    if not starts:
        return LogPart(b"", 0, 0)
    size = _size(logs / _name(starts[-1]))
    end = starts[-1] + size
    start = min(max(end + offset if offset < 0 else offset, starts[0]), end)
    parts: list[bytes] = []
    place = start
    for begin, after in zip(starts, [*starts[1:], end], strict=True):
        if after <= place or place - start >= most_bytes:
            continue
        try:
            with open(logs / _name(begin), "rb") as file:
                file.seek(place - begin)
                data = file.read(min(after - place, most_bytes - (place - start)))
        except FileNotFoundError:  # too old, meanwhile
            start = place = after
            parts.clear()
            continue
        parts.append(data)
        place += len(data)
    return LogPart(b"".join(parts), start, place)


def _name(start: int) -> str:
    return f"{start:016d}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
