"""Open the SQLite file, and read and write its rows."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger import chain, migrations, store

APPLICATION_ID = 0x41_43_4C_47  # "ACLG": tells a ledger from any other database, for file(1) too
BUSY_SECONDS = 2.0
WAL_BYTES = 4 << 20  # the most that the -wal file keeps after a checkpoint

_values = attrgetter("seq", "device", "wall", "uptime", "op", "kind", "body", "prev", "hash")
_INSERT = """
    INSERT INTO entries (seq, device, wall, uptime, op, kind, body, prev, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT = """
    SELECT seq, device, wall, uptime, op, kind, body, prev, hash FROM entries
    WHERE seq BETWEEN ? AND ? ORDER BY seq
"""
_NEWEST = """
    SELECT seq, device, wall, uptime, op, kind, body, prev, hash FROM entries
    WHERE kind NOT IN ('ledger-begun', 'ledger-compacted')
    AND (?1 IS NULL OR device = ?1) AND (?2 IS NULL OR wall >= ?2)
    AND seq > ?4 AND (?5 IS NULL OR seq < ?5) AND (?6 IS NULL OR kind IN (SELECT value FROM json_each(?6)))
    ORDER BY seq DESC LIMIT ?3
"""


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


def rows(connection: sqlite3.Connection, first: int = -(2**63), last: int = 2**63 - 1) -> Iterator[chain.ChainRow]:
    """Rows in order. The default range includes rows with a damaged number."""
    for columns in connection.execute(_SELECT, (first, last)):
        yield _row(columns)


def newest(
    connection: sqlite3.Connection, device: str | None, since: float | None, limit: int, window: store.Window
) -> tuple[chain.ChainRow, ...]:
    """The newest rows that hold events, newest last."""
    kinds = json.dumps(sorted(window.kinds)) if window.kinds else None
    found = connection.execute(_NEWEST, (device, since, limit, window.after, window.before, kinds)).fetchall()
    return tuple(_row(columns) for columns in reversed(found))


def insert(connection: sqlite3.Connection, new: Iterable[chain.ChainRow]) -> None:
    """Append rows."""
    connection.executemany(_INSERT, map(_values, new))


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
            return chain.MissingTail(store.Head(seq, _text(digest, None)), _text(records, None))
        case _:
            raise store.CorruptLedgerError("cannot read the snapshot: a column has the wrong type")


def fold(connection: sqlite3.Connection, new: chain.MissingTail) -> None:
    """Replace the rows that the snapshot covers with the snapshot."""
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
    [(application,)] = connection.execute("PRAGMA application_id")
    if application != APPLICATION_ID:
        raise store.CorruptLedgerError("cannot read the ledger: the file is not a ledger (wrong application id)")
    # Not quick_check: compaction keeps the file small enough for the complete check at every start.
    [(verdict,), *_] = connection.execute("PRAGMA integrity_check(1)")
    if verdict != b"ok":
        raise store.CorruptLedgerError(f"cannot read the ledger: the SQLite file is damaged ({verdict.decode()})")
    if (foreign := migrations.foreign(connection, path)) is not None:
        raise store.CorruptLedgerError(f"cannot read the ledger: {foreign} is not as this program creates it")


def _row(columns: tuple[object, ...]) -> chain.ChainRow:
    match columns:
        case (
            int(seq),
            bytes(device),
            float(wall),
            float(uptime),
            bytes(op),
            bytes(kind),
            bytes(body),
            bytes(prev),
            bytes(digest),
        ) if math.isfinite(wall) and math.isfinite(uptime):
            texts = [_text(it, seq) for it in (op, kind, body, prev, digest)]
            return chain.ChainRow(seq, _text(device, seq), wall, uptime, *texts)
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
