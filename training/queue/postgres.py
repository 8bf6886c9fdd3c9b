"""The store in PostgreSQL, for controllers of several machines; needs the extra `postgres`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from placement.errors import InputError
from training.queue.database import Row
from training.queue.errors import StoreError

CONNECT_S = 10
LOCK = 0x70656E73
"""Of whoever writes, so that writers go one after the other as they do in SQLite."""
_OPTIONS = "-c lock_timeout=10s -c statement_timeout=30s -c idle_in_transaction_session_timeout=30s"


class PostgresDatabase:
    is_local = False

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise InputError("a store in PostgreSQL needs: pip install 'penstock[postgres]'") from error
        parts = urlsplit(url)
        self.name = f"postgresql://{parts.hostname or ''}{parts.path}"
        self._url, self._psycopg = url, psycopg
        self._lock = threading.Lock()
        try:
            self._connection = self._connect()
        except psycopg.Error as error:
            raise InputError(f"store {self.name}: cannot be opened: {' '.join(str(error).split())}") from error

    @contextmanager
    def read(self) -> Iterator[_Transaction]:
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as transaction:
            yield transaction

    @contextmanager
    def write(self) -> Iterator[_Transaction]:
        with self._transaction("BEGIN") as transaction:
            transaction.all("SELECT pg_advisory_xact_lock(?)", LOCK)
            yield transaction

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[_Transaction]:
        with self._lock:
            try:
                if self._connection.closed:
                    self._connection = self._connect()
                self._connection.execute(begin)
                try:
                    yield _Transaction(self._connection)
                except BaseException:
                    with suppress(self._psycopg.Error):
                        self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except self._psycopg.Error as error:
                raise StoreError(f"store {self.name}: {' '.join(str(error).split())}") from error

    def _connect(self) -> Any:
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=CONNECT_S, options=_OPTIONS)


class _Transaction:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def all(self, sql: str, *values: Any) -> list[Row]:
        found: list[Row] = self._connection.execute(sql.replace("?", "%s"), values).fetchall()
        return found

    def run(self, sql: str, *values: Any) -> int:
        changed: int = self._connection.execute(sql.replace("?", "%s"), values).rowcount
        return changed
