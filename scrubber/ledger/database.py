"""The SQLite file: its schema, its rows, and its errors as messages that say what to do.

A schema newer than this program is refused. Increase ``VERSION`` when the schema or the stored events change after a
release: it makes an older program refuse the file. The first such change also needs code that brings a file of the
version before to the new one. It may not change a column that the chain covers: every hash would break.
"""

from __future__ import annotations

import errno
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple
from functools import cache
from pathlib import Path

from ground.errors import FatalError, LedgerUnavailable
from ground.private_files import ForeignFileError
from scrubber.core import events
from scrubber.ledger import chain, store

APPLICATION_ID = 0x41_43_4C_47  # "ACLG": tells a ledger from any other database, for file(1) too
BUSY_SECONDS = 2.0
WAL_BYTES = 4 << 20  # the most that the -wal file keeps after a checkpoint

EARLIEST, LATEST = -(2**63), 2**63 - 1  # the numbers that a row may have, also a damaged one

_COLUMNS = ", ".join(chain.ChainRow._fields)
_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_KEEP = "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RANGE = "SELECT {columns} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
_ENTRIES = _RANGE.format(columns=_COLUMNS, table="entries")
_EVIDENCE = _RANGE.format(columns=_COLUMNS, table="evidence")
_NEWEST = """
    SELECT {columns} FROM {table}
    WHERE kind NOT IN ('ledger-begun', 'ledger-compacted')
    AND (?1 IS NULL OR device = ?1) AND (?2 IS NULL OR wall >= ?2) AND (?7 IS NULL OR wall <= ?7)
    AND seq > ?4 AND (?5 IS NULL OR seq < ?5) AND (?6 IS NULL OR kind IN (SELECT value FROM json_each(?6)))
    ORDER BY seq DESC LIMIT ?3
"""
_NEWEST_ENTRIES = _NEWEST.format(columns=_COLUMNS, table="entries")
_NEWEST_EVIDENCE = _NEWEST.format(columns=_COLUMNS, table="evidence")
_NEWEST_WARNINGS = _NEWEST_EVIDENCE.replace("WHERE", "WHERE warning AND")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}

VERSION = 2  # of the schema and of the stored events
SCHEMA = """
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
    CREATE TABLE evidence (
        seq     INTEGER PRIMARY KEY,
        device  TEXT NOT NULL,
        wall    REAL NOT NULL,
        uptime  REAL NOT NULL,
        op      TEXT NOT NULL,
        kind    TEXT NOT NULL,
        body    TEXT NOT NULL,
        prev    TEXT NOT NULL,
        hash    TEXT NOT NULL,
        warning INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX evidence_warnings ON evidence (seq) WHERE warning;
    CREATE TABLE batches (
        cut    INTEGER PRIMARY KEY,
        rows   INTEGER NOT NULL,
        newest REAL NOT NULL,
        digest TEXT NOT NULL
    ) STRICT;
"""

# SQLite makes these tables when a person runs ANALYZE. They only help it to choose how to search.
_MADE_BY_ANALYZE = frozenset(
    (b"table", name, b"CREATE TABLE %b(%b)" % (name, columns))
    for name, columns in ((b"sqlite_stat1", b"tbl,idx,stat"), (b"sqlite_stat4", b"tbl,idx,neq,nlt,ndlt,sample"))
)


def create(path: Path, first: chain.ChainRow) -> None:
    """Make an empty file a ledger with its first row."""
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # SQLite accepts this for an empty file only
        make_durable(connection)
        with transaction(connection):
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            insert(connection, [first])
        checkpoint(connection)  # closing does it too, but does not report an error


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """FatalError if the schema is newer than this program."""
    [(found,)] = connection.execute("PRAGMA user_version")
    if found > VERSION:
        raise FatalError(
            f"cannot open the ledger {path}: its schema is version {found}, this program knows up to {VERSION}; "
            "install the newer autoclave again, or move the file away: every GPU is then scrubbed before its next use"
        )


def _foreign(connection: sqlite3.Connection) -> str | None:
    """A table, index, view or trigger that differs from what this program creates, or is missing; None if all agree.

    A trigger could change or drop rows as they are written.
    """
    different = (_schema(connection) - _MADE_BY_ANALYZE) ^ _expected()
    return min((b" ".join(each[:2]).decode(errors="replace") for each in different), default=None)


@cache
def _expected() -> frozenset[tuple[bytes, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> frozenset[tuple[bytes, ...]]:
    columns = "CAST(type AS BLOB), CAST(name AS BLOB), CAST(ifnull(sql, '') AS BLOB)"  # damaged text is not UTF-8
    return frozenset(connection.execute(f"SELECT {columns} FROM sqlite_schema"))  # noqa: S608 - our own column names


def connect(path: Path, query: str = "mode=rw") -> sqlite3.Connection:
    """A connection in autocommit mode. Text is returned as bytes, because damaged text may not be valid UTF-8."""
    # check_same_thread: the store has one writer, but another thread may close it.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes
    return connection


def make_durable(connection: sqlite3.Connection) -> None:
    """From now on, each commit is on the disk when it returns. It costs one fdatasync."""
    [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
    if mode != b"wal":
        raise LedgerUnavailable("cannot use the ledger: its file system has no shared memory; use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    # A crash or a failed write may have left rows in the -wal file: move them before new rows follow.
    checkpoint(connection)


def checkpoint(connection: sqlite3.Connection) -> None:
    """Move the write-ahead log into the database file on the disk. A concurrent reader is no error."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit at the end of the block; roll back on any error."""
    connection.execute(begin)
    try:
        yield
    except BaseException:  # any error, a cancellation too: roll back and raise it again
        if connection.in_transaction:  # SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def rows(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[chain.ChainRow]:
    """Rows in order. The default range includes rows with a damaged number."""
    return map(_row, connection.execute(_ENTRIES, (first, last)))


def evidence(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[chain.ChainRow]:
    """The evidence among the folded rows, in order."""
    return map(_row, connection.execute(_EVIDENCE, (first, last)))


def newest(
    connection: sqlite3.Connection, device: str | None, since: float | None, limit: int, window: store.Window
) -> tuple[chain.ChainRow, ...]:
    """The newest rows that hold events, newest last. All evidence is older than all other rows."""
    kinds = json.dumps(sorted(window.kinds)) if window.kinds else None
    found: list[tuple[object, ...]] = []
    for statement in (_NEWEST_ENTRIES, _NEWEST_WARNINGS if window.warnings else _NEWEST_EVIDENCE):
        wanted = (device, since, limit - len(found), window.after, window.before, kinds, window.until)
        found += connection.execute(statement, wanted)
    return tuple(_row(columns) for columns in reversed(found))


def kept(connection: sqlite3.Connection) -> store.Kept:
    """From which wall times on there are rows."""
    oldest = "SELECT CASE seq WHEN 1 THEN 0.0 ELSE wall END FROM {} ORDER BY seq LIMIT 1"
    [steps] = connection.execute(oldest.format("entries")).fetchone()
    [since] = connection.execute(oldest.format("evidence")).fetchone() or [steps]
    return store.Kept(since, steps)


def insert(connection: sqlite3.Connection, new: Iterable[chain.ChainRow]) -> None:
    """Append rows."""
    connection.executemany(_INSERT, new)


def head(connection: sqlite3.Connection) -> store.Head:
    """The newest row's number and hash, unverified."""
    found = connection.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return store.Head(found[0], _text(found[1], found[0])) if found else chain.START


def cut(connection: sqlite3.Connection) -> chain.MissingTail | None:
    """The snapshot of the last compaction, if any."""
    match connection.execute("SELECT seq, hash, records FROM snapshot").fetchone():
        case None:
            return None
        case (int(seq), bytes(digest), bytes(records)):
            return chain.MissingTail(
                store.Head(seq, _text(digest, None)), _text(records, None), tuple(_batches(connection))
            )
        case _:
            raise store.CorruptLedgerError("cannot read the snapshot: a column has the wrong type")


def _batches(connection: sqlite3.Connection) -> Iterator[chain.Batch]:
    for columns in connection.execute("SELECT cut, rows, newest, digest FROM batches ORDER BY cut"):
        match columns:
            case (int(cut), int(count), float(newest_wall), bytes(digest)):
                yield chain.Batch(cut, count, newest_wall, _text(digest, None))
            case _:
                raise store.CorruptLedgerError("cannot read a batch of evidence: a column has the wrong type")


def fold(connection: sqlite3.Connection, new: chain.MissingTail, folded: Iterable[chain.ChainRow]) -> None:
    """Replace the rows that the snapshot covers with the snapshot, and keep those of them that are evidence."""
    rated = ((row, chain.entry(row)) for row in chain.evidence(folded))
    connection.executemany(
        _KEEP, ((*row, entry is not None and events.is_warning(entry.event)) for row, entry in rated)
    )
    remaining = sum(it.rows for it in new.batches)
    gone = "SELECT seq FROM evidence ORDER BY seq DESC LIMIT 1 OFFSET ?"  # the newest row of the batches that go
    connection.execute(f"DELETE FROM evidence WHERE seq <= ({gone})", (remaining,))  # noqa: S608 - our own words
    connection.execute("DELETE FROM batches")
    connection.executemany(
        "INSERT INTO batches (cut, rows, newest, digest) VALUES (?, ?, ?, ?)", map(astuple, new.batches)
    )
    connection.execute("DELETE FROM entries WHERE seq <= ?", (new.head.seq,))
    connection.execute(
        "INSERT OR REPLACE INTO snapshot (one, seq, hash, records) VALUES (1, ?, ?, ?)",
        (new.head.seq, new.head.hash, new.records),
    )


def shrink(connection: sqlite3.Connection) -> None:
    """Return free pages to the file system; the stored data does not change."""
    connection.executescript("PRAGMA incremental_vacuum")  # frees one page a step; execute() does one step only
    checkpoint(connection)


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """CorruptLedgerError unless the file is a ledger with no other tables, and SQLite finds no damage in it."""
    refuse_newer(connection, path)
    marks = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
    if marks != [(APPLICATION_ID,), (VERSION,)]:
        raise store.CorruptLedgerError(
            "cannot read the ledger: the file is not a ledger (wrong application id or version)"
        )
    # Not quick_check: compaction keeps the file small enough for the complete check at every start.
    [(verdict,), *_] = connection.execute("PRAGMA integrity_check(1)")
    if verdict != b"ok":
        raise store.CorruptLedgerError(f"cannot read the ledger: the SQLite file is damaged ({verdict.decode()})")
    if (unknown := _foreign(connection)) is not None:
        raise store.CorruptLedgerError(f"cannot read the ledger: {unknown} is not as this program creates it")


def _row(columns: tuple[object, ...]) -> chain.ChainRow:
    match columns:
        case (int(seq), bytes(), float(wall), float(uptime), bytes(), bytes(), bytes(), bytes(), bytes()) if (
            math.isfinite(wall) and math.isfinite(uptime)
        ):
            return chain.ChainRow._make(_text(it, seq) if isinstance(it, bytes) else it for it in columns)
        case (int(seq), *_):
            raise store.CorruptLedgerError(f"row {seq} was changed: a column has the wrong type", seq)
        case _:
            raise store.CorruptLedgerError("cannot read a row: it has no number")


def _text(stored: bytes, seq: int | None) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        place = "the snapshot" if seq is None else f"row {seq}"
        raise store.CorruptLedgerError(f"{place} was changed: a column is not text", seq) from error


@contextmanager
def translated(action: str, path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the kernel into LedgerUnavailable; ``action`` as in "write to the ledger"."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of this program, not a fault of the ledger
    except UnicodeDecodeError as error:  # SQLite's message names a damaged part of the schema
        raise _damaged(error, action, path) from error
    except sqlite3.Error as error:
        raise _from_sqlite(error, action, path) from error
    except OSError as error:
        raise LedgerUnavailable(f"cannot {action} {path}: {_from_kernel(error, path)}") from error


def _from_sqlite(error: sqlite3.Error, action: str, path: Path) -> LedgerUnavailable:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte is the family
        case sqlite3.SQLITE_FULL:
            why = _full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            why = _read_only(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            why = "another program has it locked; close that program (an open sqlite3 shell, a backup)"
        case sqlite3.SQLITE_CANTOPEN:
            why = f"it cannot be opened; check that {path.parent} exists and that this user may write to it"
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOLFS:
            why = f"the disk reports an I/O error ({name}); check the kernel log and the disk"
        case _:
            return _damaged(error, action, path)
    return LedgerUnavailable(f"cannot {action} {path}: {why}")


def _damaged(error: Exception, action: str, path: Path) -> store.CorruptLedgerError:
    damage = f"the file is damaged ({error}); restart the service, which sets the file aside"
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        damage = "it is not a ledger, or its first bytes are damaged; if it is the service's own, restart the service"
    return store.CorruptLedgerError(f"cannot {action} {path}: {damage}")


def _from_kernel(error: OSError, path: Path) -> str:
    if isinstance(error, ForeignFileError):
        return f"{error.filename}: {error.strerror}"
    if error.errno in _FULL:
        return _full(path)
    if error.errno in _READ_ONLY:
        return _read_only(path)
    return f"{error.strerror or error}; check the kernel log and the disk"


def _full(path: Path) -> str:
    return f"the disk is full or a size limit is reached; free some space under {path.parent}"


def _read_only(path: Path) -> str:
    return f"it is read-only; mount {path.parent} writable, or correct its permissions"
