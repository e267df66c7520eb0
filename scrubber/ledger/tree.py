"""The Merkle tree over the rows of a ledger, in its file. It only grows: a compaction leaves it as it is.

Row 1 is leaf 0. The entry of a row is its hash, and for a row with a signed receipt also the hash of that document. So
a person who has the document can show that the ledger has it, and needs to know nothing else of the row.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator

from ground.quantities import quantity
from scrubber.core.events import ScrubPassed
from scrubber.ledger import stored
from scrubber.ledger.stored import CorruptLedgerError, LedgerRow
from scrubber.receipts import merkle
from scrubber.receipts.merkle import Inclusion

SCHEMA = """
    CREATE TABLE tree (
        level INTEGER NOT NULL,
        place INTEGER NOT NULL,
        hash  BLOB NOT NULL,
        PRIMARY KEY (level, place)
    ) STRICT, WITHOUT ROWID;
"""
PASSED = stored.KINDS[ScrubPassed]
_LEVEL = "SELECT hash FROM tree WHERE level = ? ORDER BY place"
_HIGHEST = 62  # of the levels that a tree may have: seq is a signed number of 64 bits


def append(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """Add the leaves of new rows, and all nodes that they complete."""
    lookup = _stored(connection)
    for row in rows:
        for node in merkle.completed(row.seq - 1, leaf(row), lookup):
            connection.execute("INSERT INTO tree VALUES (?, ?, ?)", node)


def cut(connection: sqlite3.Connection, size: int) -> None:
    """Delete all leaves but the first ``size`` ones, and the nodes above what is deleted."""
    for level in range(_HIGHEST + 1):
        connection.execute("DELETE FROM tree WHERE level = ? AND place >= ?", (level, size >> level))


def include(connection: sqlite3.Connection, seq: int, size: int) -> Inclusion:
    """That a row is in the tree of the first ``size`` rows."""
    return merkle.include(seq - 1, size, _stored(connection))


def root(connection: sqlite3.Connection, size: int) -> bytes:
    """The root of the tree of the first ``size`` rows."""
    return merkle.root(size, _stored(connection))


def check_leaves(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """Yield each of the newest rows once its leaf is verified; the leaves must end with the last row."""
    last = 0
    for row in rows:
        check(connection, (row,))
        last = row.seq
        yield row
    [(leaves,)] = connection.execute("SELECT count(*) FROM tree WHERE level = 0")
    if leaves != last:
        raise CorruptLedgerError(f"the tree has {quantity(leaves, 'leaf', 'leaves')}, although the last row is {last}")


def check(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """CorruptLedgerError names the first row that has not its leaf in the tree."""
    lookup = _stored(connection)
    for row in rows:
        if lookup(0, row.seq - 1) != leaf(row):
            raise CorruptLedgerError(f"row {row.seq} has another leaf in the tree", row.seq)


def check_nodes(connection: sqlite3.Connection) -> None:
    """CorruptLedgerError unless each node above the leaves follows from those below it, and none is missing."""
    for level in range(_HIGHEST):
        below = (node for (node,) in connection.execute(_LEVEL, (level,)))
        expected = [merkle.parent(left, right) for left, right in zip(below, below, strict=False)]
        if expected != [node for (node,) in connection.execute(_LEVEL, (level + 1,))]:
            raise CorruptLedgerError(f"level {level + 1} of the tree does not follow from the level below")
        if not expected:
            return


def check_end(connection: sqlite3.Connection, size: int) -> None:
    """CorruptLedgerError if no leaf can be added to the first ``size`` ones: a node for it is missing, or there."""
    root(connection, size)
    for level in range(_HIGHEST + 1):
        if connection.execute("SELECT 1 FROM tree WHERE level = ? AND place >= ?", (level, size >> level)).fetchone():
            raise CorruptLedgerError(f"the tree has nodes on level {level} beyond the last row, of {size}")


def leaf(row: LedgerRow) -> bytes:
    """The leaf of a row; CorruptLedgerError if it is said to have a receipt and has none."""
    try:
        envelope = json.loads(row.body)["receipt"].get("envelope", "") if row.kind == PASSED else ""
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptLedgerError(f"row {row.seq}: cannot read an event: it has no receipt", row.seq) from error
    return merkle.leaf(merkle.entry(row.hash, envelope))


def _stored(connection: sqlite3.Connection) -> merkle.Lookup:
    """Finds a node; CorruptLedgerError if it is missing."""

    def lookup(level: int, place: int) -> bytes:
        columns = connection.execute("SELECT hash FROM tree WHERE level = ? AND place = ?", (level, place)).fetchone()
        if columns is None:
            raise CorruptLedgerError(f"the tree has no node {place} on level {level}")
        node: bytes = columns[0]
        return node

    return lookup
