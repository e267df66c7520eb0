"""Verifies a whole ledger: whether each row is as it was written, and whether one was lost or moved. It only reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ground.errors import joined
from ground.quantities import quantity
from scrubber.ledger import database, ledger_rows, tree
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.ledger.ledger_rows import CorruptLedgerError
from scrubber.ledger.reading import consistent_view, noted_head
from scrubber.receipts.merkle import Head
from scrubber.receipts.note import Checkpoint


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


def verify(path: Path, checkpoints: Iterable[Checkpoint] = ()) -> Audit:
    """Check the tree, every row and event, the snapshot, the tail and SQLite's format, in one consistent view.

    ``checkpoints`` that were kept elsewhere also show rows that were cut off or replaced together with all of this.
    """
    paths = LedgerPaths(path)
    count, last, head, broken, vouched = 0, 0, None, None, 0
    try:
        noted = noted_head(paths)
        with consistent_view(paths) as connection:
            database.check_version(connection, path)
            snapshot = database.snapshot_of(connection)
            for row in tree.check(connection, snapshot, database.rows(connection), noted):
                ledger_rows.entry(row)
                count, last = count + 1, row.seq
            if snapshot is not None:
                ledger_rows.decode_records(snapshot.records)
                _check_evidence(connection, snapshot)
                tree.check_folded(connection, snapshot)
            for checkpoint in sorted(checkpoints, key=lambda each: each.size):
                _check_against(connection, last, vouched, checkpoint)
                vouched = checkpoint.size
            database.check_format(connection, path)
            head = Head.of(database.tree_of(connection))
    except CorruptLedgerError as error:
        broken = Broken(error.seq, joined(error.unreadable or error.message, *error.remedies))
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


def _check_evidence(connection: sqlite3.Connection, snapshot: ledger_rows.Snapshot) -> None:
    """Check each batch of evidence, and that there is no evidence outside the batches."""
    first = database.EARLIEST
    for batch in snapshot.batches:
        last = database.LATEST if batch is snapshot.batches[-1] else batch.cut
        kept = tuple(database.evidence(connection, first, last))
        tree.check_leaves(connection, kept)
        ledger_rows.check_evidence(batch, kept)
        ledger_rows.entries(kept)
        first = batch.cut + 1
