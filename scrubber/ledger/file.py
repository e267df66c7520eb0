"""The file of a ledger: SQLite in WAL mode, one fdatasync a commit, each row a leaf of a Merkle tree.

``open_or_set_aside`` creates a ledger if it is missing. A damaged one is set aside unchanged, and a new one is created;
it is never deleted or repaired. A new ledger knows no device, so each is UNKNOWN until the service observes it.
``verify``, ``read`` and ``export`` only read: a service may write to the ledger meanwhile.

After a failed write the connection is closed. The next call opens a new one, reads the head from the disk and deletes
the rows that a failed append may have left: an event that was reported as not recorded does not become true later.

A schema newer than this program is refused, an older one is set aside. Increase ``VERSION`` when the schema or the
stored events change after a release: it makes an older program refuse the file. The first such change also needs code
that brings a file of the version before to the new one. It may not change a column of a row: every hash would break.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ground import calendar_time, private_files
from ground.errors import FatalError, LedgerUnavailable
from ground.private_files import ForeignFileError
from ground.quantities import quantity
from scrubber.core import events, states
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger import stored, tree
from scrubber.ledger.stored import CorruptLedgerError, Fold, Retention
from scrubber.ledger.tree import Head
from scrubber.receipts.merkle import Frontier, Inclusion
from scrubber.receipts.note import Checkpoint

REMEMBERED = 1_000  # rows in memory, about seventy scrubs
AT_ONCE = 500  # rows that are in memory at once while a ledger is loaded
APPLICATION_ID = 0x41_43_4C_47  # "ACLG": tells a ledger from any other database, for file(1) too
BUSY_SECONDS = 1.8  # a write that waits for a lock must not look like a disk that hangs (``ledger.SLOW``)
WAL_BYTES = 4 << 20  # the most that the -wal file keeps after a checkpoint

EARLIEST, LATEST = -(2**63), 2**63 - 1  # the numbers that a row may have, also a damaged one

VERSION = 4  # of the schema and of the stored events
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

_COLUMNS = ", ".join(stored.LedgerRow._fields)
_INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_KEEP = "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RANGE = "SELECT {columns} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
_ENTRIES = _RANGE.format(columns=_COLUMNS, table="entries")
_EVIDENCE = _RANGE.format(columns=_COLUMNS, table="evidence")
_NEWEST = """
    SELECT {columns} FROM {table}
    WHERE kind NOT IN ('ledger-begun', 'ledger-compacted', 'receipt-key')
    AND (?1 IS NULL OR device = ?1) AND (?2 IS NULL OR wall >= ?2 OR seq >= ?8) AND (?7 IS NULL OR wall <= ?7)
    AND seq > ?4 AND (?5 IS NULL OR seq < ?5) AND (?6 IS NULL OR kind IN (SELECT value FROM json_each(?6)))
    ORDER BY seq DESC LIMIT ?3
"""
_NEWEST_ENTRIES = _NEWEST.format(columns=_COLUMNS, table="entries")
_NEWEST_EVIDENCE = _NEWEST.format(columns=_COLUMNS, table="evidence")
_NEWEST_WARNINGS = _NEWEST_EVIDENCE.replace("WHERE", "WHERE warning AND")
_HEAD = re.compile(r"(\d{20}) ([0-9a-f]{64})\n")

# SQLite makes these tables when a person runs ANALYZE. They only help it to choose how to search.
_MADE_BY_ANALYZE = frozenset(
    (b"table", name, b"CREATE TABLE %b(%b)" % (name, columns))
    for name, columns in ((b"sqlite_stat1", b"tbl,idx,stat"), (b"sqlite_stat4", b"tbl,idx,neq,nlt,ndlt,sample"))
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The stored data: the records after the newest row, the number of events since the last compaction, the newest."""

    records: tuple[Record, ...]
    rows: int
    recent: tuple[LedgerEntry, ...]  # at most ``REMEMBERED``
    head: Head
    may_be_old: bool = False  # nothing outside the state directory shows that this is the newest copy


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of the history are asked for. ``before`` None: up to the newest. No ``kinds``: events of each kind."""

    before: int | None = None
    after: int = 0
    kinds: frozenset[str] = frozenset()
    until: float | None = None  # a wall time
    warnings: bool = False  # leave out evidence that is not a warning; the caller leaves out other rows
    uptime: float | None = None  # the asked ``since`` on the clock of this boot: the wall clock may have jumped


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Kept:
    """From which wall time on the ledger has rows, and from when on it has the steps of scrubs; 0: none has gone."""

    since: float = 0.0
    steps_since: float = 0.0


class HistoryPage(NamedTuple):
    """Entries of the history, newest last. ``partial``: older ones may be missing, because the disk did not answer."""

    entries: tuple[LedgerEntry, ...]
    partial: bool = False


# -- the files


class LedgerPaths:
    """The files of a ledger; their names follow from that of the database."""

    def __init__(self, database: Path, run_head: Path | None = None) -> None:
        """``run_head``: a second file for the head, outside the state directory."""
        name = database.name.removesuffix(".sqlite")
        self.database = database
        self.wal = database.with_name(database.name + "-wal")  # SQLite's write-ahead log: part of the data
        self.shm = database.with_name(database.name + "-shm")  # SQLite's index of the log: rebuilt at need
        self.head = database.with_name(name + ".head")  # how many rows there are, and the root of their tree
        self.run_head = run_head
        self.lock = database.with_name(name + ".lock")  # the writer holds a lock on it
        self.fresh = database.with_name(database.name + ".new")  # a new ledger, before it is renamed to ``database``

    def check(self, demand: Callable[[Path], None]) -> None:
        """Check each file: SQLite follows links and opens any kind of file. ``demand`` raises ForeignFileError."""
        for path in (self.database, self.wal, self.shm, self.head, self.run_head):
            if path is not None:
                demand(path)

    def set_aside(self) -> tuple[str, ...]:
        """The names of damaged ledgers that were set aside in this directory."""
        names = (path.name for path in self.database.parent.glob(f"{self.database.name}.corrupt-*"))
        return tuple(sorted(name for name in names if not name.endswith(("-wal", "-shm", ".head"))))


def lock(paths: LedgerPaths) -> int:
    """The file that holds the writer's lock until it is closed; FatalError names the process that holds it now."""
    file = private_files.try_lock(paths.lock)
    if file is None:
        holder = paths.lock.read_bytes()[:10].decode("ascii", errors="replace").strip()
        raise FatalError(
            f"cannot open the ledger {paths.database}: process {holder} writes to it; stop that process first"
        )
    try:
        os.pwrite(file, f"{os.getpid():<10}\n".encode(), 0)
    except OSError:
        os.close(file)
        raise
    return file


class HeadFiles:
    """The number of rows and the root of their tree in a small file: the tree alone cannot show that rows are missing.

    A second file of this kind is in the run directory. If an older copy of the state directory was put back, it has not
    the rows of this file. Then no proof in the ledger counts (``may_be_old``). The same if this file is missing.

    The files are written in place after each commit and not forced to the disk: that costs microseconds, and the
    content survives a crash of the service. After a power loss a file may be behind the ledger, not an error: the
    boot id has changed by then, so no proof in the ledger counts any more.
    """

    def __init__(self, paths: LedgerPaths) -> None:
        self._paths = paths
        self._open: dict[Path, int] = {}

    def write(self, head: Head, *, vouch: bool) -> None:
        """Store this head, in one write of a fixed length. ``vouch``: also in the run directory."""
        line = f"{head.size:020d} {head.root}\n".encode()
        # The file in the state directory last: a row that it names may not be deleted after an error.
        for path in (self._paths.run_head if vouch else None, self._paths.head):
            if path is None:
                continue
            if path not in self._open:
                self._open[path] = private_files.opened(path, os.O_RDWR | os.O_CREAT)
            if (written := os.pwrite(self._open[path], line, 0)) != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> None:
        """Force the file in the state directory to the disk."""
        if self._paths.head in self._open:
            os.fsync(self._open[self._paths.head])

    def close(self) -> None:
        """Close the files; the next write opens them again."""
        for file in self._open.values():
            os.close(file)
        self._open = {}


def read_head(path: Path) -> Head | None:
    """The stored head, None when there is no file; CorruptLedgerError when the file cannot be parsed."""
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if (head := _HEAD.fullmatch(text)) is None:
        raise CorruptLedgerError(f"cannot read the head file: {path} is damaged")
    return Head(int(head[1]), head[2])


# -- SQLite


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


def _make_durable(connection: sqlite3.Connection) -> None:
    """From now on, each commit is on the disk when it returns. It costs one fdatasync."""
    [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
    if mode != b"wal":
        raise LedgerUnavailable("cannot use the ledger: its file system has no shared memory; use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    # A crash or a failed write may have left rows in the -wal file: move them before new rows follow.
    _checkpoint(connection)


def _checkpoint(connection: sqlite3.Connection) -> None:
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


def insert(connection: sqlite3.Connection, frontier: Frontier, new: Sequence[stored.LedgerRow]) -> Frontier:
    """Append rows, and to their tree; ValueError when one cannot be stored. Returns what the tree is then."""
    grown = tree.append(connection, frontier, new)
    connection.executemany(_INSERT, new)
    return grown


def rows(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[stored.LedgerRow]:
    """Rows in order. The default range includes rows with a damaged number."""
    return map(_row, connection.execute(_ENTRIES, (first, last)))


def _evidence(connection: sqlite3.Connection, first: int = EARLIEST, last: int = LATEST) -> Iterator[stored.LedgerRow]:
    """The evidence among the folded rows, in order."""
    return map(_row, connection.execute(_EVIDENCE, (first, last)))


def _newest(
    connection: sqlite3.Connection, device: str | None, since: float | None, limit: int, window: Window
) -> tuple[LedgerEntry, ...]:
    """The newest events, newest last. All evidence is older than all other rows."""
    kinds = json.dumps(sorted(window.kinds)) if window.kinds else None
    first = _first_since(connection, window.uptime)
    newest: list[tuple[object, ...]] = []
    for statement in (_NEWEST_ENTRIES, _NEWEST_WARNINGS if window.warnings else _NEWEST_EVIDENCE):
        wanted = (device, since, limit - len(newest), window.after, window.before, kinds, window.until, first)
        newest += connection.execute(statement, wanted)
    return stored.entries(_row(columns) for columns in reversed(newest))


def _first_since(connection: sqlite3.Connection, uptime: float | None) -> int | None:
    """The number of the first row of this boot that is not older; None without such a row."""
    first, later = None, math.inf
    if uptime is None:
        return None
    for seq, at in connection.execute("SELECT seq, uptime FROM entries ORDER BY seq DESC"):
        if not uptime <= at <= later:  # an uptime that is greater is of an earlier boot
            break
        first, later = seq, at
    return first


def _kept(connection: sqlite3.Connection) -> Kept:
    oldest = "SELECT CASE seq WHEN 1 THEN 0.0 ELSE wall END FROM {} ORDER BY seq LIMIT 1"
    [steps] = connection.execute(oldest.format("entries")).fetchone()
    [since] = connection.execute(oldest.format("evidence")).fetchone() or [steps]
    return Kept(since, steps)


def tree_of(connection: sqlite3.Connection) -> Frontier:
    """The tree over all rows, unverified."""
    [(size,)] = connection.execute("SELECT ifnull(max(seq), 0) FROM entries")
    return tree.frontier(connection, size)


def _snapshot(connection: sqlite3.Connection) -> stored.Snapshot | None:
    """The snapshot of the last compaction, if any."""
    match connection.execute("SELECT cut, records FROM snapshot").fetchone():
        case None:
            return None
        case (int(cut), bytes(text)):
            records = _text(text, None)
        case _:
            raise CorruptLedgerError("cannot read the snapshot: a column has the wrong type")
    batches = []
    for columns in connection.execute("SELECT cut, rows, newest, digest FROM batches ORDER BY cut"):
        match columns:
            case (int(end), int(count), float(latest), bytes(digest)):
                batches.append(stored.Batch(end, count, latest, _text(digest, None)))
            case _:
                raise CorruptLedgerError("cannot read a batch of evidence: a column has the wrong type")
    return stored.Snapshot(cut, records, tuple(batches))


def _row(columns: tuple[object, ...]) -> stored.LedgerRow:
    match columns:
        case (int(seq), bytes(), float(wall), float(uptime), bytes(), bytes(), bytes(), bytes()) if math.isfinite(
            wall
        ) and math.isfinite(uptime):
            return stored.LedgerRow._make(_text(value, seq) if isinstance(value, bytes) else value for value in columns)
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


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    """FatalError if the schema is newer than this program; CorruptLedgerError if it is older, or not a ledger's."""
    [(mark,)], [(version,)] = (connection.execute(f"PRAGMA {name}") for name in ("application_id", "user_version"))
    if version > VERSION:
        raise FatalError(
            f"cannot open the ledger {path}: its schema is version {version}, this program knows up to {VERSION}; "
            "install the newer autoclave again, or move the file away: every GPU is then scrubbed before its next use"
        )
    if mark != APPLICATION_ID:
        raise CorruptLedgerError("cannot read the ledger: the file is not a ledger (wrong application id)")
    if version < VERSION:
        raise CorruptLedgerError(
            f"cannot read the ledger: its schema is version {version}, and this program reads version {VERSION} only; "
            "`autoclave ledger export` prints its quarantines: quarantine those GPUs again"
        )


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """CorruptLedgerError unless the file is a ledger with no other tables, and SQLite finds no damage in it."""
    _check_version(connection, path)
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


def _load(connection: sqlite3.Connection, noted: Head | None, fold: Fold) -> Loaded:
    """All rows, folded into the records, if they are those of their tree. ``noted``: what the head file says."""
    snapshot = _snapshot(connection)
    records, count = stored.decode_records(snapshot.records) if snapshot else (), 0
    checked = tree.check(connection, snapshot, rows(connection), noted)
    recent = deque[LedgerEntry](maxlen=REMEMBERED)
    while part := tuple(islice(checked, AT_ONCE)):
        entries = stored.entries(part)
        records, count = fold(records, entries), count + len(entries)
        recent.extend(entries)
    return Loaded(records, count, tuple(recent), Head.of(tree_of(connection)))


# -- its errors, as messages that say what to do


@contextmanager
def translated(action: str, path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the kernel into LedgerUnavailable; ``action`` as in "write to the ledger"."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of this program, not a fault of the ledger
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:  # SQLite's message may name a damaged name
        why = _why(error, path)
        if why is not None:
            raise LedgerUnavailable(f"cannot {action} {path}: {why}") from error
        why = f"the file is damaged ({error}); restart the service, which sets the file aside"
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            why = "it is not a ledger, or its first bytes are damaged; if it is the service's own, restart the service"
        raise CorruptLedgerError(f"cannot {action} {path}: {why}") from error


def _why(error: sqlite3.Error | UnicodeDecodeError | OSError, path: Path) -> str | None:
    """Why the file cannot be used now, and what to do; None if it is damaged."""
    full = f"the disk is full or a size limit is reached; free some space under {path.parent}"
    read_only = f"it is read-only; mount {path.parent} writable, or correct its permissions"
    forbidden = (
        f"this user may not open it; become the user of the service, or correct the permissions of {path.parent}"
    )
    if isinstance(error, OSError):
        if isinstance(error, ForeignFileError):
            return f"{error.filename}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return full
        if error.errno in (errno.EACCES, errno.EPERM):
            return forbidden
        if error.errno == errno.EROFS:
            return read_only
        return f"{error.strerror or error}; check the kernel log and the disk"
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte is the family
        case sqlite3.SQLITE_FULL:
            return full
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return read_only
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            locked = (path.with_name(f"{path.name}-shm"), path)  # while SQLite writes
            pid = next(filter(None, (private_files.lock_holder(file, "POSIX") for file in locked)), None)
            by = "another program" if pid is None else f"process {pid}"
            return f"{by} has it locked; end that process, such as a backup or an open sqlite3 shell"
        case sqlite3.SQLITE_CANTOPEN:
            return f"it cannot be opened; check that {path.parent} exists and that this user may write to it"
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOLFS:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            return f"the disk reports an I/O error ({name}); check the kernel log and the disk"
        case _:
            return None


# -- the writer


class SqliteStore:
    """The writer's side of a ledger file; opened by ``open_or_set_aside``, which passes the lock on."""

    def __init__(self, paths: LedgerPaths, locked: int) -> None:
        self._paths = paths
        self._lock: int | None = locked
        self._connection: sqlite3.Connection | None = None
        self._headfiles = HeadFiles(paths)
        self._loaded = False
        self.kept = Kept()  # from when on there are rows
        self._frontier = Frontier()  # of the tree over all rows that were acknowledged: an append reads no node
        self.head = Head.of(self._frontier)

    def load(self, fold: Fold = lambda records, _: records) -> Loaded:
        """Everything, verified: the SQLite file, each row and event, the snapshot and the head file."""
        path = self._paths.database
        with self._disconnecting():
            if self._loaded:
                with translated("write to the ledger", path):
                    self._connected()  # deletes the rows that a failed append may have left
            # Read-only: a damaged file must stay unchanged, and SQLite would truncate its log.
            with translated("read the ledger", path), self._read_only() as connection:
                _check_format(connection, path)
                with transaction(connection, "BEGIN"):
                    loaded = _load(connection, read_head(self._paths.head), fold)
                    loaded = replace(loaded, may_be_old=self._may_be_old(connection))
                    self.kept, frontier = _kept(connection), tree_of(connection)
            with translated("write to the ledger", path):
                self._connected()  # fails now, not at the first write, when the disk is read-only
                self._acknowledge(frontier, vouch=not loaded.may_be_old)
            return loaded

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Write the events to the disk in one transaction."""
        with self._ready() as connection:
            new = stored.rows_after(self.head.size, drafts)
            with transaction(connection):
                grown = insert(connection, self._frontier, new)
            # A row of the node says nothing about proofs, so an older copy must stay recognisable after it.
            self._acknowledge(grown, vouch=any(not isinstance(it.event, events.OF_NODE) for it in drafts))
        return tuple(replace(draft, seq=row.seq) for row, draft in zip(new, drafts, strict=True))

    def note(self, kind: str, at: Moment, body: object) -> None:
        """Write a note to the disk. It vouches for no proof: an older copy of the ledger stays recognisable."""
        with self._ready() as connection:
            new = stored.note(self.head.size + 1, kind, at, body)
            with transaction(connection):
                grown = insert(connection, self._frontier, [new])
            self._acknowledge(grown, vouch=False)

    def last_note(self, kind: str) -> str | None:
        """The body of the newest note of this kind."""
        with translated("read the ledger", self._paths.database), self._read_only() as connection:
            for table in ("entries", "evidence"):  # all evidence is older than all other rows
                newest = f"SELECT body FROM {table} WHERE kind = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608 - our own words
                if (columns := connection.execute(newest, (kind,)).fetchone()) is not None:
                    return _text(columns[0], None)
        return None

    def prove(self, seq: int) -> tuple[Inclusion, str]:
        """That an acknowledged row is in the tree over all rows so far; and the row's hash."""
        with self._ready() as connection:
            [row] = rows(connection, seq, seq)
            return tree.include(connection, seq, self.head.size), row.hash

    def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest entries, newest last. It opens a new connection, so any thread may call it."""
        with translated("read the ledger", self._paths.database), self._read_only() as connection:
            return _newest(connection, device, since, limit, window)

    def compact(self, fold: Fold, keep: int, at: Moment, retention: Retention = stored.KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot, in one transaction; then shrink the file."""
        with self._ready() as connection:
            with transaction(connection):
                before, last = _snapshot(connection), self.head.size - keep
                # Verified once more: later, only the snapshot says what the rows said.
                folded = tuple(tree.check_rows(connection, before.cut if before else 0, rows(connection, last=last)))
                if len(folded) < stored.WORTH_FOLDING:
                    return 0
                snapshot = stored.fold(before, folded, fold, at.wall, retention)
                _store(connection, snapshot, folded)
                note = stored.compaction(self.head.size + 1, at, snapshot)
                grown = insert(connection, self._frontier, [note])
                self.kept = _kept(connection)
            self._acknowledge(grown, vouch=True)
        with translated("shrink the ledger", self._paths.database), self._disconnecting():
            connection = self._connected()
            # It returns free pages to the file system, one page a step; execute() does one step only.
            connection.executescript("PRAGMA incremental_vacuum")
            _checkpoint(connection)
        return len(folded)

    def disconnect(self) -> None:
        """Close the files but keep the lock; the next call connects again."""
        connection, self._connection = self._connection, None
        self._headfiles.close()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the database, force the head file to the disk, release the lock."""
        locked, self._lock = self._lock, None
        try:
            with translated("close the ledger", self._paths.database):
                self._headfiles.sync()
        finally:
            self.disconnect()
            if locked is not None:
                os.close(locked)

    def _read_only(self) -> closing[sqlite3.Connection]:
        self._paths.check(private_files.demand_own)
        return closing(connect(self._paths.database, "mode=ro"))

    def _may_be_old(self, connection: sqlite3.Connection) -> bool:
        """Whether the run directory does not say that it has seen the first rows of this ledger."""
        if self._paths.run_head is None:
            return False
        try:
            seen = read_head(self._paths.run_head)
        except CorruptLedgerError:  # the file is damaged, not the ledger
            return True
        return seen is None or not tree.contains(connection, tree_of(connection).size, seen)

    @contextmanager
    def _ready(self) -> Iterator[sqlite3.Connection]:
        """The connection, to write with."""
        with translated("write to the ledger", self._paths.database), self._disconnecting():
            waits = 2 if self._connection is None else 1
            connection = self._connected()
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_SECONDS / waits)}")
            if not self._loaded:
                raise LedgerUnavailable("cannot write to the ledger: it is not loaded; load it first")
            yield connection

    @contextmanager
    def _disconnecting(self) -> Iterator[None]:
        # After any error, a cancellation too, the state of the connection is unknown: the next call opens a new one.
        try:
            yield
        except BaseException:  # closes the connection and raises the error again
            self.disconnect()
            raise

    def _connected(self) -> sqlite3.Connection:
        if self._lock is None:
            raise LedgerUnavailable("cannot use the ledger: it is closed; start the service again")
        if self._connection is None:
            self._paths.check(private_files.demand_own)
            self._connection = connect(self._paths.database)
            _make_durable(self._connection)
            if self._loaded:
                self._frontier = _remove_unacknowledged(self._connection, self._frontier)
                self.head = Head.of(self._frontier)
        return self._connection

    def _acknowledge(self, frontier: Frontier, *, vouch: bool) -> None:
        """Store the head of this tree. ``vouch``: also in the run directory.

        The head of a ledger that may be old is not stored there before its next row. That row says which proofs do not
        count any more. If the service ends before that row, the next start decides again.
        """
        head = Head.of(frontier)
        self._headfiles.write(head, vouch=vouch)
        self.head, self._frontier, self._loaded = head, frontier, True


def _store(connection: sqlite3.Connection, snapshot: stored.Snapshot, folded: Sequence[stored.LedgerRow]) -> None:
    """Replace the rows that the snapshot covers with the snapshot, and keep those of them that are evidence."""
    for row in stored.evidence(folded):
        entry = stored.entry(row)
        connection.execute(_KEEP, (*row, entry is not None and events.is_warning(entry.event)))
    remaining = sum(batch.rows for batch in snapshot.batches)
    gone = "SELECT seq FROM evidence ORDER BY seq DESC LIMIT 1 OFFSET ?"  # the newest row of the batches that go
    connection.execute(f"DELETE FROM evidence WHERE seq <= ({gone})", (remaining,))  # noqa: S608 - our own words
    connection.execute("DELETE FROM batches")
    connection.executemany(
        "INSERT INTO batches (cut, rows, newest, digest) VALUES (?, ?, ?, ?)", map(astuple, snapshot.batches)
    )
    connection.execute("DELETE FROM entries WHERE seq <= ?", (snapshot.cut,))
    connection.execute(
        "INSERT OR REPLACE INTO snapshot (one, cut, records) VALUES (1, ?, ?)", (snapshot.cut, snapshot.records)
    )


def _remove_unacknowledged(connection: sqlite3.Connection, acknowledged: Frontier) -> Frontier:
    """Delete the rows of an append that raised an error but reached the file; returns the tree over all rows."""
    size = acknowledged.size
    beyond = {row.seq: row.kind for row in rows(connection, first=size)}
    if beyond.pop(size, None) is None or tree.frontier(connection, size) != acknowledged:
        raise CorruptLedgerError("cannot use the ledger: another program changed it; restart the service")
    if [*beyond.values()] == [stored.COMPACTED]:
        return tree_of(connection)  # a compaction that was completed changes no fact
    if beyond:
        with transaction(connection):
            connection.execute("DELETE FROM entries WHERE seq > ?", (size,))
            tree.cut(connection, size)
    return acknowledged


# -- to open it


@dataclass(frozen=True, slots=True)
class SetAside:
    """A damaged ledger: where it is now, and what is damaged."""

    path: Path
    why: str


Load = Callable[[SqliteStore], object]
"""Loads the ledger; raises CorruptLedgerError also when the transition table does not allow its rows."""


def open_or_set_aside(
    path: Path, at: Moment, load: Load = SqliteStore.load, run_head: Path | None = None
) -> tuple[SqliteStore, SetAside | None]:
    """A store that was loaded once without an error, and the damaged ledger that was set aside, if any.

    LedgerUnavailable (disk full, read-only, locked): call again later. FatalError (another writer, a newer schema):
    a person has to act. Neither changes the stored data. ``run_head``: where the head is stored a second time.
    """
    paths = LedgerPaths(path, run_head)
    with translated("open the ledger", path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        locked = lock(paths)
        try:
            paths.check(private_files.demand_own)
            return _open(paths, locked, at, load)
        except BaseException:  # any error, a cancellation too: release the lock and raise it again
            os.close(locked)
            raise


def _open(paths: LedgerPaths, locked: int, at: Moment, load: Load) -> tuple[SqliteStore, SetAside | None]:
    try:
        if not paths.database.exists():
            _check_nothing_left(paths)
            _create(paths, stored.note(1, stored.BEGUN, at, {}))
        return _loaded(paths, locked, load), None
    except CorruptLedgerError as error:
        aside = SetAside(_move(paths, at), error.message)
    try:
        with translated("create a new ledger at", paths.database):
            _create(paths, stored.note(1, stored.BEGUN, at, {"set_aside": aside.path.name, "why": aside.why}))
        return _loaded(paths, locked, load), aside
    except LedgerUnavailable as error:
        raise LedgerUnavailable(f"{error}; the damaged ledger was set aside as {aside.path}: {aside.why}") from error


def _check_nothing_left(paths: LedgerPaths) -> None:
    left = [path.name for path in (paths.wal, paths.shm, paths.head) if path.exists()]
    if left:
        raise CorruptLedgerError(f"the ledger {paths.database} is missing, although {', '.join(left)} exists")


def _loaded(paths: LedgerPaths, locked: int, load: Load) -> SqliteStore:
    opened = SqliteStore(paths, locked)
    try:
        load(opened)
    except BaseException:  # any error, a cancellation too: disconnect and raise it again
        opened.disconnect()
        raise
    return opened


def _move(paths: LedgerPaths, at: Moment) -> Path:
    """Rename every file of a ledger. After a crash in between, the next start finds the rest damaged too."""
    stamp = calendar_time.utc(at.wall).strftime("%4Y%m%dT%H%M%SZ")
    name, number = f"{paths.database.name}.corrupt-{stamp}", 0
    taken, free = paths.set_aside(), name
    while any(other in {free, f"{free}-wal", f"{free}-shm", f"{free}.head"} for other in taken):
        number += 1
        free = f"{name}-{number}"
    aside = LedgerPaths(paths.database.with_name(free))
    # The log before the database, so that a new database never reads an old log. The head last: it shows the damage.
    for old, new in (
        (paths.wal, aside.wal),
        (paths.shm, aside.shm),
        (paths.database, aside.database),
        (paths.head, aside.head),
    ):
        if old.exists():
            old.rename(new)
    private_files.sync_directory(paths.database.parent)
    return aside.database


def _create(paths: LedgerPaths, first: stored.LedgerRow) -> None:
    """Create a ledger with its first row under another name, then rename it: it exists completely or not at all."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        paths.fresh.with_name(paths.fresh.name + suffix).unlink(missing_ok=True)
    os.close(os.open(paths.fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # -wal and -shm inherit the mode
    with closing(connect(paths.fresh)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # SQLite accepts this for an empty file only
        _make_durable(connection)
        with transaction(connection):
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            frontier = insert(connection, Frontier(), [first])
        _checkpoint(connection)  # closing does it too, but does not report an error
    paths.fresh.rename(paths.database)
    with closing(HeadFiles(paths)) as headfiles:
        headfiles.write(Head.of(frontier), vouch=False)
        headfiles.sync()
    private_files.sync_directory(paths.database.parent)


# -- to verify, read and export it


@dataclass(frozen=True, slots=True)
class Broken:
    """The damage that was found; ``seq`` is None when the damage is in no single row."""

    seq: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The result for a ledger. ``rows`` counts the valid rows, and ``last`` is the number of the last of them."""

    rows: int
    last: int
    head: Head | None  # of a ledger in which no damage was found
    broken: Broken | None
    set_aside: tuple[str, ...]  # names of damaged ledgers in the same directory
    vouched: int = 0  # up to this row the checkpoints vouch for all that ever was in the ledger


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger that was verified, as it is on the disk, and the devices after its newest row."""

    path: Path
    records: Mapping[str, Record]
    kept: Kept

    async def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> HistoryPage:
        """The newest entries of the window, of one device or of all, newest last."""
        with _reading(LedgerPaths(self.path)) as connection:
            return HistoryPage(_newest(connection, device, since, limit, window))

    def prove(self, seq: int, size: int) -> tuple[Inclusion, str]:
        """That a row is in the tree of the first ``size`` rows; and the row's hash."""
        with _reading(LedgerPaths(self.path)) as connection:
            candidates = (*_evidence(connection, seq, seq), *rows(connection, seq, seq))
            if not candidates or not seq <= size <= tree_of(connection).size:
                raise FatalError(
                    f"cannot prove row {seq} of the ledger {self.path} among {quantity(size, 'row')}: it does not have "
                    "them; `autoclave ledger verify` checks it"
                )
            return tree.include(connection, seq, size), candidates[0].hash


def verify(path: Path, checkpoints: Iterable[Checkpoint] = ()) -> Audit:
    """Check the tree, every row and event, the snapshot, the tail and SQLite's format, in one consistent view.

    ``checkpoints`` that were kept elsewhere also show rows that were cut off or replaced together with all of this.
    """
    paths = LedgerPaths(path)
    count, last, head, broken, vouched = 0, 0, None, None, 0
    try:
        noted = _noted(paths)
        with _reading(paths) as connection:
            _check_version(connection, path)
            snapshot = _snapshot(connection)
            for row in tree.check(connection, snapshot, rows(connection), noted):
                stored.entry(row)
                count, last = count + 1, row.seq
            if snapshot is not None:
                stored.decode_records(snapshot.records)
                _check_evidence(connection, snapshot)
                tree.check_folded(connection, snapshot)
            for checkpoint in sorted(checkpoints, key=lambda each: each.size):
                _check_against(connection, last, vouched, checkpoint)
                vouched = checkpoint.size
            _check_format(connection, path)
            head = Head.of(tree_of(connection))
    except CorruptLedgerError as error:
        broken = Broken(error.seq, error.message)
    return Audit(count, last, head, broken, paths.set_aside(), vouched)


def _check_against(connection: sqlite3.Connection, last: int, vouched: int, checkpoint: Checkpoint) -> None:
    """CorruptLedgerError unless the checkpoint is of this ledger. An older checkpoint vouches up to row ``vouched``."""
    size = checkpoint.size
    rows = quantity(size, "row")
    if size > last:
        gone = f"row {last + 1} is missing: the checkpoint counts {rows}, and the last one here is {last}"
        raise CorruptLedgerError(f"{gone}; rows were cut off, or an older copy was put back", last + 1)
    if tree.frontier(connection, size).root != checkpoint.root:
        others = f"the rows from {vouched + 1} to {size} are not those of the checkpoint of {rows}"
        raise CorruptLedgerError(f"{others}: there are two histories", vouched + 1)


def _check_evidence(connection: sqlite3.Connection, snapshot: stored.Snapshot) -> None:
    """Check each batch of evidence, and that there is no evidence outside the batches."""
    first = EARLIEST
    for batch in snapshot.batches:
        last = LATEST if batch is snapshot.batches[-1] else batch.cut
        kept = tuple(_evidence(connection, first, last))
        tree.check_leaves(connection, kept)
        stored.check_evidence(batch, kept)
        stored.entries(kept)
        first = batch.cut + 1


def read(path: Path) -> LedgerFile:
    """Read a ledger; LedgerUnavailable if it is damaged or cannot be read, FatalError if there is none."""
    paths = LedgerPaths(path)
    noted = _noted(paths)
    with _reading(paths) as connection:
        _check_version(connection, path)
        records = _load(connection, noted, states.replay).records
        return LedgerFile(path, {record.device.uuid: record for record in records}, _kept(connection))


def export(path: Path) -> Iterator[dict[str, object]]:
    """The evidence, the snapshot, and each row as it is stored, ready for JSON; of any version.

    A body that is not JSON stays text.
    """
    with _reading(LedgerPaths(path)) as connection:
        yield from _exported(connection, "evidence")
        for snapshot in _exported(connection, "snapshot"):
            yield {"kind": "snapshot", **snapshot}
        yield from _exported(connection, "entries")


def _exported(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, object]]:
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608 - our own words
    names = [name for name, *_ in cursor.description]
    for columns in cursor:
        yield {name: _plain(name, value) for name, value in zip(names, columns, strict=True)}


def _plain(name: str, value: object) -> object:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or name not in {"body", "records"}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _noted(paths: LedgerPaths) -> Head | None:
    """The head in its file. It is read before the rows: a writer may add rows meanwhile, so they may be ahead of it."""
    with translated("read the ledger", paths.database):
        paths.check(private_files.demand_regular)
        return read_head(paths.head)


@contextmanager
def _reading(paths: LedgerPaths) -> Iterator[sqlite3.Connection]:
    """A connection in one consistent view, for a program that is not the writer."""
    if not paths.database.exists():
        raise FatalError(f"cannot read the ledger {paths.database}: there is no such file; name the state directory")
    with translated("read the ledger", paths.database):
        paths.check(private_files.demand_regular)
        connection = _connect_to_read(paths)
        try:
            with transaction(connection, "BEGIN"):
                yield connection
        finally:
            connection.close()


def _connect_to_read(paths: LedgerPaths) -> sqlite3.Connection:
    connection = connect(paths.database, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        # SQLite cannot create the index of the log in a read-only directory. Without a log it needs no index.
        connection.close()
        if paths.wal.exists() and paths.wal.stat().st_size:
            raise
        return connect(paths.database, "mode=ro&immutable=1")
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
