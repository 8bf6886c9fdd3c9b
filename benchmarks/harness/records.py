"""What a long benchmark has measured so far, a JSON line each, so that it can go on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Records:
    """In memory, and in a file if there is one. What the fields `key` name is measured once."""

    def __init__(self, path: Path | None, key: tuple[str, ...]) -> None:
        self._path, self._key = path, key
        self.all: list[Record] = []
        if path is not None and path.is_file():
            self.all = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]

    def has(self, **fields: Any) -> bool:
        return any(all(record.get(name) == fields.get(name) for name in self._key) for record in self.all)

    def add(self, record: Record) -> None:
        self.all.append(record)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
