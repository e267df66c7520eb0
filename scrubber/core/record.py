"""Everything that the ledger knows about one device: the result of all its events, in four parts.

Each part folds the events that concern it, and rejects those that do not fit. ``states`` has the table of all states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from scrubber.core.bypasses import Bypasses
from scrubber.core.events import LedgerEntry
from scrubber.core.health import Health
from scrubber.core.model import DeviceInfo, Incarnation, Moment, State
from scrubber.core.scrubs import Scrubs
from scrubber.core.tenancy import Tenancy


@dataclass(frozen=True, slots=True)
class Record:
    """What the ledger knows about one device. Its fields are a stored format, as those of the events are."""

    device: DeviceInfo
    incarnation: Incarnation
    state: State
    since: Moment
    tenancy: Tenancy = field(default_factory=Tenancy)
    scrubs: Scrubs = field(default_factory=Scrubs)
    health: Health = field(default_factory=Health)
    bypasses: Bypasses = field(default_factory=Bypasses)


class Change(NamedTuple):
    """An event that is in the ledger, and its device before and after it."""

    entry: LedgerEntry
    before: Record | None
    after: Record
