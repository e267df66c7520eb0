"""The SQLite database of a ledger: tables and schema, reading and inserting rows, and whether a file is as written.

It is in WAL mode, and each commit costs one fdatasync. Each row is a leaf of a Merkle tree (``tree``).

Increase ``VERSION`` when the schema or the stored events change: it makes an older program refuse the file. Each format
reads the one before it. Such a change also takes a state of that format in ``tests/ledger/states``. It must not change
a column of a row: every hash would break.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from ground.errors import FatalError, LedgerUnavailable
from scrubber.core.events import IllegalEventError, LedgerEntry
from scrubber.core.record import Record
from scrubber.ledger import compaction, ledger_rows, tree
from scrubber.ledger.compaction import Batch, Fold, Snapshot
from scrubber.ledger.ledger_rows import CorruptLedgerError, LedgerRow
from scrubber.receipts.merkle import Frontier, Head

REMEMBERED = 1_000  # rows in memory, about seventy scrubs
AT_ONCE = 500  # rows that are in memory at once while a ledger is loaded
APPLICATION_ID = 0x41_43_4C_47  # "ACLG": tells a ledger from any other database, for file(1) too
BUSY_SECONDS = 1.8  # a write that waits for a lock must not look like a disk that hangs (``ledger.SLOW``)
WAL_BYTES = 4 << 20  # the most that the -wal file keeps after a checkpoint

EARLIEST, LATEST = -(2**63), 2**63 - 1  # the numbers that a row may have, also a damaged one

VERSION = 10  # of the schema and of the stored events; the one before it can be read, too
SCHEMA = (
    """
    CREATE TABLE entries (
        seq    INTEGER PRIMARY KEY,
        device TEXT NOT NULL,
        wall   REAL NOT NULL,
        uptime REAL NOT NULL,
        op     TEXT NOT NULL,
        kind   TEXT NOT NULL,
        body   TEXT NOT NULL,
        salt   TEXT NOT NULL
    ) STRICT;
    CREATE TABLE snapshot (
        one     INTEGER PRIMARY KEY CHECK (one = 1),
        cut     INTEGER NOT NULL,
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
        salt    TEXT NOT NULL,
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
    + tree.SCHEMA
)

COLUMNS = ", ".join(LedgerRow._fields)
_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_RANGE = "SELECT {columns} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
_ENTRIES = _RANGE.format(columns=COLUMNS, table="entries")
_EVIDENCE = _RANGE.format(columns=COLUMNS, table="evidence")

# SQLite makes these tables when a person runs ANALYZE. They only help it to choose how to search.
_MADE_BY_ANALYZE = frozenset(
    (b"table", name, b"CREATE TABLE %b(%b)" % (name, columns))
    for name, columns in ((b"sqlite_stat1", b"tbl,idx,stat"), (b"sqlite_stat4", b"tbl,idx,neq,nlt,ndlt,sample"))
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The stored data: the records after the newest row, and the newest events since the last compaction."""

    records: tuple[Record, ...]
    rows: int
    recent: tuple[LedgerEntry, ...]  # at most ``REMEMBERED``
    head: Head
    may_be_old: bool = False  # nothing outside the state directory shows that this is the newest copy


def connect(path: Path, query: str = "mode=rw") -> sqlite3.Connection:
    """A connection in autocommit mode. Text is returned as bytes, because damaged text may not be valid UTF-8.

    It waits half of ``BUSY_SECONDS`` for a lock: a new connection waits twice, for a checkpoint and a transaction.
    """
    # check_same_thread: the file has one writer, but another thread may close it.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=BUSY_SECONDS / 2,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes
    return connection


def make_durable(connection: sqlite3.Connection) -> None:
    """From now on, each commit is on the disk when it returns. It costs one fdatasync."""
    [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
    if mode != b"wal":
        raise LedgerUnavailable("cannot use the ledger: its file system has no shared memory", "use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    # A crash or a failed write may have left rows in the -wal file: move them before new rows follow.
    empty_log(connection)


def empty_log(connection: sqlite3.Connection) -> None:
    """Move the write-ahead log into the database file on the disk. A concurrent reader does no harm."""
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


def insert(connection: sqlite3.Connection, frontier: Frontier, new: Sequence[LedgerRow]) -> Frontier:
    """Append rows, and to their tree; ValueError when one cannot be stored. Returns what the tree is then."""
    grown = tree.append(connection, frontier, new)
    connection.executemany(_INSERT, new)
    return grown


def rows(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[LedgerRow]:
    """Rows in order. The default range includes rows with a damaged number."""
    return map(row_of, connection.execute(_ENTRIES, (first, last)))


def evidence(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[LedgerRow]:
    """The evidence among the folded rows, in order."""
    return map(row_of, connection.execute(_EVIDENCE, (first, last)))


def warnings(connection: sqlite3.Connection, first: int, last: int) -> frozenset[int]:
    """The numbers of the evidence that has the mark of a warning."""
    marked = "SELECT seq FROM evidence WHERE warning AND seq BETWEEN ? AND ?"
    return frozenset(seq for (seq,) in connection.execute(marked, (first, last)))


def tree_of(connection: sqlite3.Connection) -> Frontier:
    """The tree over all rows, unverified."""
    [(size,)] = connection.execute("SELECT ifnull(max(seq), 0) FROM entries")
    return tree.frontier(connection, size)


def notes(connection: sqlite3.Connection, kind: str) -> Iterator[str]:
    """The bodies of the notes of this kind, newest first."""
    for table in ("entries", "evidence"):  # all evidence is older than all other rows
        newest = f"SELECT body FROM {table} WHERE kind = ? ORDER BY seq DESC"  # noqa: S608 - our own words
        for (body,) in connection.execute(newest, (kind,)):
            yield _text(body, None)


def snapshot_of(connection: sqlite3.Connection) -> Snapshot | None:
    """The snapshot of the last compaction, if any."""
    match connection.execute("SELECT cut, records FROM snapshot").fetchone():
        case None:
            return None
        case (int(cut), bytes(text)):
            records = _text(text, None)
        case _:
            raise CorruptLedgerError("cannot read the snapshot: a column has the wrong type")
    newest = next(notes(connection, ledger_rows.COMPACTED), "{}")  # without one, the snapshot is not valid
    return Snapshot(cut, records, batches(connection), compaction.dropped(newest, cut))


def batches(connection: sqlite3.Connection) -> tuple[Batch, ...]:
    """The batches of evidence, in order."""
    found = []
    for columns in connection.execute("SELECT cut, rows, newest, digest FROM batches ORDER BY cut"):
        match columns:
            case (int(end), int(count), float(latest), bytes(digest)):
                found.append(Batch(end, count, latest, _text(digest, None)))
            case _:
                raise CorruptLedgerError("cannot read a batch of evidence: a column has the wrong type")
    return tuple(found)


def row_of(columns: tuple[object, ...]) -> LedgerRow:
    """The columns as a row; CorruptLedgerError when one of them has another type."""
    match columns:
        case (int(seq), bytes(), float(wall), float(uptime), bytes(), bytes(), bytes(), bytes()) if math.isfinite(
            wall
        ) and math.isfinite(uptime):
            return LedgerRow._make(_text(value, seq) if isinstance(value, bytes) else value for value in columns)
        case (int(seq), *_):
            raise CorruptLedgerError(f"row {seq} was changed: a column has the wrong type", seq)
        case _:
            raise CorruptLedgerError("cannot read a row: it has no number")


def _text(value: bytes, seq: int | None) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        changed = "the snapshot" if seq is None else f"row {seq}"
        raise CorruptLedgerError(f"{changed} was changed: a column is not text", seq) from error


def version(connection: sqlite3.Connection) -> int:
    """The version of the ledger: that of the program that has written its newest row."""
    [(number,)] = connection.execute("PRAGMA user_version")
    return int(number)


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """FatalError if a newer version wrote it, or one that is too old; CorruptLedgerError if it is no ledger."""
    [(mark,)], written = connection.execute("PRAGMA application_id"), version(connection)
    if written > VERSION:
        raise FatalError(
            f"cannot open the ledger {path}: it has format {written}, and this program knows no format after {VERSION}",
            "install the newer autoclave again. If that is impossible, drain the node and move the file away: its "
            "quarantines and owners are lost, and every GPU is scrubbed before its next use",
        )
    if mark != APPLICATION_ID:
        raise CorruptLedgerError("cannot read the ledger: the file is not a ledger (wrong application id)")
    if written < VERSION - 1:
        raise FatalError(
            f"cannot read the ledger {path}: it has format {written}, and this program reads {VERSION - 1} and "
            f"{VERSION}",
            *ledger_rows.OLDER,
        )


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """CorruptLedgerError unless the file is a ledger with no other tables, and SQLite finds no damage in it."""
    check_version(connection, path)
    # Not quick_check: compaction keeps the file small enough for the complete check at every start.
    [(verdict,), *_] = connection.execute("PRAGMA integrity_check(1)")
    if verdict != b"ok":
        raise CorruptLedgerError(f"cannot read the ledger: the SQLite file is damaged ({verdict.decode()})")
    # A table, index, view or trigger that differs or is missing. A trigger could change or drop rows as they are
    # written.
    different = (_schema(connection) - _MADE_BY_ANALYZE) ^ _expected_schema()
    if different:
        unknown = min(b" ".join(each[:2]).decode(errors="replace") for each in different)
        raise CorruptLedgerError(f"cannot read the ledger: {unknown} is not as this program creates it")


@cache
def _expected_schema() -> frozenset[tuple[bytes, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema(connection)


def _schema(connection: sqlite3.Connection) -> frozenset[tuple[bytes, ...]]:
    columns = "CAST(type AS BLOB), CAST(name AS BLOB), CAST(ifnull(sql, '') AS BLOB)"  # damaged text is not UTF-8
    return frozenset(connection.execute(f"SELECT {columns} FROM sqlite_schema"))  # noqa: S608 - our own column names


def load(connection: sqlite3.Connection, noted: Head | None, fold: Fold) -> Loaded:
    """All rows, folded into the records, if they are those of their tree. ``noted``: what the head file says."""
    snapshot = snapshot_of(connection)
    records, count = ledger_rows.decode_records(snapshot.records) if snapshot else (), 0
    checked = tree.check(connection, snapshot, rows(connection), noted)
    recent = deque[LedgerEntry](maxlen=REMEMBERED)
    while part := tuple(islice(checked, AT_ONCE)):
        entries = ledger_rows.entries(part)
        records, count = _folded(fold, records, entries), count + len(entries)
        recent.extend(entries)
    return Loaded(records, count, tuple(recent), Head.of(tree_of(connection)))


def _folded(fold: Fold, records: tuple[Record, ...], entries: Sequence[LedgerEntry]) -> tuple[Record, ...]:
    try:
        return fold(records, entries)
    except IllegalEventError as error:
        raise CorruptLedgerError(f"cannot replay the ledger: {error}") from error
