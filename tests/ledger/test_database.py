"""The schema moves forward only, one whole step at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scrubber.ground.errors import FatalError
from scrubber.ledger import database

PATH = Path("ledger.sqlite")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as it:
        yield it


def test_every_migration_runs_once_and_in_order(connection: sqlite3.Connection) -> None:
    steps = ("CREATE TABLE t (a)", "INSERT INTO t VALUES (1); ALTER TABLE t ADD b", "")
    database.migrate(connection, PATH, steps[:1])
    database.migrate(connection, PATH, steps)
    database.migrate(connection, PATH, steps)
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, None)]
    assert database.schema_version(connection, PATH, steps) == 3


def test_a_failed_migration_leaves_the_previous_schema_version(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.Error):
        database.migrate(connection, PATH, ("CREATE TABLE t (a)", "CREATE TABLE u (a); nonsense"))
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
    assert database.schema_version(connection, PATH) == 1


def test_a_newer_schema_is_refused_in_words_and_left_alone(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA user_version = 7")
    with pytest.raises(FatalError, match=r"schema is version 7, this program knows up to 2.*install the newer"):
        database.migrate(connection, PATH)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == []
