"""The Merkle tree of a ledger's rows, as nodes in its SQLite file: appended, and checked against rows and notes.

Row 1 is leaf 0. The entry of a row is its hash, and for a row with a signed receipt also the hash of that document. So
a person who has the document can show that the ledger has it, and needs to know nothing else about the row.

The tree only grows: a compaction leaves it as it is. It alone cannot show that its last rows are missing: a
:class:`Head` in another file shows it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ground.quantities import quantity
from scrubber.core.events import ScrubPassed, TenancyClosed
from scrubber.ledger import ledger_rows
from scrubber.ledger.ledger_rows import CorruptLedgerError, LedgerRow, Snapshot
from scrubber.receipts import merkle
from scrubber.receipts.merkle import Frontier, Head, Inclusion, Node

SCHEMA = """
    CREATE TABLE tree (
        level INTEGER NOT NULL,
        place INTEGER NOT NULL,
        hash  BLOB NOT NULL,
        PRIMARY KEY (level, place)
    ) STRICT, WITHOUT ROWID;
"""
PASSED, CLOSED = ledger_rows.KINDS[ScrubPassed], ledger_rows.KINDS[TenancyClosed]
_NODES = "SELECT place, hash FROM tree WHERE level = ? AND place >= ? ORDER BY place"
_LEVELS = 63  # that a tree may have: seq is a signed number of 64 bits


def append(connection: sqlite3.Connection, frontier: Frontier, rows: Iterable[LedgerRow]) -> Frontier:
    """Add the leaves of new rows, and all nodes that they complete; ValueError when a row cannot be stored."""
    nodes: list[Node] = []
    for row in rows:
        frontier, completed = frontier.grown(leaf(row))
        nodes += completed
    connection.executemany("INSERT INTO tree VALUES (?, ?, ?)", nodes)
    return frontier


def cut(connection: sqlite3.Connection, size: int) -> None:
    """Delete all leaves but the first ``size`` ones, and the nodes above what is deleted."""
    for level in range(_LEVELS):
        connection.execute("DELETE FROM tree WHERE level = ? AND place >= ?", (level, size >> level))


def include(connection: sqlite3.Connection, seq: int, size: int) -> Inclusion:
    """That a row is in the tree of the first ``size`` rows."""
    return merkle.include(seq - 1, size, _lookup(connection))


def frontier(connection: sqlite3.Connection, size: int) -> Frontier:
    """The tree of the first ``size`` rows, as it is stored; CorruptLedgerError if a node is missing."""
    return merkle.frontier(size, _lookup(connection))


def contains(connection: sqlite3.Connection, size: int, head: Head) -> bool:
    """Whether the first ``size`` rows begin with those of the head."""
    return 0 < head.size <= size and Head.of(frontier(connection, head.size)) == head


# -- whether the rows and their tree are as they were written


def check(
    connection: sqlite3.Connection, snapshot: Snapshot | None, rows: Iterable[LedgerRow], noted: Head | None
) -> Iterator[LedgerRow]:
    """Yield each row once it is verified; CorruptLedgerError names the first invalid row.

    ``noted`` is the head that is stored outside the database: the rows must begin with its rows, or be these.
    """
    size, vouched = snapshot.cut if snapshot else 0, None
    for row in check_rows(connection, size, rows):
        size = row.seq
        if row.kind == ledger_rows.COMPACTED:
            vouched = row
        yield row
    ledger_rows.check_snapshot(snapshot, vouched)
    _check_noted(connection, size, noted)
    for level, nodes in enumerate(_stored_nodes(connection, size)):
        if next(nodes, None) is not None:  # with such a node, no row could be written
            raise CorruptLedgerError(f"the tree has nodes on level {level} beyond the last row, of {size}")


def check_rows(connection: sqlite3.Connection, size: int, rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """Yield each row after the first ``size`` ones once its leaf and the nodes that it completes are verified."""
    grown, nodes = frontier(connection, size), _stored_nodes(connection, size)
    for row in rows:
        if row.seq != grown.size + 1:
            raise CorruptLedgerError(f"expected row {grown.size + 1}, found row {row.seq}", grown.size + 1)
        grown, completed = grown.grown(leaf(row))
        _compare(completed, nodes)
        yield row


def check_folded(connection: sqlite3.Connection, snapshot: Snapshot) -> None:
    """CorruptLedgerError unless the leaves of all folded rows are there, and the nodes above follow from them."""
    grown, nodes = Frontier(), _stored_nodes(connection, 0)
    for _place, hash_of_leaf in islice(connection.execute(_NODES, (0, 0)), snapshot.cut):
        grown, completed = grown.grown(hash_of_leaf)
        _compare(completed, nodes)


def check_leaves(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """CorruptLedgerError names the first row that is not the one of its leaf."""
    for row in rows:
        nodes = connection.execute(_NODES, (0, max(row.seq, 1) - 1))  # a damaged number may be the smallest there is
        _compare([(0, row.seq - 1, leaf(row))], [nodes])


def leaf(row: LedgerRow) -> bytes:
    """The leaf of a row; CorruptLedgerError if it is said to have a receipt and has none."""
    envelope = ""
    try:
        if row.kind in {PASSED, CLOSED}:
            body = json.loads(row.body)
            envelope = (body["receipt"] if row.kind == PASSED else body).get("envelope", "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLedgerError(f"row {row.seq}: cannot read an event: it has no receipt", row.seq) from error
    return merkle.leaf_of_row(row.hash, envelope)


def _compare(expected: Iterable[Node], nodes: Sequence[Iterator[tuple[int, bytes]]]) -> None:
    """Compare nodes with the next stored ones of their levels; CorruptLedgerError names the first row below."""
    for level, place, node in expected:
        if next(nodes[level], None) != (place, node):
            first = (place << level) + 1
            if level == 0:
                why = f"row {first} does not match its leaf in the tree: the row was changed, or the tree"
            else:
                why = f"the node of the tree above the rows {first} to {(place + 1) << level} does not follow from them"
            raise CorruptLedgerError(why, first)


def _check_noted(connection: sqlite3.Connection, size: int, noted: Head | None) -> None:
    if noted is None:
        if size != 1:  # a crash can leave the first row without a head file, but no later row
            raise CorruptLedgerError("cannot verify that the last rows are present: the head file is missing")
    elif noted.size > size:
        raise CorruptLedgerError(
            f"cannot find row {size + 1}: the last rows are lost, the head file counts {quantity(noted.size, 'row')}",
            size + 1,
        )
    elif not contains(connection, size, noted):
        raise CorruptLedgerError(f"the rows up to {noted.size} are not those of the head file: its root is another")


def _stored_nodes(connection: sqlite3.Connection, size: int) -> list[Iterator[tuple[int, bytes]]]:
    """The stored nodes of each level, in order, without those of the tree of the first ``size`` rows."""
    return [connection.execute(_NODES, (level, size >> level)) for level in range(_LEVELS)]


def _lookup(connection: sqlite3.Connection) -> merkle.Lookup:
    """Finds a node; CorruptLedgerError if it is missing."""

    def lookup(level: int, place: int) -> bytes:
        columns = connection.execute("SELECT hash FROM tree WHERE level = ? AND place = ?", (level, place)).fetchone()
        if columns is None:
            raise CorruptLedgerError(f"the tree has no node {place} on level {level}")
        node: bytes = columns[0]
        return node

    return lookup
