"""Rows of a ledger as values: the kind and text of each event, notes, marks and hashes.

Besides events there are four kinds of notes: how the ledger began (which damaged ledger was set aside), where older
rows were folded into a snapshot, which key signs receipts from now on, and where this version has taken over the ledger
of an older one.

The hash of a row is that of its ``Mark`` and of its columns. A compaction leaves the mark of a row that it deletes, so
a reader sees that the row was none that must stay. Rows of the formats before 10 have no mark in their hash.

The kinds below are a stored format: a class may be renamed, a kind never. After a release, increase
``database.VERSION`` with each new kind and each new field (which needs a default): an older program must refuse the
whole ledger, not fail at one row.
``tests/ledger/test_ledger_rows.py`` fails when the format changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from functools import cache
from types import GenericAlias, MappingProxyType
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ground.errors import FatalError, LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record

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
STEPS = frozenset(KINDS[event] for event in events.STEPS)

SALT = 16  # bytes
MARKED = "10-"  # how the salt of a row begins that has its mark in its hash
STEP, OTHER = "step", "other"  # what a mark says of a row; or it says the kind of the event
OLDER = (
    "update to commit 94afefca first, which reads the formats 3 to 10",
    "or drain the node, move its state directory away, and quarantine again what `autoclave ledger export` prints",
)


class CorruptLedgerError(LedgerUnavailable):
    """The stored data is not what was written. ``seq`` is the first damaged row, None if the damage is in no row.

    ``unreadable``: why the file itself cannot be read; empty if it can.
    """

    def __init__(self, message: str, seq: int | None = None, *remedies: str, unreadable: str = "") -> None:
        super().__init__(message, *remedies)
        self.seq = seq
        self.unreadable = unreadable


class Mark(NamedTuple):
    """What a compaction must know of a row, and all that it leaves of one that it deletes.

    ``what``: ``STEP`` is never kept. ``SOILED``, ``FAILED`` and ``PROVEN`` may be counted in later rows. ``ATTEMPTED``
    and ``OTHER`` are kept.
    """

    what: str
    device: str = ""
    user: str = ""  # a digest of who used the device, or made its scrub fail
    goes_on: bool = False  # it was not the first such use


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
    def is_marked(self) -> bool:
        """Whether its mark is in its hash."""
        return self.salt.startswith(MARKED)

    @property
    def mark(self) -> Mark:
        """What a compaction must know of it; CorruptLedgerError if the row does not say that.

        It is read from the text, not from the event: the mark of a stored row must stay the same in each version.
        """
        if self.kind in STEPS or self.kind == COMPACTED:
            return Mark(STEP)
        if self.kind in (SOILED, FAILED):
            try:
                return _mark_of_use(self.kind, self.device, json.loads(self.body))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise CorruptLedgerError(f"row {self.seq}: cannot read an event: it has no user", self.seq) from error
        return Mark(self.kind if self.kind in (PROVEN, ATTEMPTED) else OTHER, self.device)

    @property
    def digest(self) -> str:
        """The SHA-256 of all columns; ValueError when the row cannot be stored."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()

    @property
    def hash(self) -> str:
        """The hash of the row, with its mark if it is marked; ValueError when the row cannot be stored."""
        return hash_of(canonical(self.mark), self.digest) if self.is_marked else self.digest


def hash_of(mark: str, digest: str) -> str:
    """The hash of a row with this mark, as text, and this digest of all columns."""
    return hashlib.sha256(f"{mark}\n{digest}".encode()).hexdigest()


def _mark_of_use(kind: str, device: str, body: Any) -> Mark:  # noqa: ANN401 - as JSON has it
    # The sentence of a scrub that has failed names processes. A process without a container can choose its name.
    why = [body.get("blame"), body.get("unnamed", False)] if kind == FAILED else body["why"]
    containers = sorted({canonical(holder["container"]) for holder in body.get("holders", ())})
    user = hashlib.sha256(canonical([why, containers]).encode()).hexdigest()[:16]
    return Mark(kind, device, user, body.get("times", 1) > 1)


# -- events as text

# One text for one value: sorted keys, no spaces, floats that round-trip exactly, no NaN.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode(event: Event) -> tuple[str, str]:
    """The kind and the body; ValueError when the event could not be read back."""
    cls: type = type(event)
    [plain] = _adapter(cls).dump_python((event,), mode="json", warnings="error")
    return KINDS[cls], canonical(plain)


def decode(kind: str, body: str) -> Event:
    """The event, or CorruptLedgerError: a value is never guessed or converted."""
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
    return _read(Record, text, "a snapshot")


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
    """The event that a row holds, None for a note; CorruptLedgerError, or FatalError if it is older, names the row."""
    if row.kind in NOTES:
        return None
    try:
        event = decode(row.kind, row.body)
    except CorruptLedgerError as error:
        if not row.is_marked:
            raise FatalError(f"cannot read row {row.seq} of the ledger: it is of a format before 9", *OLDER) from error
        raise CorruptLedgerError(f"row {row.seq}: {error.message}", row.seq, *error.remedies) from error
    return LedgerEntry(row.seq, row.device, Moment(row.wall, row.uptime), row.op, event)


def entries(rows: Iterable[LedgerRow]) -> tuple[LedgerEntry, ...]:
    """The events among rows, in order."""
    return tuple(held for row in rows if (held := entry(row)) is not None)


def is_warning(row: LedgerRow) -> bool:
    """Whether the event that the row holds is a warning."""
    held = entry(row)
    return held is not None and events.is_warning(held.event)


# -- new rows


def new_row(seq: int, device: str, at: Moment, op: str, kind: str, body: str) -> LedgerRow:
    """A row with a salt of its own."""
    # Adding 0.0 turns an int into a float and -0.0 into 0.0, as SQLite does: the hash must cover what is read back.
    return LedgerRow(seq, device, at.wall + 0.0, at.uptime + 0.0, op, kind, body, MARKED + secrets.token_hex(SALT))


def new_note(seq: int, kind: str, at: Moment, body: object) -> LedgerRow:
    """A row that holds a note instead of an event."""
    return new_row(seq, "", at, "", kind, canonical(body))


def rows_after(size: int, drafts: Iterable[LedgerEntry]) -> tuple[LedgerRow, ...]:
    """Drafts as the rows that follow so many rows; ValueError when one cannot be stored."""
    return tuple(
        new_row(seq, draft.device, draft.at, draft.op, *encode(draft.event))
        for seq, draft in enumerate(drafts, size + 1)
    )
