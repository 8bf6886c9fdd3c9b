"""The store in a file: SQLite with a write-ahead log, readable by its owner alone."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from placement.errors import InputError
from training.queue.database import Row
from training.queue.errors import StoreError

BUSY_S = 10.0
"""How long a transaction waits for those of other processes."""


class SqliteDatabase:
    is_local = True

    def __init__(self, path: Path, create: bool = True) -> None:
        path = path.absolute()  # no name is special, not even :memory:
        self.name = str(path)
        self._lock = threading.Lock()
        try:
            if create:
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            elif not path.is_file():
                raise InputError(f"store {path}: there is no such file; the first job submitted makes it")
            self._connection = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"store {path}: cannot be opened: {(getattr(error, 'strerror', None) or str(error)).lower()}"
            ) from error

    @contextmanager
    def read(self) -> Iterator[_Transaction]:
        with self._transaction("BEGIN") as transaction:
            yield transaction

    @contextmanager
    def write(self) -> Iterator[_Transaction]:
        with self._transaction("BEGIN IMMEDIATE") as transaction:
            yield transaction

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[_Transaction]:
        with self._lock:
            try:
                self._connection.execute(begin)
                try:
                    yield _Transaction(self._connection)
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise StoreError(f"store {self.name}: {error}") from error

    def _prepare(self) -> None:
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                # Turning to the write-ahead log does not wait for others as transactions do.
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, sql: str, *values: Any) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        return self._connection.execute(sql, values).rowcount
