"""The writer's SQLite store: appends and compacts; each row that it acknowledges is on the disk.

After a failed write the connection is closed. The next call opens a new one, reads the head from the disk and deletes
the rows that a failed append may have left: an event that was reported as not recorded does not become true later.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, replace

from ground import log, private_files
from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import compaction, database, entry_queries, ledger_rows, tree
from scrubber.ledger.compaction import KEEP_ALL, Fold, Retention, Snapshot
from scrubber.ledger.database import Loaded
from scrubber.ledger.entry_queries import EVERYTHING, Kept, Window
from scrubber.ledger.ledger_files import HeadFiles, LedgerPaths, read_head
from scrubber.ledger.ledger_rows import TAKEN_OVER, CorruptLedgerError, LedgerRow
from scrubber.ledger.sqlite_errors import translated
from scrubber.receipts.merkle import Frontier, Head, Inclusion

logger = log.get("ledger")

_KEEP = "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


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
                database.check_format(connection, path)
                with database.transaction(connection, "BEGIN"):
                    loaded = database.load(connection, read_head(self._paths.head), fold)
                    loaded = replace(loaded, may_be_old=self._may_be_old(connection))
                    self.kept, frontier = entry_queries.kept(connection), database.tree_of(connection)
            with translated("write to the ledger", path):
                self._connected()  # fails now, not at the first write, when the disk is read-only
                self._acknowledge(frontier, vouch=not loaded.may_be_old)
            return loaded

    def take_over(self, at: Moment) -> None:
        """Take over the ledger of an older version, which refuses it from now on. A note says so."""
        with self._ready() as connection:
            before = database.version(connection)
            if before == database.VERSION:
                return
            body = {"from": before, "to": database.VERSION}
            note = ledger_rows.new_note(self.head.size + 1, TAKEN_OVER, at, body)
            with database.transaction(connection):
                grown = database.insert(connection, self._frontier, [note])
                connection.execute(f"PRAGMA user_version = {database.VERSION}")
            self._acknowledge(grown, vouch=False)
        logger.info("the ledger of an older version is taken over", path=str(self._paths.database), **body)

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Write the events to the disk in one transaction."""
        with self._ready() as connection:
            new = ledger_rows.rows_after(self.head.size, drafts)
            with database.transaction(connection):
                grown = database.insert(connection, self._frontier, new)
            # A row of the node says nothing about proofs, so an older copy must stay recognisable after it.
            self._acknowledge(grown, vouch=any(not isinstance(draft.event, events.OF_NODE) for draft in drafts))
        return tuple(replace(draft, seq=row.seq) for row, draft in zip(new, drafts, strict=True))

    def write_note(self, kind: str, at: Moment, body: object) -> None:
        """Write a note to the disk. It vouches for no proof: an older copy of the ledger stays recognisable."""
        with self._ready() as connection:
            new = ledger_rows.new_note(self.head.size + 1, kind, at, body)
            with database.transaction(connection):
                grown = database.insert(connection, self._frontier, [new])
            self._acknowledge(grown, vouch=False)

    def last_note(self, kind: str) -> str | None:
        """The body of the newest note of this kind."""
        with translated("read the ledger", self._paths.database), self._read_only() as connection:
            return next(database.notes(connection, kind), None)

    def prove(self, seq: int) -> tuple[Inclusion, str]:
        """That an acknowledged row is in the tree over all rows so far; and the row's hash."""
        with self._ready() as connection:
            [row] = database.rows(connection, seq, seq)
            return tree.include(connection, seq, self.head.size), row.hash

    def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest entries, newest last. It opens a new connection, so any thread may call it."""
        with translated("read the ledger", self._paths.database), self._read_only() as connection:
            return entry_queries.newest_entries(connection, device, since, limit, window)

    def compact(self, fold: Fold, keep: int, at: Moment, retention: Retention = KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot, in one transaction; then shrink the file."""
        with self._ready() as connection:
            with database.transaction(connection):
                before, last = database.snapshot_of(connection), self.head.size - keep
                covered = database.rows(connection, last=last)
                # Verified once more: later, only the snapshot says what the rows said.
                folded = tuple(tree.check_rows(connection, before.cut if before else 0, covered))
                if len(folded) < compaction.WORTH_FOLDING:
                    return 0
                snapshot = compaction.fold(before, folded, fold, at.wall, retention)
                _store(connection, snapshot, folded)
                note = compaction.compaction(self.head.size + 1, at, snapshot)
                grown = database.insert(connection, self._frontier, [note])
                self.kept = entry_queries.kept(connection)
            self._acknowledge(grown, vouch=True)
        with translated("shrink the ledger", self._paths.database), self._disconnecting():
            connection = self._connected()
            # It returns free pages to the file system, one page a step; execute() does one step only.
            connection.executescript("PRAGMA incremental_vacuum")
            database.empty_log(connection)
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
        return closing(database.connect(self._paths.database, "mode=ro"))

    def _may_be_old(self, connection: sqlite3.Connection) -> bool:
        """Whether the run directory does not say that it has seen the first rows of this ledger."""
        if self._paths.run_head is None:
            return False
        try:
            seen = read_head(self._paths.run_head)
        except CorruptLedgerError:  # the file is damaged, not the ledger
            return True
        return seen is None or not tree.contains(connection, database.tree_of(connection).size, seen)

    @contextmanager
    def _ready(self) -> Iterator[sqlite3.Connection]:
        """The connection, to write with."""
        with translated("write to the ledger", self._paths.database), self._disconnecting():
            waits = 2 if self._connection is None else 1
            connection = self._connected()
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * database.BUSY_SECONDS / waits)}")
            if not self._loaded:
                raise LedgerUnavailable("cannot write to the ledger: it is not loaded", "load it first")
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
            raise LedgerUnavailable("cannot use the ledger: it is closed", "start the service again")
        if self._connection is None:
            self._paths.check(private_files.demand_own)
            self._connection = database.connect(self._paths.database)
            database.make_durable(self._connection)
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


def _store(connection: sqlite3.Connection, snapshot: Snapshot, folded: Sequence[LedgerRow]) -> None:
    """Replace the rows that the snapshot covers with the snapshot, and keep those of them that are evidence."""
    kept = compaction.evidence(folded)
    for row in kept:
        connection.execute(_KEEP, (*row, ledger_rows.is_warning(row)))
    stays = {row.seq for row in kept}
    tree.open_leaves(connection, (row for row in folded if row.seq not in stays))
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
    beyond = {row.seq: row.kind for row in database.rows(connection, first=size)}
    if beyond.pop(size, None) is None or tree.frontier(connection, size) != acknowledged:
        raise CorruptLedgerError("cannot use the ledger: another program changed it", None, "restart the service")
    if [*beyond.values()] == [ledger_rows.COMPACTED]:
        return database.tree_of(connection)  # a compaction that was completed changes no fact
    if beyond:
        with database.transaction(connection):
            connection.execute("DELETE FROM entries WHERE seq > ?", (size,))
            tree.cut(connection, size)
    return acknowledged
