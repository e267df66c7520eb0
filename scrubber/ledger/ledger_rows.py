"""Rows of a ledger as values: the kind and text of each event, notes, hashes, snapshots, batches of evidence.

Besides events there are four kinds of notes: how the ledger began (which damaged ledger was set aside), where older
rows were folded into a snapshot, which key signs receipts from now on, and where this version has taken over the ledger
of an older one.

Folded rows that are evidence are kept in batches, one for each compaction. The newest note holds a digest of them all.

The kinds below are a stored format: a class may be renamed, a kind never. After a release, increase
``database.VERSION`` with each new kind and each new field (which needs a default): an older program must refuse the
whole ledger, not fail at one row.
``tests/ledger/test_ledger_rows.py`` fails when the format changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import GenericAlias, MappingProxyType
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger import older

CLASSES: Mapping[str, type[Event]] = MappingProxyType(
    {
        "discovered": events.Discovered,
        "described": events.Described,
        "distrusted": events.Distrusted,
        "granted": events.Granted,
        "granted-unproven": events.GrantedUnproven,
        "in-use": events.PutInUse,
        "released": events.Released,
        "soiled": events.Soiled,
        "let-in": events.LetIn,
        "deferred": events.Deferred,
        "past-gate": events.PastGate,
        "open-attempted": events.OpenAttempted,
        "fence-missed": events.FenceMissed,
        "scrub-started": events.ScrubStarted,
        "probation-started": events.ProbationStarted,
        "steps-recorded": events.StepsRecorded,
        "escalated": events.Escalated,
        "scrub-passed": events.ScrubPassed,
        "tenancy-closed": events.TenancyClosed,
        "scrub-failed": events.ScrubFailed,
        "scrub-interrupted": events.ScrubInterrupted,
        "ailment-found": events.AilmentFound,
        "quarantined": events.Quarantined,
        "errors-noted": events.ErrorsNoted,
        "reinstated": events.Reinstated,
        "quarantine-withdrawn": events.QuarantineWithdrawn,
        "service-started": events.ServiceStarted,
        "service-stopped": events.ServiceStopped,
        "stood-still": events.StoodStill,
        "writes-failed": events.WritesFailed,
        "clock-moved": events.ClockMoved,
        "policy-in-force": events.PolicyInForce,
    }
)
KINDS: Mapping[type[Event], str] = MappingProxyType({event: kind for kind, event in CLASSES.items()})
BEGUN = "ledger-begun"
COMPACTED = "ledger-compacted"
KEY = "receipt-key"
TAKEN_OVER = "ledger-taken-over"
NOTES = frozenset({BEGUN, COMPACTED, KEY, TAKEN_OVER})
SOILED, FAILED, PROVEN = KINDS[events.Soiled], KINDS[events.ScrubFailed], KINDS[events.ScrubPassed]
ATTEMPTED = KINDS[events.OpenAttempted]
STEPS = frozenset(KINDS[event] for event in events.STEPS) | older.STEP_KINDS

SALT = 16  # bytes
WORTH_FOLDING = 2  # rows; a compaction costs a row of its own

User = tuple[str, object, frozenset[str | None]]
"""Who used a device, or made its scrub fail: kind, reason, and containers. A process of none can choose its name."""

Fold = Callable[[tuple[Record, ...], Sequence[LedgerEntry]], tuple[Record, ...]]
"""The records after more entries: (records so far, next entries) -> records."""


class CorruptLedgerError(LedgerUnavailable):
    """The stored data is not what was written. ``seq`` is the first damaged row, None if the damage is in no row.

    ``unreadable``: why the file itself cannot be read; empty if it can.
    """

    def __init__(self, message: str, seq: int | None = None, *remedies: str, unreadable: str = "") -> None:
        super().__init__(message, *remedies)
        self.seq = seq
        self.unreadable = unreadable


class LedgerRow(NamedTuple):
    """A row as stored. ``salt`` is random: without it, the leaf of a row would tell its content to those who guess."""

    seq: int
    device: str
    wall: float
    uptime: float
    op: str
    kind: str
    body: str
    salt: str

    @property
    def hash(self) -> str:
        """The SHA-256 of all columns; ValueError when the row cannot be stored."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()


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


# -- events as text

# One text for one value: sorted keys, no spaces, floats that round-trip exactly, no NaN.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode(event: Event) -> tuple[str, str]:
    """The kind and the body; ValueError when the event could not be read back."""
    cls: type = type(event)
    [plain] = _adapter(cls).dump_python((event,), mode="json", warnings="error")
    return KINDS[cls], canonical(plain)


def decode(kind: str, body: str) -> Event:
    """The event, or CorruptLedgerError: a value is never guessed or converted, and dropped only if it is ``older``."""
    try:
        return _decoded(kind, body)
    except CorruptLedgerError:
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # then no older version wrote it
            if (now := older.event(kind, json.loads(body))) is not None:
                return _decoded(now[0], canonical(now[1]))
        raise


def _decoded(kind: str, body: str) -> Event:
    if (event := CLASSES.get(kind)) is None:
        raise CorruptLedgerError(f"cannot read an event: unknown kind {kind!r}")
    decoded: tuple[Event, ...] = _read(event, f"[{body}]", "an event")
    if len(decoded) != 1:
        raise CorruptLedgerError(f"cannot read an event: the row holds {len(decoded)} events instead of one")
    return decoded[0]


def encode_records(records: tuple[Record, ...]) -> str:
    """The text of a snapshot: all records at one moment."""
    return canonical(_adapter(Record).dump_python(records, mode="json", warnings="error"))


def decode_records(text: str) -> tuple[Record, ...]:
    """A snapshot's records, or CorruptLedgerError."""
    try:
        return _read(Record, text, "a snapshot")
    except CorruptLedgerError:
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # then no older version wrote it
            return _read(Record, canonical(older.records(json.loads(text))), "a snapshot")
        raise


@cache
def _adapter(cls: type) -> TypeAdapter[tuple[Any, ...]]:
    # An adapter of a plain dataclass takes no configuration; a dataclass in a tuple inherits that of the tuple.
    several: Any = GenericAlias(tuple, (cls, ...))
    return TypeAdapter(several, config=ConfigDict(strict=True, extra="forbid"))


def _read(cls: type, text: str, what: str) -> tuple[Any, ...]:
    try:
        return _adapter(cls).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CorruptLedgerError(f"cannot read {what}: {first['msg']} ({cls.__name__} {field})") from error


def entry(row: LedgerRow) -> LedgerEntry | None:
    """The event that a row holds, None for a note; CorruptLedgerError names the row."""
    if row.kind in NOTES:
        return None
    try:
        event = decode(row.kind, row.body)
    except CorruptLedgerError as error:
        raise CorruptLedgerError(f"row {row.seq}: {error.message}", row.seq, *error.remedies) from error
    return LedgerEntry(row.seq, row.device, Moment(row.wall, row.uptime), row.op, event)


def entries(rows: Iterable[LedgerRow]) -> tuple[LedgerEntry, ...]:
    """The events among rows, in order."""
    return tuple(held for row in rows if (held := entry(row)) is not None)


# -- new rows


def new_row(seq: int, device: str, at: Moment, op: str, kind: str, body: str) -> LedgerRow:
    """A row with a salt of its own."""
    # Adding 0.0 turns an int into a float and -0.0 into 0.0, as SQLite does: the hash must cover what is read back.
    return LedgerRow(seq, device, at.wall + 0.0, at.uptime + 0.0, op, kind, body, secrets.token_hex(SALT))


def new_note(seq: int, kind: str, at: Moment, body: object) -> LedgerRow:
    """A row that holds a note instead of an event."""
    return new_row(seq, "", at, "", kind, canonical(body))


def compaction(seq: int, at: Moment, snapshot: Snapshot) -> LedgerRow:
    """The note that holds the hash of a snapshot."""
    return new_note(seq, COMPACTED, at, _vouched(snapshot))


def rows_after(size: int, drafts: Iterable[LedgerEntry]) -> tuple[LedgerRow, ...]:
    """Drafts as the rows that follow so many rows; ValueError when one cannot be stored."""
    return tuple(
        new_row(seq, draft.device, draft.at, draft.op, *encode(draft.event))
        for seq, draft in enumerate(drafts, size + 1)
    )


def _digest_of(hashes: Iterable[str]) -> str:
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


# -- a compaction


def fold(
    snapshot: Snapshot | None, rows: Sequence[LedgerRow], how: Fold, now: float, keep: Retention
) -> Snapshot:  # fmt: skip
    """The new snapshot: the old one with these rows folded into it, and the newest batches of evidence.

    The batches that stay are young enough and have together not too many rows.
    """
    before = decode_records(snapshot.records) if snapshot else ()
    after = how(before, entries(rows))
    kept = evidence(rows)
    total, batches = 0, list[Batch]()
    for one in ([batch(rows[-1].seq, kept)] if kept else []) + list(reversed(snapshot.batches if snapshot else ())):
        total += one.rows
        if total > keep.rows or one.newest < now - keep.seconds:
            break
        batches.insert(0, one)
    return Snapshot(rows[-1].seq, encode_records(after), tuple(batches))


def evidence(rows: Iterable[LedgerRow]) -> tuple[LedgerRow, ...]:
    """The rows that stay in the history after they were folded.

    Who uses a device again and again must not push out what else is kept. Of such uses, and of scrubs that fail again
    and again, the first one stays, and for each container the last one, which counts them. The proofs between them were
    for nobody.
    """
    kept: dict[int, LedgerRow] = {}
    uses: dict[str, dict[User, list[LedgerRow]]] = {}  # by device: the last use by each, and the proof after it
    for row in rows:
        if row.kind in STEPS or row.kind == COMPACTED:
            continue
        kept[row.seq] = row
        users = uses.setdefault(row.device, {})
        if row.kind in (SOILED, FAILED):
            times, user = _use(row)
            goes_on = times > 1 or any(kind == row.kind for kind, _, _ in users)  # a proof begins the count anew
            for counted in users.pop(user, ()):
                del kept[counted.seq]
            users[user] = [row] if goes_on else []
        elif row.kind == PROVEN and users:
            next(reversed(users.values())).append(row)
        elif row.kind != ATTEMPTED:  # that is written at any time: it begins no new count
            users.clear()
    return tuple(kept.values())


def _use(row: LedgerRow) -> tuple[int, User]:
    """How often it has happened, and who used the device: a use while it was clean, or a scrub that has failed."""
    [event] = _read(CLASSES[row.kind], f"[{row.body}]", "an event")
    # The sentence of a scrub that has failed names processes.
    why = (event.blame, event.unnamed) if isinstance(event, events.ScrubFailed) else event.why
    return event.times, (row.kind, why, frozenset(holder.container for holder in event.holders))


def batch(cut: int, kept: Sequence[LedgerRow]) -> Batch:
    """The batch of this evidence."""
    return Batch(cut, len(kept), max(row.wall for row in kept), _digest_of(row.hash for row in kept))


def _vouched(snapshot: Snapshot) -> dict[str, object]:
    """What the note of a compaction says about its snapshot."""
    return {
        "cut": snapshot.cut,
        "snapshot": hashlib.sha256(snapshot.records.encode()).hexdigest(),
        **({"evidence": _digest_of(one.digest for one in snapshot.batches)} if snapshot.batches else {}),
    }


# -- whether what was folded is what a row vouches for


def check_evidence(expected: Batch, kept: Sequence[LedgerRow]) -> None:
    """CorruptLedgerError unless these are all rows of the batch. Whether a row was changed, its leaf shows."""
    if not kept or batch(expected.cut, kept) != expected:
        raise CorruptLedgerError(f"the evidence up to row {expected.cut} is not what was kept", expected.cut)


def check_snapshot(snapshot: Snapshot | None, vouched: LedgerRow | None) -> None:
    """CorruptLedgerError unless this is the snapshot of the newest compaction. ``vouched``: the row of that."""
    if snapshot is None and vouched is None:
        return
    if snapshot is None or vouched is None or vouched.body != canonical(_vouched(snapshot)):
        seq = vouched.seq if vouched else None
        why = "no row holds its hash" if seq is None else f"its hash is not the one in row {seq}"
        raise CorruptLedgerError(f"the snapshot is not valid: {why}", seq)
