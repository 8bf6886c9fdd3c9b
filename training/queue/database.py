"""What the store asks of a database: transactions of which at most one writes at a time. Knows nothing of jobs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from placement.errors import InputError

SQLITE = "sqlite:///"
POSTGRES = "postgresql://"

Row = tuple[Any, ...]


class Transaction(Protocol):
    def all(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a query; `?` stands for a value."""
        ...

    def run(self, sql: str, *values: Any) -> int:
        """How many rows it changed."""
        ...


class Database(Protocol):
    """Its errors are StoreErrors. Any thread may use it."""

    name: str
    """For messages: no password is in it."""
    is_local: bool
    """Whether only this machine can reach it."""

    def read(self) -> AbstractContextManager[Transaction]:
        """One state of everything, however many queries look at it."""
        ...

    def write(self) -> AbstractContextManager[Transaction]:
        """Nobody else writes meanwhile; all of it happens, or nothing when an exception leaves the block."""
        ...

    def close(self) -> None: ...


def open_database(url: str, create: bool = True) -> Database:
    """By its URL (such as sqlite:///penstock.db); an InputError says in one line why it cannot be opened."""
    if url.startswith(SQLITE):
        from training.queue.sqlite import SqliteDatabase

        return SqliteDatabase(Path(url.removeprefix(SQLITE)), create)
    if url.startswith(POSTGRES):
        from training.queue.postgres import PostgresDatabase

        return PostgresDatabase(url)
    raise InputError(f"store {url[:200]!r}: expected {SQLITE}FILE or {POSTGRES}...")
