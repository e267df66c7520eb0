"""The durable store: SQLite in WAL mode, one fdatasync a commit, each row chained to the row before.

``open_or_set_aside`` creates a ledger if it is missing. A damaged one is set aside unchanged, and a new one is created;
it is never deleted or repaired. A new ledger knows no device, so each is UNKNOWN until the service observes it.

After a failed write the connection is closed. The next call opens a new one, reads the head from the disk and deletes
the rows that a failed append may have left: an event that was reported as not recorded does not become true later.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ground import calendar_time, private_files
from ground.errors import LedgerUnavailable
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import chain, codec, database, files, store

AT_ONCE = 500  # rows that are in memory at once while a ledger is loaded


@dataclass(frozen=True, slots=True)
class SetAside:
    """A damaged ledger: where it is now, and what is damaged."""

    path: Path
    why: str


class SqliteStore:
    """The writer's side of a ledger file; opened by ``open_or_set_aside``, which passes the lock on."""

    def __init__(self, where: files.Places, lock: files.Lock) -> None:
        self._where = where
        self._lock: files.Lock | None = lock
        self._connection: sqlite3.Connection | None = None
        self._headfiles = files.HeadFiles(where)
        self._kept = store.Kept()
        self._loaded = False
        self.head = chain.START  # the newest row that was acknowledged

    def load(self, fold: store.Fold = lambda records, _: records) -> store.Loaded:
        """Everything, verified: the SQLite file, the chain, the snapshot, the head file and each event."""
        path = self._where.database
        with self._disconnecting():
            if self._loaded:
                with database.translated("write to the ledger", path):
                    self._connected()  # deletes the rows that a failed append may have left
            with database.translated("read the ledger", path):
                loaded = self._read(fold)
            with database.translated("write to the ledger", path):
                self._connected()  # fails now, not at the first write, when the disk is read-only
                self._acknowledge(loaded.head, vouch=not loaded.may_be_old)
            return loaded

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Write the events to the disk in one transaction."""
        contents = chain.contents(drafts)
        with self._ready() as connection:
            rows = chain.seal(self.head, contents)
            with database.transaction(connection):
                database.insert(connection, rows)
            self._acknowledge(rows[-1].head if rows else self.head, vouch=True)
        return tuple(replace(draft, seq=row.seq) for row, draft in zip(rows, drafts, strict=True))

    def history(
        self, device: str | None, since: float | None, limit: int, window: store.Window = store.EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest entries, newest last. It opens a new connection, so any thread may call it."""
        with database.translated("read the ledger", self._where.database), self._read_only() as connection:
            return chain.entries(database.newest(connection, device, since, limit, window))

    @property
    def kept(self) -> store.Kept:
        """From when on there are rows."""
        return self._kept

    def compact(self, fold: store.Fold, keep: int, at: Moment, evidence: store.Retention = store.KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot, in one transaction; then shrink the file."""
        with self._ready() as connection:
            with database.transaction(connection):
                before = database.cut(connection)
                folded = tuple(database.rows(connection, last=self.head.seq - keep))
                if len(folded) < chain.WORTH_FOLDING:
                    return 0
                cut = chain.fold(before, folded, fold, at.wall, evidence)
                database.fold(connection, cut, folded)
                [note] = chain.seal(self.head, [chain.compaction(at, cut)])
                database.insert(connection, [note])
                self._kept = database.kept(connection)
            self._acknowledge(note.head, vouch=True)
        with database.translated("shrink the ledger", self._where.database), self._disconnecting():
            database.shrink(self._connected())
        return len(folded)

    def disconnect(self) -> None:
        """Close the files but keep the lock; the next call connects again."""
        connection, self._connection = self._connection, None
        self._headfiles.close()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the database, force the head file to the disk, release the lock."""
        lock, self._lock = self._lock, None
        try:
            with database.translated("close the ledger", self._where.database):
                self._headfiles.sync()
        finally:
            self.disconnect()
            if lock is not None:
                lock.release()

    def _read(self, fold: store.Fold) -> store.Loaded:
        # Read-only: a damaged file must stay unchanged, and SQLite would truncate its log.
        with self._read_only() as connection:
            database.check_format(connection, self._where.database)
            with database.transaction(connection, "BEGIN"):
                loaded = checked(connection, files.read_head(self._where.head), fold)
                self._kept = database.kept(connection)
                return replace(loaded, may_be_old=self._may_be_old(connection))

    def _read_only(self) -> closing[sqlite3.Connection]:
        self._where.demand(private_files.demand_own)
        return closing(database.connect(self._where.database, "mode=ro"))

    def _may_be_old(self, connection: sqlite3.Connection) -> bool:
        """Whether the run directory does not name a row of this ledger as the newest one that it has seen."""
        if self._where.run_head is None:
            return False
        try:
            seen = files.read_head(self._where.run_head)
        except store.CorruptLedgerError:  # the file is damaged, not the ledger
            return True
        return seen is None or [seen.hash] != [row.hash for row in database.rows(connection, seen.seq, seen.seq)]

    @contextmanager
    def _ready(self) -> Iterator[sqlite3.Connection]:
        """The connection, to write with."""
        with database.translated("write to the ledger", self._where.database), self._disconnecting():
            connection = self._connected()
            if not self._loaded:
                raise LedgerUnavailable("cannot write to the ledger: it is not loaded; load it first")
            yield connection

    @contextmanager
    def _disconnecting(self) -> Iterator[None]:
        # After any error, a cancellation too, the state of the connection is unknown: the next call opens a new one.
        try:
            yield
        except BaseException:
            self.disconnect()
            raise

    def _connected(self) -> sqlite3.Connection:
        if self._lock is None:
            raise LedgerUnavailable("cannot use the ledger: it is closed; start the service again")
        if self._connection is None:
            self._where.demand(private_files.demand_own)
            self._connection = database.connect(self._where.database)
            database.make_durable(self._connection)
            if self._loaded:
                self.head = _remove_unacknowledged(self._connection, self.head)
        return self._connection

    def _acknowledge(self, head: store.Head, *, vouch: bool) -> None:
        """Store the head. ``vouch``: also in the run directory.

        The head of a ledger that may be old is not stored there before its next row. That row says which proofs do not
        count any more. If the service ends before that row, the next start decides again.
        """
        self._headfiles.write(head, vouch=vouch)
        self.head, self._loaded = head, True


def checked(connection: sqlite3.Connection, noted: store.Head | None, fold: store.Fold) -> store.Loaded:
    """All rows, folded into the records, if the chain holds. ``noted``: the newest row by the head file."""
    cut = database.cut(connection)
    records, count = codec.decode_records(cut.records) if cut else (), 0
    rows = chain.check(cut, database.rows(connection), noted)
    recent = deque[LedgerEntry](maxlen=store.REMEMBERED)
    while part := tuple(islice(rows, AT_ONCE)):
        entries = chain.entries(part)
        records, count = fold(records, entries), count + len(entries)
        recent.extend(entries)
    return store.Loaded(records, count, tuple(recent), database.head(connection))


def _remove_unacknowledged(connection: sqlite3.Connection, acknowledged: store.Head) -> store.Head:
    """Delete the rows of an append that raised an error but reached the file."""
    if database.head(connection) == acknowledged:
        return acknowledged
    beyond = list(database.rows(connection, first=acknowledged.seq + 1))
    if [row.kind for row in beyond] == [chain.COMPACTED]:
        return database.head(connection)  # a compaction that was completed changes no fact
    with database.transaction(connection):
        connection.execute("DELETE FROM entries WHERE seq > ?", (acknowledged.seq,))
        if database.head(connection) != acknowledged:
            raise store.CorruptLedgerError("cannot use the ledger: another program changed it; restart the service")
    return acknowledged


Load = Callable[[SqliteStore], object]
"""Loads the ledger; raises CorruptLedgerError also when the transition table does not allow its rows."""


def open_or_set_aside(
    path: Path, at: Moment, load: Load = SqliteStore.load, run_head: Path | None = None
) -> tuple[SqliteStore, SetAside | None]:
    """A store that was loaded once without an error, and the damaged ledger that was set aside, if any.

    LedgerUnavailable (disk full, read-only, locked): call again later. FatalError (another writer, a newer schema):
    a person has to act. Neither changes the stored data. ``run_head``: where the head is stored a second time.
    """
    where = files.Places(path, run_head)
    with database.translated("open the ledger", path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = files.Lock(where)
        try:
            where.demand(private_files.demand_own)
            return _open(where, lock, at, load)
        except BaseException:  # any error, a cancellation too: release the lock and raise it again
            lock.release()
            raise


def _open(where: files.Places, lock: files.Lock, at: Moment, load: Load) -> tuple[SqliteStore, SetAside | None]:
    try:
        if not where.database.exists():
            _check_nothing_left(where)
            _create(where, chain.note(chain.BEGUN, at, {}))
        return _loaded(where, lock, load), None
    except store.CorruptLedgerError as error:
        aside = SetAside(_move(where, at), error.message)
    try:
        with database.translated("create a new ledger at", where.database):
            _create(where, chain.note(chain.BEGUN, at, {"set_aside": aside.path.name, "why": aside.why}))
        return _loaded(where, lock, load), aside
    except LedgerUnavailable as error:
        raise LedgerUnavailable(f"{error}; the damaged ledger was set aside as {aside.path}: {aside.why}") from error


def _loaded(where: files.Places, lock: files.Lock, load: Load) -> SqliteStore:
    opened = SqliteStore(where, lock)
    try:
        load(opened)
    except BaseException:  # any error, a cancellation too: disconnect and raise it again
        opened.disconnect()
        raise
    return opened


def _check_nothing_left(where: files.Places) -> None:
    left = [it.name for it in (where.wal, where.shm, where.head) if it.exists()]
    if left:
        raise store.CorruptLedgerError(f"the ledger {where.database} is missing, although {', '.join(left)} exists")


def _move(where: files.Places, at: Moment) -> Path:
    """Rename every file of a ledger. After a crash in between, the next start finds the rest damaged too."""
    stamp = calendar_time.utc(at.wall).strftime("%4Y%m%dT%H%M%SZ")
    base = f"{where.database.name}.corrupt-{stamp}"
    taken = where.aside()
    name = next(it for n in range(len(taken) + 1) if not _in_use(it := base + (f"-{n}" if n else ""), taken))
    to = files.Places(where.database.with_name(name))
    # The log before the database, so that a new database never reads an old log. The head last: it shows the damage.
    for old, new in (
        (where.wal, to.wal),
        (where.shm, to.shm),
        (where.database, to.database),
        (where.head, to.head),
    ):
        if old.exists():
            old.rename(new)
    _sync_directory(where)
    return to.database


def _in_use(name: str, taken: tuple[str, ...]) -> bool:
    return any(it in {name, f"{name}-wal", f"{name}-shm", f"{name}.head"} for it in taken)


def _create(where: files.Places, first: chain.ChainRow) -> None:
    """Create a ledger with its first row under another name, then rename it: it exists completely or not at all."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        where.fresh.with_name(where.fresh.name + suffix).unlink(missing_ok=True)
    os.close(os.open(where.fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # -wal and -shm inherit the mode
    [row] = chain.seal(chain.START, [first])
    database.create(where.fresh, row)
    where.fresh.rename(where.database)
    with closing(files.HeadFiles(where)) as kept:
        kept.write(row.head, vouch=False)
        kept.sync()
    _sync_directory(where)


def _sync_directory(where: files.Places) -> None:
    directory = os.open(where.database.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
