"""The Merkle tree of a ledger's rows, as nodes in its SQLite file: appended, and checked against rows and notes.

Row 1 is leaf 0. The entry of a row is its hash, and for a row with a signed receipt also the hash of that document. So
a person who has the document can show that the ledger has it, and needs to know nothing else about the row.

The tree only grows: a compaction leaves it as it is. It alone cannot show that its last rows are missing: a
:class:`Head` in another file shows it. Of a deleted row, the table has the mark and the digests from which the leaf
follows, in place of the leaf.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ground.quantities import quantity
from scrubber.core.events import ScrubPassed, TenancyClosed
from scrubber.ledger import compaction, ledger_rows
from scrubber.ledger.compaction import Snapshot
from scrubber.ledger.ledger_rows import CorruptLedgerError, LedgerRow, Mark
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
_HASH = 32  # bytes of a hash


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


def open_leaves(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """Store the marks of rows that are about to be deleted, in place of their leaves."""
    opened = [(_opening(row), row.seq - 1) for row in rows if row.is_marked]
    connection.executemany("UPDATE tree SET hash = ? WHERE level = 0 AND place = ?", opened)


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
    compaction.check_snapshot(snapshot, vouched)
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
    for _place, stored in islice(connection.execute(_NODES, (0, 0)), snapshot.cut):
        grown, completed = grown.grown(_leaf_of(stored))
        _compare(completed, nodes)


def check_no_others(connection: sqlite3.Connection, size: int) -> None:
    """CorruptLedgerError if the table has more than the nodes of a tree of ``size`` rows, which were verified."""
    [(count,)] = connection.execute("SELECT count(*) FROM tree")
    if count != sum(size >> level for level in range(_LEVELS)):
        raise CorruptLedgerError(f"the tree has other nodes than those of its {quantity(size, 'row')}")


def check_leaves(connection: sqlite3.Connection, rows: Iterable[LedgerRow]) -> None:
    """CorruptLedgerError names the first row that is not the one of its leaf."""
    for row in rows:
        stored = _leaves(connection, max(row.seq, 1) - 1)  # a damaged number may be the smallest there is
        _compare([(0, row.seq - 1, leaf(row))], [stored])


def marks(connection: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[int, Mark | None]]:
    """The numbers of these rows; with its mark, if the row was deleted and is not of an older version."""
    for place, stored in islice(connection.execute(_NODES, (0, first - 1)), max(last - first + 1, 0)):
        try:
            mark = None if len(stored) == _HASH else Mark(*json.loads(stored.partition(b"\n")[0]))
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptLedgerError(f"row {place + 1}: cannot read its mark", place + 1) from error
        yield place + 1, mark


def documents(connection: sqlite3.Connection, last: int) -> Iterator[tuple[int, bytes]]:
    """The deleted rows up to this one that had a signed document, with its SHA-256. Not those of older versions."""
    for place, stored in islice(connection.execute(_NODES, (0, 0)), last):
        if len(stored) != _HASH and (digest := stored.partition(b"\n")[2][_HASH:]):
            yield place + 1, digest


def leaf(row: LedgerRow) -> bytes:
    """The leaf of a row; CorruptLedgerError if it is said to have a receipt and has none."""
    return merkle.leaf_of_row(row.hash, _envelope(row))


def _envelope(row: LedgerRow) -> str:
    envelope = ""
    try:
        if row.kind in {PASSED, CLOSED}:
            body = json.loads(row.body)
            envelope = (body["receipt"] if row.kind == PASSED else body).get("envelope", "")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLedgerError(f"row {row.seq}: cannot read an event: it has no receipt", row.seq) from error
    return str(envelope)


def _opening(row: LedgerRow) -> bytes:
    """All that is left of a deleted row, and from which its leaf follows."""
    envelope = _envelope(row)
    of_envelope = hashlib.sha256(envelope.encode()).digest() if envelope else b""
    return ledger_rows.canonical(row.mark).encode() + b"\n" + bytes.fromhex(row.digest) + of_envelope


def _leaf_of(stored: bytes) -> bytes:
    """The leaf, which is stored itself, or of which what is left of the row is stored."""
    mark, _, digests = stored.partition(b"\n") if len(stored) != _HASH else (b"", b"", b"")
    if not digests:
        return stored
    row_hash = ledger_rows.hash_of(mark.decode(errors="replace"), digests[:_HASH].hex())
    return merkle.leaf_beside(row_hash, digests[_HASH:].hex())


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
    above = (connection.execute(_NODES, (level, size >> level)) for level in range(1, _LEVELS))
    return [_leaves(connection, size), *above]


def _leaves(connection: sqlite3.Connection, size: int) -> Iterator[tuple[int, bytes]]:
    return ((place, _leaf_of(stored)) for place, stored in connection.execute(_NODES, (0, size)))


def _lookup(connection: sqlite3.Connection) -> merkle.Lookup:
    """Finds a node; CorruptLedgerError if it is missing."""

    def lookup(level: int, place: int) -> bytes:
        columns = connection.execute("SELECT hash FROM tree WHERE level = ? AND place = ?", (level, place)).fetchone()
        if columns is None:
            raise CorruptLedgerError(f"the tree has no node {place} on level {level}")
        node: bytes = columns[0]
        return node if level else _leaf_of(node)

    return lookup
