"""The port to what survives: every call is described by what holds once it has returned.

A store keeps events in order and knows nothing of their meaning: legality is ``core.states``' business and truth is
the ledger's. One thread writes; ``history`` may be asked from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Moment, Record
from scrubber.ground.errors import LedgerUnavailable

Fold = Callable[[tuple[Record, ...], Sequence[LedgerEntry]], tuple[Record, ...]]
"""What devices are after some more of their history: (records so far, what came next) -> records."""


class CorruptLedgerError(LedgerUnavailable):
    """What is stored is not what was written. ``seq`` names the first such row, where one can be named."""

    def __init__(self, message: str, seq: int | None = None) -> None:
        """Keep the row beside the sentence."""
        super().__init__(message)
        self.seq = seq


@dataclass(frozen=True, slots=True)
class Head:
    """The newest row: its number and its hash. Who knows it can tell whether a tail was cut off."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that is legal and not yet durable."""

    device: str
    at: Moment
    op: str
    event: Event


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that is known: the records as of the last compaction, and what happened since."""

    snapshot: tuple[Record, ...]
    entries: tuple[LedgerEntry, ...]
    head: Head


class Store(Protocol):
    """Ordered, durable events."""

    @property
    def head(self) -> Head:
        """The newest row that counts, as of the last call that returned."""
        ...

    def load(self) -> Loaded:
        """Everything appended and not taken back, verified; raises CorruptLedgerError rather than guess."""
        ...

    def append(self, drafts: Sequence[Draft]) -> tuple[LedgerEntry, ...]:
        """All of them are durable, in this order, under growing numbers.

        When it raises, none of them counts: what reached the file all the same is taken back before the next write or
        load of this store (only a process that dies in between may find them there). A later call works again by
        itself as soon as the cause has gone. ValueError means that an event cannot be stored at all.
        """
        ...

    def history(self, device: str | None, since: float | None, limit: int) -> tuple[LedgerEntry, ...]:
        """The newest ``limit`` entries since a wall time, of one device or of all, newest last.

        What was compacted is not in it.
        """
        ...

    def compact(self, fold: Fold, keep: int, at: Moment) -> int:
        """All but the newest ``keep`` rows are folded into the snapshot; says how many.

        ``fold`` is given the snapshot so far and the entries up to the cut, never later ones. All or nothing: when it
        raises, ``load`` gives either the old or the new, which mean the same.
        """
        ...

    def close(self) -> None:
        """Nothing is held any more; may be called twice."""
        ...
