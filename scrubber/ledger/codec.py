"""Convert events to stored text and back. The kinds below are a stored format: a class may be renamed, a kind never.

Increase ``database.VERSION`` with each new kind and each new field (which needs a default): an older program must
refuse the whole ledger, not fail at one row. ``tests/ledger/test_codec.py`` fails when the format changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import GenericAlias, MappingProxyType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from scrubber.core import events
from scrubber.core.events import Event
from scrubber.core.model import Record
from scrubber.ledger import store

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
        "past-gate": events.PastGate,
        "scrub-started": events.ScrubStarted,
        "probation-started": events.ProbationStarted,
        "step-started": events.StepStarted,
        "step-finished": events.StepFinished,
        "escalated": events.Escalated,
        "scrub-passed": events.ScrubPassed,
        "scrub-failed": events.ScrubFailed,
        "scrub-interrupted": events.ScrubInterrupted,
        "ailment-found": events.AilmentFound,
        "quarantined": events.Quarantined,
        "errors-noted": events.ErrorsNoted,
        "reinstated": events.Reinstated,
        "quarantine-withdrawn": events.QuarantineWithdrawn,
    }
)
KINDS: Mapping[type[Event], str] = MappingProxyType({event: kind for kind, event in CLASSES.items()})

STRICT = ConfigDict(strict=True, extra="forbid")


# One text for one value: sorted keys, no spaces, floats that round-trip exactly, no NaN.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode(event: Event) -> tuple[str, str]:
    """The kind and the body; ValueError when the event could not be read back."""
    cls: type = type(event)
    [plain] = _adapter(cls).dump_python((event,), mode="json", warnings="error")
    return KINDS[cls], canonical(plain)


def decode(kind: str, body: str) -> Event:
    """The event, or CorruptLedgerError: a value is never guessed, converted or dropped."""
    if (event := CLASSES.get(kind)) is None:
        raise store.CorruptLedgerError(f"cannot read an event: unknown kind {kind!r}")
    decoded: tuple[Event, ...] = _read(event, f"[{body}]", "an event")
    if len(decoded) != 1:
        raise store.CorruptLedgerError(f"cannot read an event: the row holds {len(decoded)} events instead of one")
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
    return TypeAdapter(several, config=STRICT)


def _read(cls: type, text: str, what: str) -> tuple[Any, ...]:
    try:
        return _adapter(cls).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise store.CorruptLedgerError(f"cannot read {what}: {first['msg']} ({cls.__name__} {place})") from error
