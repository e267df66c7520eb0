"""Pages of ledger entries for people, by kind, device and time, each with its text, from the service or from a file."""

from __future__ import annotations

from dataclasses import replace

from ground.errors import InvalidRequest
from scrub_api import views
from scrubber.core import device_names
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import State
from scrubber.ledger import ledger_rows
from scrubber.ledger.entry_queries import EVERYTHING, Window
from scrubber.ledger.ledger import Ledger
from scrubber.ledger.reading import LedgerFile
from scrubber.words import event_text

MAX_ENTRIES = 2_000  # rows in one answer: other requests wait while their sentences are made
_KINDS = f"the kinds are {', '.join(ledger_rows.CLASSES)}"
EXPLAINED = 200  # the newest rows of a device: enough for several of its owners


class History:
    """Finds the events of devices."""

    def __init__(self, ledger: Ledger | LedgerFile) -> None:
        self._ledger = ledger

    async def entries(
        self, gpu: str, since: float, limit: int, window: Window = EVERYTHING, *, without_steps: bool = False
    ) -> views.History:
        """The newest rows of the window, newest last.

        If there are fewer than ``limit`` and ``MAX_ENTRIES``, there are no more. ``without_steps``: a scrub has only
        the row of its end.
        """
        device = device_names.find(self._ledger.records, gpu) if gpu else None
        if limit < 0:
            raise InvalidRequest("cannot list history: the limit is negative")
        if unknown := sorted(window.kinds - ledger_rows.CLASSES.keys()):
            raise InvalidRequest(f"cannot list history: no event is of kind {unknown[0]}", _KINDS)
        limit = min(limit or MAX_ENTRIES, MAX_ENTRIES)
        if not window.kinds and (window.warnings or without_steps):
            wanted = set(ev.WARNINGS) if window.warnings else ledger_rows.KINDS.keys() - set(ev.STEPS)
            window = replace(window, kinds=frozenset(ledger_rows.KINDS[event] for event in wanted))
        entries: list[LedgerEntry] = []
        while True:
            rows = MAX_ENTRIES if window.warnings else limit
            page, partial = await self._ledger.history(device, since or None, rows, window)
            entries[:0] = [entry for entry in page if not window.warnings or ev.is_warning(entry.event)]
            if not window.warnings or len(page) < MAX_ENTRIES or len(entries) >= limit:
                wanted_rows = tuple(map(self.shown, entries[-limit:]))
                return views.History(wanted_rows, partial=partial and len(wanted_rows) < limit)
            window = replace(window, before=page[0].seq)

    async def of_present_state(self, uuid: str) -> tuple[LedgerEntry, ...]:
        """How a device came into its state: its newest events, back to a grant or to its discovery."""
        entries = (await self._ledger.history(uuid, None, EXPLAINED)).entries
        begins = (ev.Discovered, ev.Granted, ev.GrantedUnproven)
        starts = [number for number, entry in enumerate(entries) if isinstance(entry.event, begins)]
        # The rows before a grant say how the device became clean. So for a device that is granted or in use, begin one
        # grant earlier.
        wanted = 2 if self._ledger.records[uuid].state in (State.GRANTED, State.IN_USE) else 1
        first = starts[-min(wanted, len(starts))] if starts else 0
        return tuple(entries[first:])

    def shown(self, entry: LedgerEntry) -> views.HistoryEntry:
        """An event as people read it."""
        kind, body = ledger_rows.encode(entry.event)
        record = self._ledger.records.get(entry.device)
        index, number = (record.device.index, record.device.slice) if record else (-1, None)
        text, simulated = event_text.tell(entry.event), record is not None and record.device.simulated
        about = entry.seq, entry.device, index, entry.at.wall, entry.op, kind, text, body
        return views.HistoryEntry(*about, number, simulated)
