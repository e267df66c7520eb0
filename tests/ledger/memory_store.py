"""A store that forgets when the process ends: for tests, demos and dry runs. The same rows, no disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.standstills import CLOCK_MOVED
from scrubber.ledger import compaction, ledger_rows, tree
from scrubber.ledger.compaction import KEEP_ALL, Fold, Retention
from scrubber.ledger.database import Loaded
from scrubber.ledger.entry_queries import EVERYTHING, Kept, Window
from scrubber.receipts import merkle

STARTED = ledger_rows.KINDS[events.ServiceStarted]


class MemoryStore:
    """Keeps rows in a tuple that is replaced whole, so that ``history`` may look from another thread."""

    def __init__(self) -> None:
        self._snapshot: compaction.Snapshot | None = None
        self._rows: tuple[ledger_rows.LedgerRow, ...] = ()
        self._evidence: tuple[ledger_rows.LedgerRow, ...] = ()
        self._closed = False
        self._frontier = merkle.Frontier()
        self._nodes: dict[tuple[int, int], bytes] = {}

    @property
    def head(self) -> merkle.Head:
        """How many rows there are, and the root of their tree."""
        return merkle.Head.of(self._frontier)

    def load(self, fold: Fold) -> Loaded:
        """Everything."""
        self._check_open()
        snapshot = ledger_rows.decode_records(self._snapshot.records) if self._snapshot else ()
        entries = ledger_rows.entries(self._rows)
        return Loaded(fold(snapshot, entries), len(entries), entries, self.head)

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """As durable as memory is."""
        self._check_open()
        rows = ledger_rows.rows_after(self.head.size, drafts)
        self._add(rows)
        return ledger_rows.entries(rows)

    def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> tuple[LedgerEntry, ...]:
        """The newest entries, newest last."""
        first, later = math.inf, None
        for row in reversed([row for row in self._rows if row.kind not in ledger_rows.NOTES]):
            if window.uptime is None or row.uptime < window.uptime or (later and row.uptime > later.uptime):
                break
            if later and later.kind == STARTED and abs(_boot(later) - _boot(row)) >= CLOCK_MOVED:
                break
            first, later = row.seq, row
        wanted = (
            row
            for row in reversed((_warnings(self._evidence) if window.warnings else self._evidence) + self._rows)
            if row.kind not in ledger_rows.NOTES
            and (device is None or row.device == device)
            and (since is None or row.wall >= since or row.seq >= first)
            and (window.until is None or row.wall <= window.until)
            and window.after < row.seq < (window.before or row.seq + 1)
            and (not window.kinds or row.kind in window.kinds)
        )
        return ledger_rows.entries(reversed(list(islice(wanted, limit))))

    @property
    def kept(self) -> Kept:
        """From when on there are rows."""
        firsts = [rows[0] for rows in (self._evidence, self._rows) if rows]
        walls = [0.0 if row.seq == 1 else row.wall for row in firsts] or [0.0]
        return Kept(walls[0], walls[-1])

    def compact(self, fold: Fold, keep: int, at: Moment, retention: Retention = KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows."""
        self._check_open()
        folded = self._rows[: max(len(self._rows) - keep, 0)]
        if len(folded) < compaction.WORTH_FOLDING:
            return 0
        snapshot = compaction.fold(self._snapshot, folded, fold, at.wall, retention)
        kept = self._evidence + compaction.evidence(folded)
        self._evidence = kept[len(kept) - sum(batch.rows for batch in snapshot.batches) :]
        note = compaction.compaction(self.head.size + 1, at, snapshot)
        self._snapshot, self._rows = snapshot, self._rows[len(folded) :]
        self._add((note,))
        return len(folded)

    def prove(self, seq: int) -> tuple[merkle.Inclusion, str]:
        """That a row that was not folded is in the tree over all rows so far; and the row's hash."""
        [row] = [row for row in self._rows if row.seq == seq]
        return merkle.include(seq - 1, self.head.size, lambda *at: self._nodes[at]), row.hash

    def _add(self, rows: tuple[ledger_rows.LedgerRow, ...]) -> None:
        for leaf in [tree.leaf(row) for row in rows]:
            self._frontier, completed = self._frontier.grown(leaf)
            self._nodes |= {(level, place): node for level, place, node in completed}
        self._rows += rows

    def close(self) -> None:
        """Refuse what comes later."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable("cannot use the ledger: it is closed; start the service again")


def _boot(row: ledger_rows.LedgerRow) -> float:
    return row.wall - row.uptime


def _warnings(rows: tuple[ledger_rows.LedgerRow, ...]) -> tuple[ledger_rows.LedgerRow, ...]:
    return tuple(row for row in rows if (entry := ledger_rows.entry(row)) and events.is_warning(entry.event))
