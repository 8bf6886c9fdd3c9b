"""The tables, in words that SQLite and PostgreSQL share, and the version they have."""

from __future__ import annotations

from placement.errors import InputError
from training.queue.database import Database

VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS quotas (username TEXT PRIMARY KEY, jobs BIGINT, devices BIGINT);
CREATE TABLE IF NOT EXISTS controllers (
  name TEXT PRIMARY KEY, epoch BIGINT NOT NULL, host TEXT NOT NULL, pid BIGINT NOT NULL, started BIGINT NOT NULL,
  heartbeat DOUBLE PRECISION NOT NULL, lease_s DOUBLE PRECISION NOT NULL, cluster TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE, username TEXT NOT NULL, type TEXT NOT NULL, job TEXT NOT NULL,
  state TEXT NOT NULL CHECK (
    state IN ('queued', 'starting', 'running', 'suspended', 'finished', 'failed', 'cancelled')
  ),
  why TEXT NOT NULL, submitted DOUBLE PRECISION NOT NULL, arrival DOUBLE PRECISION NOT NULL,
  due DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION, controller TEXT REFERENCES controllers (name), run TEXT,
  process TEXT, folder TEXT, devices TEXT NOT NULL, share DOUBLE PRECISION NOT NULL, observed TEXT NOT NULL,
  attempts BIGINT NOT NULL, failures BIGINT NOT NULL, losses BIGINT NOT NULL, cancelling BIGINT NOT NULL,
  exit_code BIGINT, changed BIGINT NOT NULL DEFAULT 0,
  CHECK ((ended IS NOT NULL) = (state IN ('finished', 'failed', 'cancelled'))),
  CHECK ((controller IS NOT NULL) = (state IN ('starting', 'running'))),
  CHECK (controller IS NULL OR run IS NOT NULL),
  CHECK (cancelling = 0 OR controller IS NOT NULL OR ended IS NOT NULL)
);
CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended, number);
CREATE INDEX IF NOT EXISTS jobs_by_change ON jobs (changed);
CREATE INDEX IF NOT EXISTS jobs_by_user ON jobs (username, number);
CREATE TABLE IF NOT EXISTS events (
  job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, number BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL,
  who TEXT NOT NULL, before TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL, PRIMARY KEY (job, number)
);
"""


def prepare(database: Database) -> None:
    """Make the tables where there are none; refuse those of another version."""
    with database.write() as transaction:
        transaction.run("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BIGINT NOT NULL)")
        found = transaction.all("SELECT value FROM facts WHERE name = 'version'")
        if found:
            if found[0][0] != VERSION:
                raise InputError(f"store {database.name}: version {found[0][0]}; this Penstock reads version {VERSION}")
            return
        for statement in _TABLES.split(";"):
            if statement.strip():
                transaction.run(statement)
        transaction.run("INSERT INTO facts VALUES ('version', ?), ('changes', 0)", VERSION)
