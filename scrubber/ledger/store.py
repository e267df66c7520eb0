"""The interface of a durable store: the docstring of each call says what is true once the call has returned.

A store keeps events in order and does not interpret them: ``core.states`` decides what is legal, ``Ledger`` what is
true. One thread writes; any thread may call ``history``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ground.errors import LedgerUnavailable
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment, Record

REMEMBERED = 1_000  # rows in memory, about seventy scrubs
Fold = Callable[[tuple[Record, ...], Sequence[LedgerEntry]], tuple[Record, ...]]
"""The records after more entries: (records so far, next entries) -> records."""


class CorruptLedgerError(LedgerUnavailable):
    """The stored data is not what was written. ``seq`` is the first damaged row, None if the damage is in no row."""

    def __init__(self, message: str, seq: int | None = None) -> None:
        super().__init__(message)
        self.seq = seq


@dataclass(frozen=True, slots=True)
class Head:
    """The number and hash of the newest row. A copy elsewhere shows whether the last rows were cut off."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The stored data: the records after the newest row, the number of events since the last compaction, the newest."""

    records: tuple[Record, ...]
    rows: int
    recent: tuple[LedgerEntry, ...]  # at most ``REMEMBERED``
    head: Head
    may_be_old: bool = False  # nothing outside the state directory shows that this is the newest copy


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of the history are asked for. ``before`` None: up to the newest. No ``kinds``: events of each kind."""

    before: int | None = None
    after: int = 0
    kinds: frozenset[str] = frozenset()
    until: float | None = None  # a wall time
    warnings: bool = False  # leave out evidence that is no warning; the caller leaves out other rows


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Retention:
    """How much evidence is kept: the rows that tell more than how a scrub went. Its oldest batches go first."""

    rows: int = 2**62
    seconds: float = math.inf


KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class Kept:
    """From which wall time on the ledger has rows, and from when on it has the steps of scrubs; 0: none has gone."""

    since: float = 0.0
    steps_since: float = 0.0


class Page(NamedTuple):
    """Entries of the history, newest last. ``partial``: older ones may be missing, because the disk did not answer."""

    entries: tuple[LedgerEntry, ...]
    partial: bool = False


class Store(Protocol):
    """Ordered, durable events."""

    @property
    def head(self) -> Head:
        """The newest acknowledged row."""

    def load(self, fold: Fold) -> Loaded:
        """Everything that was appended, verified and folded into the records; CorruptLedgerError if it is damaged.

        ``fold`` gets the entries in parts: the memory that a load takes does not grow with the ledger.
        """

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """All events are durable, in this order. The numbers of the drafts do not count; the result has rising ones.

        After an error none of them counts: rows that reached the file are deleted before the next write or load of
        this store (only a process that dies before that may find them). A later call succeeds once the cause is gone.
        ValueError means that an event can never be stored.
        """

    def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest ``limit`` entries of the window since a wall time, of one device or of all, newest last."""

    @property
    def kept(self) -> Kept:
        """From when on there are rows, as of the last load or compaction."""

    def compact(self, fold: Fold, keep: int, at: Moment, evidence: Retention = KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot; returns how many rows were folded.

        The folded rows that are evidence stay in the history, as long as ``evidence`` says.

        ``fold`` gets the old snapshot and the folded entries only. After an error ``load`` returns the data either
        before or after the compaction; both give the same records.
        """

    def close(self) -> None:
        """Release all files and locks; may be called twice."""
