"""The store of one life of the service: shows each durable row to ``Truth``, fails on request, dies with its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ground.errors import LedgerUnavailable
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger.compaction import KEEP_ALL, Fold, Retention
from scrubber.ledger.database import Loaded
from scrubber.ledger.entry_queries import EVERYTHING, Kept, Window
from scrubber.ledger.ledger import Store
from scrubber.receipts.merkle import Head, Inclusion
from tests.service.virtual import KilledError


class Disk:
    """The disk of one life of the service. The real store behind it outlives that life."""

    def __init__(self, inner: Store, on_row: Callable[[LedgerEntry], None], dying: Callable[[], None]) -> None:
        """``on_row`` is called with each durable row, ``dying`` when the requested kill happens."""
        self.inner = inner
        self.dead = False
        self.full = False  # nothing can be written
        self.failures = 0  # so many writes fail
        self.dies_after: int | None = None  # rows until the service is killed, before it hears of the last one
        self.fails_at: int | None = None  # this append fails, counted from the first
        self.attempts = 0
        self._on_row = on_row
        self._dying = dying

    @property
    def head(self) -> Head:
        """As the inner store says."""
        return self.inner.head

    def load(self, fold: Fold) -> Loaded:
        """Load all that the store has."""
        self._live()
        return self.inner.load(fold)

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Write all rows or none, while this life lasts."""
        self._live()
        self.attempts += 1
        if self.full or self.failures > 0 or self.attempts == self.fails_at:
            self.failures -= self.failures > 0
            raise LedgerUnavailable("cannot write to the ledger: the disk is full")
        entries = self.inner.append(drafts)
        for entry in entries:
            self._on_row(entry)
        if self.dies_after is not None:
            self.dies_after -= len(entries)
            self.dead = self.dies_after <= 0
            if self.dead:
                self._dying()
        self._live()
        return entries

    def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest entries."""
        return self.inner.history(device, since, limit, window)

    @property
    def kept(self) -> Kept:
        """As the inner store says."""
        return self.inner.kept

    def compact(self, fold: Fold, keep: int, at: Moment, retention: Retention = KEEP_ALL) -> int:
        """Compact the older rows."""
        self._live()
        if self.full:
            raise LedgerUnavailable("cannot shrink the ledger: the disk is full")
        return self.inner.compact(fold, keep, at, retention)

    def heal_one(self) -> None:
        """End all faults of this disk."""
        self.full, self.failures, self.dies_after, self.fails_at = False, 0, None, None

    def prove(self, seq: int) -> tuple[Inclusion, str]:
        """That a row is in the tree over all rows so far."""
        self._live()
        return self.inner.prove(seq)

    def close(self) -> None:
        """The service closes its ledger."""
        self.inner.close()

    def _live(self) -> None:
        if self.dead:
            raise KilledError
