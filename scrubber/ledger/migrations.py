"""Migrate the schema of a ledger; a schema newer than this program is refused.

Only append to ``SCRIPTS``. A script may not change a column that the chain covers: every hash would break. When only
the stored events change, append an empty script: it makes an older program refuse the file.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from scrubber.ground.errors import FatalError

SCRIPTS = (
    """
    CREATE TABLE entries (
        seq    INTEGER PRIMARY KEY,
        device TEXT NOT NULL,
        wall   REAL NOT NULL,
        uptime REAL NOT NULL,
        op     TEXT NOT NULL,
        kind   TEXT NOT NULL,
        body   TEXT NOT NULL,
        prev   TEXT NOT NULL,
        hash   TEXT NOT NULL
    ) STRICT;
    CREATE TABLE snapshot (
        one     INTEGER PRIMARY KEY CHECK (one = 1),
        seq     INTEGER NOT NULL,
        hash    TEXT NOT NULL,
        records TEXT NOT NULL
    ) STRICT;
    """,
)

# SQLite makes these tables when a person runs ANALYZE. They only help it to choose how to search.
_MADE_BY_ANALYZE = frozenset(
    (b"table", name, b"CREATE TABLE %b(%b)" % (name, columns))
    for name, columns in ((b"sqlite_stat1", b"tbl,idx,stat"), (b"sqlite_stat4", b"tbl,idx,neq,nlt,ndlt,sample"))
)


def migrate(connection: sqlite3.Connection, path: Path, scripts: tuple[str, ...] = SCRIPTS) -> None:
    """Bring the schema to the newest version. Each script is one transaction, so a crash leaves a complete version."""
    found = version(connection, path, scripts)
    for number, script in enumerate(scripts[found:], start=found + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def version(connection: sqlite3.Connection, path: Path, scripts: tuple[str, ...] = SCRIPTS) -> int:
    """The file's schema version; FatalError when it is newer than this program."""
    [(found,)] = connection.execute("PRAGMA user_version")
    if found > len(scripts):
        raise FatalError(
            f"cannot open the ledger {path}: its schema is version {found}, this program knows up to {len(scripts)}; "
            "install the newer autoclave again, or move the file away: every GPU is then scrubbed before its next use"
        )
    return int(found)


def foreign(connection: sqlite3.Connection, path: Path) -> str | None:
    """A table, index, view or trigger that this schema version does not have so, or lacks; None if there is none.

    A trigger could change or drop rows as they are written.
    """
    different = (_schema(connection) - _MADE_BY_ANALYZE) ^ _expected(version(connection, path))
    return min((b" ".join(each[:2]).decode(errors="replace") for each in different), default=None)


@cache
def _expected(version: int) -> frozenset[tuple[bytes, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(";".join(SCRIPTS[:version]))
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> frozenset[tuple[bytes, ...]]:
    columns = "CAST(type AS BLOB), CAST(name AS BLOB), CAST(ifnull(sql, '') AS BLOB)"  # damaged text is not UTF-8
    return frozenset(connection.execute(f"SELECT {columns} FROM sqlite_schema"))  # noqa: S608 - our own column names


def outdated(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the schema needs a migration."""
    return version(connection, path) < len(SCRIPTS)
