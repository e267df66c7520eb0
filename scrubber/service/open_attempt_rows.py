"""Writes the rows of the ledger about openers, who try to open a device that was not given to them.

``core.open_attempts`` says which rows are due, ``fence.live_openers`` knows who it was. The names in the rows outlive
the service: the next one reads them, so that ``autoclave explain`` still names who it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ground.errors import LedgerUnavailable
from scrubber.core import open_attempts
from scrubber.core.events import FenceMissed, OpenAttempted
from scrubber.core.guarded import ANEW
from scrubber.core.model import OTHERS
from scrubber.core.open_attempts import AT_ONCE, WITHIN, Period, Written
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, FenceReading
from scrubber.devices.base import DeviceError
from scrubber.fence.live_openers import KEPT_FOR, LiveOpeners
from scrubber.ledger import ledger_rows
from scrubber.ledger.entry_queries import Window
from scrubber.service.context import ServiceContext

EVERY = 1.0  # seconds between two looks, and at once after each row: it may begin a period
OF_OPENERS = Window(kinds=frozenset({ledger_rows.KINDS[OpenAttempted], ledger_rows.KINDS[FenceMissed]}))
KEPT = 8  # periods of a device whose rows are known, and can be continued
READ = 5000  # rows that are read at a start

_Row = tuple[str, OpenAttempted | FenceMissed]  # with its device
_REBUILT = FenceMissed(ANEW)


class OpenAttemptRows:
    """Writes these rows. What cannot be written is written later."""

    def __init__(self, context: ServiceContext, openers: LiveOpeners) -> None:
        self._context = context
        self._ledger = context.ledger
        self._live = openers
        # By device, the last ones. None: the rows of earlier lives are not read yet.
        self._periods: dict[str, dict[Period, Written]] | None = None
        self._looked = dict[str, Record]()  # by device: the record at the last look ...
        self._asked = (-1, AT_ONCE)  # ... how many attempts there had been by then, and room for how many rows
        self._unwritten: list[_Row] = []
        self._given = dict[str, FenceReading]()  # as the fence was when an earlier life gave the device
        self._first = deque[float](maxlen=AT_ONCE)  # uptimes of the last first rows
        self._gaps = deque[float](maxlen=AT_ONCE)  # ... and of the last ones about gaps: nobody else's flood hides them

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            changes = self._ledger.changed.notifications
            await self.write()
            await self._ledger.changed.after(changes, EVERY)

    async def write(self, *, ends: bool = False) -> None:
        """Write what is due, unless the ledger has a fault. ``ends``: whether the service is stopping."""
        if self._ledger.fault is not None:
            return
        with suppress(LedgerUnavailable):
            if self._periods is None:
                self._periods = await self._remember()
            if self._periods is None:
                return
            self._look(self._periods, ends=ends)
            if not self._unwritten:
                return
            rows, self._unwritten = await self._named(self._unwritten), []
            try:
                await self._ledger.append("", *rows)  # also if this task is cancelled
            except LedgerUnavailable:
                self._unwritten = rows
                raise

    async def _remember(self) -> dict[str, dict[Period, Written]] | None:
        """What the rows of earlier lives tell. None: the disk does not answer."""
        since = self._context.now().wall - KEPT_FOR
        page = await self._ledger.history(None, since, READ, OF_OPENERS)
        if page.partial:
            return None
        periods = dict[str, dict[Period, Written]]()
        for uuid, record in self._ledger.records.items():
            entries = [entry for entry in page.entries if entry.device == uuid]
            events = [entry.event for entry in entries if isinstance(entry.event, OpenAttempted)]
            earlier, periods[uuid] = open_attempts.remembered(events)
            given = record.fence.grant
            if (
                given is not None
                and not given.why
                and not any(it.event == _REBUILT and it.at.wall >= given.at.wall for it in entries)
            ):
                self._given[uuid] = given
            self._live.remember(uuid, earlier)
        return periods

    def _look(self, periods: dict[str, dict[Period, Written]], *, ends: bool) -> None:
        """Note which rows are due."""
        self._compare()
        for uuid, why in self._live.take_gaps(self._room(self._gaps)):
            self._unwritten.append((uuid, FenceMissed(why)))
            self._gaps.append(self._context.now().uptime)
        before_this = self._asked
        self._asked = self._live.attempts, self._room()
        is_quiet = not ends and self._asked == before_this == (self._live.attempts, AT_ONCE)
        for uuid, record in self._ledger.records.items():
            if is_quiet and self._looked.get(uuid) is record:
                continue  # the usual case, after each row for each other device
            last, self._looked[uuid] = self._looked.get(uuid, record), record
            new, mine = dict(self._live.take(uuid)), periods.setdefault(uuid, {})
            if not (new or mine):
                continue
            before, now = map(open_attempts.period, (last, record))
            for period in sorted({before, now} & mine.keys() | new.keys()):
                written = mine.get(period, Written(period)).with_attempts(new.get(period, ()))
                written = self._note(uuid, written, written.first_rows(self._room()))
                written = self._note(uuid, written, written.rows_of_others())
                if ends or period != now:  # a period that is over ends once more with the attempts that are read late
                    ended = [*written.last_rows(), *written.rows_of_others(ended=True)]
                    written = self._note(uuid, written, ended)
                mine[period] = written
            periods[uuid] = dict(sorted(mine.items())[-KEPT:])

    def _compare(self) -> None:
        """Note each device whose fence is not the one of the earlier life that gave it to its present owner."""
        guard = self._context.observer.driver.guard
        for uuid, given in [*self._given.items()]:
            record, last = self._ledger.records.get(uuid), self._context.observer.last_uses(uuid)
            if record is None or record.fence.grant != given:
                del self._given[uuid]
            elif guard is not None and isinstance(last, Counted) and last.fence is not None:
                del self._given[uuid]
                if last.fence.counter != given.counter:
                    guard.note_gap(uuid, ANEW)

    def _note(self, uuid: str, written: Written, rows: list[OpenAttempted]) -> Written:
        self._unwritten += [(uuid, row) for row in rows]
        first = [row for row in rows if not row.ended and row.opener.place not in OTHERS]
        self._first += [self._context.now().uptime for _ in first]
        return written.with_rows(rows)

    def _room(self, written: deque[float] | None = None) -> int:
        """``written``: uptimes of the last rows of this kind; None: those of first rows."""
        times = self._first if written is None else written
        since = self._context.now().uptime - WITHIN if times else 0.0
        return AT_ONCE - sum(at > since for at in times)

    async def _named(self, rows: list[_Row]) -> list[_Row]:
        """These rows with the names of their pods, as far as they are known or come in time."""
        names: Mapping[str, str] = {}
        with suppress(DeviceError):
            names = (await self._context.tenants()).names
        pods = dict[str, dict[str, str]]()
        for uuid in {uuid for uuid, _ in rows}:
            self._live.name(uuid, names)
            pods[uuid] = {**{it.opener.place: it.opener.pod for it in self._live.of(uuid)}, **names}
        return [(uuid, _named(row, pods[uuid])) for uuid, row in rows]


def _named(row: OpenAttempted | FenceMissed, pods: Mapping[str, str]) -> OpenAttempted | FenceMissed:
    if isinstance(row, FenceMissed):
        return row
    return replace(row, opener=replace(row.opener, pod=pods.get(row.opener.place) or row.opener.pod))
