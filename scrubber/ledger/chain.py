"""The hash chain: each row carries the hash of the row before, so a changed, missing or moved row is detected.

Pure functions. Besides events the chain holds two kinds of notes: how the ledger began (which damaged ledger was set
aside), and where older rows were folded into a snapshot. The chain alone cannot show that its last rows are missing:
a :class:`store.Head` in another file shows it.

Folded rows that are evidence are kept in batches, one for each compaction. The newest note holds a digest of them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import codec, store

START = store.Head(0, "0" * 64)

BEGUN = "ledger-begun"
COMPACTED = "ledger-compacted"
NOTES = frozenset({BEGUN, COMPACTED})
STEPS = frozenset(codec.KINDS[event] for event in events.STEPS)

WORTH_FOLDING = 2  # rows; a compaction costs a row of its own


class ChainRow(NamedTuple):
    """A row as stored. ``prev`` is the hash of the row before, ``hash`` covers every other column."""

    seq: int
    device: str
    wall: float
    uptime: float
    op: str
    kind: str
    body: str
    prev: str
    hash: str

    @property
    def head(self) -> store.Head:
        """The number and hash of this row."""
        return store.Head(self.seq, self.hash)


@dataclass(frozen=True, slots=True)
class Batch:
    """The evidence of one compaction, up to the row ``cut``: how many rows, the newest wall time, and the digest."""

    cut: int
    rows: int
    newest: float
    digest: str


@dataclass(frozen=True, slots=True)
class MissingTail:
    """The snapshot of a compaction: the last row that was folded, the records at that row, and the batches kept."""

    head: store.Head
    records: str
    batches: tuple[Batch, ...] = ()


def unsealed(device: str, at: Moment, op: str, kind: str, body: str) -> ChainRow:
    """A row that has no number and no hash yet."""
    # Adding 0.0 turns an int into a float and -0.0 into 0.0, as SQLite does: the hash must cover what is read back.
    return ChainRow(0, device, at.wall + 0.0, at.uptime + 0.0, op, kind, body, "", "")


def contents(drafts: Iterable[LedgerEntry]) -> list[ChainRow]:
    """Drafts as unsealed rows; ValueError when one cannot be stored."""
    return [unsealed(draft.device, draft.at, draft.op, *codec.encode(draft.event)) for draft in drafts]


def note(kind: str, at: Moment, body: object) -> ChainRow:
    """An unsealed row that holds a note instead of an event."""
    return unsealed("", at, "", kind, codec.canonical(body))


def compaction(at: Moment, cut: MissingTail) -> ChainRow:
    """The note that holds the hash of a snapshot."""
    return note(COMPACTED, at, _vouched(cut))


def seal(head: store.Head, unsealed_rows: Iterable[ChainRow]) -> tuple[ChainRow, ...]:
    """The same rows with the numbers and hashes that follow ``head``."""
    rows = []
    for row in unsealed_rows:
        linked = row._replace(seq=head.seq + 1, prev=head.hash)
        rows.append(linked._replace(hash=digest(linked)))
        head = rows[-1].head
    return tuple(rows)


def fold(
    cut: MissingTail | None, rows: Sequence[ChainRow], how: store.Fold, now: float, keep: store.Retention
) -> MissingTail:
    """The new snapshot: the old snapshot with these rows folded into it, and the batches of evidence that are kept."""
    before = codec.decode_records(cut.records) if cut else ()
    after = how(before, entries(check_links(cut.head if cut else START, rows)))
    kept = evidence(rows)
    batches = (*(cut.batches if cut else ()), *([batch(rows[-1].seq, kept)] if kept else []))
    return MissingTail(rows[-1].head, codec.encode_records(after), _retained(batches, now, keep))


def evidence(rows: Iterable[ChainRow]) -> tuple[ChainRow, ...]:
    """The rows that stay in the history after they were folded."""
    return tuple(row for row in rows if row.kind not in STEPS and row.kind != COMPACTED)


def batch(cut: int, kept: Sequence[ChainRow]) -> Batch:
    """The batch of this evidence."""
    return Batch(cut, len(kept), max(row.wall for row in kept), _digest_of(row.hash for row in kept))


def _digest_of(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def check_evidence(expected: Batch, kept: Sequence[ChainRow]) -> None:
    """CorruptLedgerError unless these are the rows of the batch, as they were written."""
    for row in kept:
        _check_hash(row)
    if not kept or batch(expected.cut, kept) != expected:
        raise store.CorruptLedgerError(f"the evidence up to row {expected.cut} is not what was kept", expected.cut)


def _retained(batches: tuple[Batch, ...], now: float, keep: store.Retention) -> tuple[Batch, ...]:
    """The newest batches that are young enough and together not too many rows."""
    total, kept = 0, list[Batch]()
    for it in reversed(batches):
        total += it.rows
        if total > keep.rows or it.newest < now - keep.seconds:
            break
        kept.insert(0, it)
    return tuple(kept)


def digest(row: ChainRow) -> str:
    """The hash that the row must have."""
    text = codec.canonical([row.prev, *row[:-2]])
    return hashlib.sha256(text.encode()).hexdigest()


def check(cut: MissingTail | None, rows: Iterable[ChainRow], noted: store.Head | None) -> Iterator[ChainRow]:
    """Yield each row once it is verified; CorruptLedgerError names the first invalid row.

    ``noted`` is the head that is stored outside the chain: the chain must reach it.
    """
    head = cut.head if cut else START
    _check_noted(head, noted)
    vouched = None
    for row in check_links(head, rows):
        head = row.head
        _check_noted(head, noted)
        if row.kind == COMPACTED:
            vouched = row
        yield row
    _check_cut(cut, vouched)
    _check_tail(head, noted)


def check_links(head: store.Head, rows: Iterable[ChainRow]) -> Iterator[ChainRow]:
    """Yield each row once its hash and its link to the row before are verified; the first row follows ``head``."""
    for row in rows:
        _check_row(head, row)
        head = row.head
        yield row


def entry(row: ChainRow) -> LedgerEntry | None:
    """The event that a row holds, None for a note; CorruptLedgerError names the row."""
    if row.kind in NOTES:
        return None
    try:
        event = codec.decode(row.kind, row.body)
    except store.CorruptLedgerError as error:
        raise store.CorruptLedgerError(f"row {row.seq}: {error.message}", row.seq) from error
    return LedgerEntry(row.seq, row.device, Moment(row.wall, row.uptime), row.op, event)


def entries(rows: Iterable[ChainRow]) -> tuple[LedgerEntry, ...]:
    """The events among rows, in order."""
    return tuple(found for row in rows if (found := entry(row)) is not None)


def _check_row(head: store.Head, row: ChainRow) -> None:
    if row.seq != head.seq + 1:
        raise store.CorruptLedgerError(f"expected row {head.seq + 1}, found row {row.seq}", head.seq + 1)
    _check_hash(row)
    if row.prev != head.hash:
        raise store.CorruptLedgerError(
            f"row {row.seq} does not follow row {head.seq}: its link is not the hash of that row", row.seq
        )


def _check_hash(row: ChainRow) -> None:
    if row.hash != digest(row):
        raise store.CorruptLedgerError(f"row {row.seq} was changed: its hash does not match its content", row.seq)


def _check_noted(head: store.Head, noted: store.Head | None) -> None:
    if noted is not None and noted.seq == head.seq and noted.hash != head.hash:
        raise store.CorruptLedgerError(f"row {head.seq} is not the row that the head file names", head.seq)


def _check_tail(head: store.Head, noted: store.Head | None) -> None:
    if noted is None:
        if head.seq != 1:  # a crash can leave the first row without a head file, but no later row
            raise store.CorruptLedgerError("cannot verify that the last rows are present: the head file is missing")
    elif noted.seq > head.seq:
        raise store.CorruptLedgerError(
            f"cannot find row {head.seq + 1}: the last rows are lost, the head file names row {noted.seq}", head.seq + 1
        )


def _check_cut(cut: MissingTail | None, vouched: ChainRow | None) -> None:
    if cut is None and vouched is None:
        return
    if cut is None or vouched is None or vouched.body != codec.canonical(_vouched(cut)):
        seq = vouched.seq if vouched else None
        why = "no row holds its hash" if seq is None else f"its hash is not the one in row {seq}"
        raise store.CorruptLedgerError(f"the snapshot is not valid: {why}", seq)


def _vouched(cut: MissingTail) -> dict[str, object]:
    return {
        "cut": cut.head.seq,
        "hash": cut.head.hash,
        "snapshot": hashlib.sha256(cut.records.encode()).hexdigest(),
        **({"evidence": _digest_of(it.digest for it in cut.batches)} if cut.batches else {}),
    }
