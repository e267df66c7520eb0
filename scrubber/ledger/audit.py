"""Verify, export and read a ledger file. Read only: a service may write to the ledger meanwhile."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ground import private_files
from ground.errors import FatalError
from scrubber.core import states
from scrubber.core.model import Record
from scrubber.ledger import chain, codec, database, files, sqlite, store


@dataclass(frozen=True, slots=True)
class Broken:
    """The damage that was found; ``seq`` is None when the damage is in no single row."""

    seq: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The result for a ledger. ``rows`` counts the valid rows of the chain, ``head`` is the last of them."""

    rows: int
    head: store.Head | None
    broken: Broken | None
    set_aside: tuple[str, ...]  # names of damaged ledgers in the same directory


def verify(path: Path) -> Audit:
    """Check the chain, every event, the snapshot, the tail and SQLite's format, in one consistent view."""
    where = files.Places(path)
    count, head = 0, None
    try:
        # Read the head first: a writer may add rows meanwhile, so the rows may be ahead of the head, never behind.
        with database.translated("read the ledger", path):
            where.demand(private_files.demand_regular)
            noted = files.read_head(where.head)
        with _reading(where) as connection:
            cut = database.cut(connection)
            for row in chain.check(cut, database.rows(connection), noted):
                chain.entry(row)
                count, head = count + 1, row.head
            if cut is not None:
                codec.decode_records(cut.records)
                _check_evidence(connection, cut)
            database.check_format(connection, path)
    except store.CorruptLedgerError as error:
        return Audit(count, head, Broken(error.seq, error.message), where.aside())
    return Audit(count, head, None, where.aside())


def _check_evidence(connection: sqlite3.Connection, cut: chain.MissingTail) -> None:
    """Check each batch of evidence, and that there is no evidence outside the batches."""
    first = database.EARLIEST
    for batch in cut.batches:
        last = database.LATEST if batch is cut.batches[-1] else batch.cut
        kept = tuple(database.evidence(connection, first, last))
        chain.check_evidence(batch, kept)
        chain.entries(kept)
        first = batch.cut + 1


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger whose chain holds, as it is on the disk, and the devices after its newest row."""

    path: Path
    records: Mapping[str, Record]
    kept: store.Kept

    async def history(
        self, device: str | None, since: float | None, limit: int, window: store.Window = store.EVERYTHING
    ) -> store.Page:
        """The newest entries of the window, of one device or of all, newest last."""
        with _reading(files.Places(self.path)) as connection:
            return store.Page(chain.entries(database.newest(connection, device, since, limit, window)))


def read(path: Path) -> LedgerFile:
    """Read a ledger; LedgerUnavailable if it is damaged or cannot be read, FatalError if there is none."""
    where = files.Places(path)
    with database.translated("read the ledger", path):
        where.demand(private_files.demand_regular)
        noted = files.read_head(where.head)
    with _reading(where) as connection:
        records = sqlite.checked(connection, noted, states.replay).records
        kept = database.kept(connection)
    return LedgerFile(path, {record.device.uuid: record for record in records}, kept)


def export(path: Path) -> Iterator[dict[str, object]]:
    """The evidence, the snapshot, and each row with its hash, ready for JSON. A body that is not JSON stays text."""
    with _reading(files.Places(path)) as connection:
        if (cut := database.cut(connection)) is not None:
            yield from map(_exported, database.evidence(connection))
            yield {"seq": cut.head.seq, "hash": cut.head.hash, "kind": "snapshot", "body": _parsed(cut.records)}
        yield from map(_exported, database.rows(connection))


def _exported(row: chain.ChainRow) -> dict[str, object]:
    return {**row._asdict(), "body": _parsed(row.body)}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def _reading(where: files.Places) -> Iterator[sqlite3.Connection]:
    if not where.database.exists():
        raise FatalError(f"cannot read the ledger {where.database}: there is no such file; name the state directory")
    with database.translated("read the ledger", where.database):
        where.demand(private_files.demand_regular)
        connection = _connect(where)
        try:
            database.refuse_newer(connection, where.database)
            with database.transaction(connection, "BEGIN"):
                yield connection
        finally:
            connection.close()


def _connect(where: files.Places) -> sqlite3.Connection:
    connection = database.connect(where.database, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        # SQLite cannot create the index of the log in a read-only directory. Without a log it needs no index.
        connection.close()
        if where.wal.exists() and where.wal.stat().st_size:
            raise
        return database.connect(where.database, "mode=ro&immutable=1")
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
