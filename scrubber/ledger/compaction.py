"""A compaction of a ledger as a value: the snapshot, the evidence that stays, and whether it is what had to stay.

Folded rows that are evidence are kept in batches, one for each compaction. The note of the newest compaction holds a
digest of them all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger.ledger_rows import (
    ATTEMPTED,
    COMPACTED,
    FAILED,
    PROVEN,
    SOILED,
    STEP,
    CorruptLedgerError,
    LedgerRow,
    Mark,
    canonical,
    decode_records,
    encode_records,
    entries,
    new_note,
)

WORTH_FOLDING = 2  # rows; a compaction costs a row of its own

Fold = Callable[[tuple[Record, ...], Sequence[LedgerEntry]], tuple[Record, ...]]
"""The records after more entries: (records so far, next entries) -> records."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much evidence is kept: the rows that tell more than how a scrub went. Its oldest batches go first."""

    rows: int = 2**62
    seconds: float = math.inf


KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class Batch:
    """The evidence of one compaction, up to the row ``cut``: how many rows, the newest wall time, and the digest."""

    cut: int
    rows: int
    newest: float
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a compaction leaves: the last row that was folded, the records at that row, and the batches kept."""

    cut: int
    records: str
    batches: tuple[Batch, ...] = ()
    dropped: int = 0  # the evidence up to this row was dropped, because of its age or number


def compaction(seq: int, at: Moment, snapshot: Snapshot) -> LedgerRow:
    """The note that holds the hash of a snapshot."""
    return new_note(seq, COMPACTED, at, _vouched(snapshot, marked=True))


def dropped(body: str, cut: int) -> int:
    """Up to which row evidence was dropped, by the note of a compaction; CorruptLedgerError if it does not say that."""
    try:
        row = json.loads(body).get("dropped", 0)
    except (ValueError, AttributeError, RecursionError):
        row = None
    if not isinstance(row, int) or not 0 <= row <= cut:
        raise CorruptLedgerError("the snapshot is not valid: the note of the compaction cannot be read")
    return row


def _digest_of(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def fold(
    snapshot: Snapshot | None, rows: Sequence[LedgerRow], how: Fold, now: float, keep: Retention
) -> Snapshot:  # fmt: skip
    """The new snapshot: the old one with these rows folded into it, and the newest batches of evidence.

    The batches that stay are young enough and have together not too many rows.
    """
    before = decode_records(snapshot.records) if snapshot else ()
    after = how(before, entries(rows))
    kept = evidence(rows)
    total, batches, gone = 0, list[Batch](), snapshot.dropped if snapshot else 0
    for one in ([batch(rows[-1].seq, kept)] if kept else []) + list(reversed(snapshot.batches if snapshot else ())):
        total += one.rows
        if total > keep.rows or one.newest < now - keep.seconds:
            gone = one.cut
            break
        batches.insert(0, one)
    return Snapshot(rows[-1].seq, encode_records(after), tuple(batches), gone)


def evidence(rows: Sequence[LedgerRow]) -> tuple[LedgerRow, ...]:
    """The rows that stay in the history after they were folded."""
    # Apart: of the deleted rows of older versions, no mark is left.
    apart = ([row for row in rows if row.is_marked is marked] for marked in (False, True))
    kept = frozenset(seq for part in apart for seq in that_stay((row.seq, row.mark) for row in part))
    return tuple(row for row in rows if row.seq in kept)


def that_stay(marks: Iterable[tuple[int, Mark]]) -> tuple[int, ...]:
    """The numbers of those of these rows that stay.

    Who uses a device again and again must not push out what else is kept. Of such uses, and of scrubs that fail again
    and again, the first one stays, and for each container the last one, which counts them. The proofs between them were
    for nobody.
    """
    kept: dict[int, None] = {}
    uses: dict[str, dict[tuple[str, str], list[int]]] = {}  # by device: the last use by each, and the proof after it
    for seq, mark in marks:
        if mark.what == STEP:
            continue
        kept[seq] = None
        users = uses.setdefault(mark.device, {})
        if mark.what in (SOILED, FAILED):
            user = mark.what, mark.user
            goes_on = mark.goes_on or any(what == mark.what for what, _ in users)  # a proof begins the count anew
            for counted in users.pop(user, ()):
                del kept[counted]
            users[user] = [seq] if goes_on else []
        elif mark.what == PROVEN and users:
            next(reversed(users.values())).append(seq)
        elif mark.what != ATTEMPTED:  # that is written at any time: it begins no new count
            users.clear()
    return tuple(kept)


def batch(cut: int, kept: Sequence[LedgerRow]) -> Batch:
    """The batch of this evidence."""
    return Batch(cut, len(kept), max(row.wall for row in kept), _digest_of(row.hash for row in kept))


def _vouched(snapshot: Snapshot, *, marked: bool) -> dict[str, object]:
    """What the note of a compaction says about its snapshot. ``marked``: no older version wrote the note."""
    batches = [canonical(astuple(one)) if marked else one.digest for one in snapshot.batches]
    return {
        "cut": snapshot.cut,
        "snapshot": hashlib.sha256(snapshot.records.encode()).hexdigest(),
        **({"evidence": _digest_of(batches)} if batches else {}),
        **({"dropped": snapshot.dropped} if snapshot.dropped else {}),
    }


# -- whether what was folded is what a row vouches for


def check_evidence(expected: Batch, kept: Sequence[LedgerRow]) -> None:
    """CorruptLedgerError unless these are all rows of the batch. Whether a row was changed, its leaf shows."""
    if not kept or batch(expected.cut, kept) != expected:
        raise CorruptLedgerError(f"the evidence up to row {expected.cut} is not what was kept", expected.cut)


def check_complete(kept: Sequence[LedgerRow], deleted: Mapping[int, Mark]) -> None:
    """CorruptLedgerError names the first deleted row that had to stay. ``deleted``: the other rows of the batch."""
    marks = {**deleted, **{row.seq: row.mark for row in kept if row.is_marked}}
    missing = deleted.keys() & that_stay(sorted(marks.items()))
    if missing:
        raise CorruptLedgerError(f"row {min(missing)} is evidence, and was left out", min(missing))


def check_snapshot(snapshot: Snapshot | None, vouched: LedgerRow | None) -> None:
    """CorruptLedgerError unless this is the snapshot of the newest compaction. ``vouched``: the row of that."""
    if snapshot is None and vouched is None:
        return
    if snapshot is None or vouched is None or vouched.body != canonical(_vouched(snapshot, marked=vouched.is_marked)):
        seq = vouched.seq if vouched else None
        why = "no row holds its hash" if seq is None else f"its hash is not the one in row {seq}"
        raise CorruptLedgerError(f"the snapshot is not valid: {why}", seq)
