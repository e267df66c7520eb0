"""The store that survives: SQLite in WAL mode, one fdatasync a commit, every row chained to the one before.

After any failed write the connection is thrown away. The next call opens a new one, reads the head from the disk and
takes back what a failed append may have left there: what was reported as not recorded does not come true later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger import chain, codec, database, faults, files, headfile, migrations, store


class SqliteStore:
    """One writer's view of a ledger file; opened by ``opening.open_or_set_aside``, which holds the lock for it."""

    def __init__(self, where: files.Places, lock: files.Lock) -> None:
        """Touch nothing yet: the first call connects."""
        self._where = where
        self._lock: files.Lock | None = lock
        self._connection: sqlite3.Connection | None = None
        self._headfile: headfile.HeadFile | None = None
        self._head: store.Head | None = None  # the newest acknowledged row; None until the first load

    @property
    def head(self) -> store.Head:
        """The newest row that was acknowledged."""
        return self._head or chain.START

    def load(self) -> store.Loaded:
        """Everything, verified: SQLite's format, the chain, the snapshot, the tail, and each event."""
        with faults.told("read the ledger", self._where.database), self._disconnecting():
            if self._head is not None:
                self._connected()  # takes back what a failed append may have left
            loaded = self._look()
            self._connected()  # learn now, not at the first write, when the disk cannot be written
            self._acknowledge(loaded.head)
            return loaded

    def append(self, drafts: Sequence[store.Draft]) -> tuple[LedgerEntry, ...]:
        """All of them on the disk, in one transaction."""
        contents = [chain.content(draft) for draft in drafts]
        with self._writing() as (connection, head):
            rows = chain.seal(head, contents)
            database.insert(connection, rows)
        return tuple(
            LedgerEntry(row.seq, draft.device, draft.at, draft.op, draft.event)
            for row, draft in zip(rows, drafts, strict=True)
        )

    def history(self, device: str | None, since: float | None, limit: int) -> tuple[LedgerEntry, ...]:
        """The newest entries, newest last, over a connection of its own: any thread may ask."""
        with (
            faults.told("read the ledger", self._where.database),
            closing(database.connect(self._where.database, "mode=ro")) as connection,
        ):
            return chain.entries(database.newest(connection, device, since, limit))

    def compact(self, fold: store.Fold, keep: int, at: Moment) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot, in one transaction; then shrink the file."""
        with self._writing() as (connection, head):
            before = database.cut(connection)
            folded = tuple(database.rows(connection, last=head.seq - keep))
            if len(folded) < chain.WORTH_FOLDING:
                return 0
            cut = chain.fold(before, folded, fold)
            database.fold(connection, cut)
            database.insert(connection, chain.seal(head, [chain.compaction(at, cut)]))
        with faults.told("shrink the ledger", self._where.database), self._disconnecting():
            database.shrink(self._connected())
        return len(folded)

    def disconnect(self) -> None:
        """Let go of the files, not of the lock; the next call connects again."""
        connection, self._connection = self._connection, None
        kept, self._headfile = self._headfile, None
        if kept is not None:
            kept.close()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Bring the log home, force the head to the disk, let go of the lock."""
        lock, self._lock = self._lock, None
        try:
            with faults.told("close the ledger", self._where.database):
                if self._headfile is not None:
                    self._headfile.sync()
        finally:
            self.disconnect()
            if lock is not None:
                lock.release()

    def _look(self) -> store.Loaded:
        # Read-only: a damaged file must not be touched, not even by SQLite tidying its log away.
        with closing(database.connect(self._where.database, "mode=ro")) as connection:
            outdated = migrations.outdated(connection, self._where.database)
            database.check_format(connection)
            if outdated:
                self._connected()  # migrates
            with database.transaction(connection, "BEGIN"):
                noted = headfile.read(self._where.head)
                cut = database.cut(connection)
                entries = chain.entries(chain.check(cut, database.rows(connection), noted))
                records = codec.decode_records(cut.records) if cut else ()
                return store.Loaded(records, entries, database.head(connection))

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, store.Head]]:
        with faults.told("write to the ledger", self._where.database), self._disconnecting():
            connection = self._connected()
            if self._head is None:
                raise LedgerUnavailable("cannot write to the ledger: it was not loaded; load it first")
            with database.transaction(connection):
                yield connection, self._head
            self._acknowledge(database.head(connection))

    @contextmanager
    def _disconnecting(self) -> Iterator[None]:
        # Whatever went wrong, nothing is known of the connection any more; the next call begins with a new one.
        try:
            yield
        except BaseException:  # whatever it is: cleared up after, and raised again
            self.disconnect()
            raise

    def _connected(self) -> sqlite3.Connection:
        if self._lock is None:
            raise LedgerUnavailable("cannot use the ledger: it is closed; start the service again")
        if self._connection is None:
            self._connection = database.connect(self._where.database)
            migrations.migrate(self._connection, self._where.database)
            database.make_durable(self._connection)
            if self._head is not None:
                self._head = _take_back(self._connection, self._head)
        return self._connection

    def _acknowledge(self, head: store.Head) -> None:
        if self._headfile is None:
            self._headfile = headfile.HeadFile(self._where.head)
        self._headfile.write(head)
        self._head = head


def _take_back(connection: sqlite3.Connection, acknowledged: store.Head) -> store.Head:
    """An append that raised may have reached the file all the same: the rows that nobody acknowledged go."""
    if database.head(connection) == acknowledged:
        return acknowledged
    beyond = list(database.rows(connection, first=acknowledged.seq + 1))
    if [row.kind for row in beyond] == [chain.COMPACTED]:
        return database.head(connection)  # a compaction that was completed changes no fact
    with database.transaction(connection):
        connection.execute("DELETE FROM entries WHERE seq > ?", (acknowledged.seq,))
        if database.head(connection) != acknowledged:
            raise store.CorruptLedgerError(
                "cannot go on with the ledger: somebody else changed it; restart the service"
            )
    return acknowledged
