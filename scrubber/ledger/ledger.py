"""The records of all devices: events appended, written by one thread, and seen only when they are on the disk.

Rule 1: ``append`` checks, then writes, then shows: the transition table accepts the event, the store writes it to
        the disk, and only then do readers see the new record.
Rule 2: start-up replays the entries through the same ``states.apply``. Nothing else changes a record.
Rule 3: after a failed write, what is on the disk is valid: the ledger loads the records again before the next append
        (``outage``).
Rule 4: a holder that was seen but could not be recorded is recorded first: it may have ended by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Protocol, TypeVar

from ground import aio, log
from ground.aio import Changed
from ground.errors import LedgerUnavailable
from scrubber.core import events as ev
from scrubber.core import guarded, states
from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Facts, Moment
from scrubber.core.record import Change, Record
from scrubber.core.use_counter import UseReading
from scrubber.ledger import ledger_rows, outage
from scrubber.ledger.compaction import KEEP_ALL, Fold, Retention
from scrubber.ledger.database import REMEMBERED, Loaded
from scrubber.ledger.entry_queries import EVERYTHING, HistoryPage, Kept, Window
from scrubber.ledger.outage import Disk, Outage, Works
from scrubber.receipts.merkle import Head, Inclusion
from scrubber.receipts.notary import Notary
from scrubber.words import event_text

T = TypeVar("T")
Listener = Callable[[Sequence[LedgerEntry], Sequence[Record | None], float], None]
"""Gets the entries of each write, the record before each entry, and the seconds that the write took. Must not block."""

logger = log.get("ledger")
SLOW = 2.0  # seconds: a disk that takes longer hangs, and each request for a device waits for it
READ = 1.0  # seconds: a disk that takes longer hangs, and the newest rows are answered from memory
KEEP = 30_000  # rows, about four thousand scrubs; older rows are folded into a snapshot, and their evidence is kept
NO_LOOK: Mapping[str, Facts] = MappingProxyType({})
FOLD_AT_ONCE = 5_000  # rows beyond ``KEEP`` before the next compaction: appends wait for it


class Store(Protocol):
    """Ordered, durable events, in a file. The docstring of each call says what is true once the call has returned.

    A store does not interpret events: ``core.states`` decides what is legal, ``Ledger`` what is true. One thread
    writes; any thread may call ``history``.
    """

    @property
    def head(self) -> Head:
        """How many rows are acknowledged, and the root of their tree."""

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

    def compact(self, fold: Fold, keep: int, at: Moment, retention: Retention = KEEP_ALL) -> int:
        """Fold all but the newest ``keep`` rows into the snapshot; returns how many rows were folded.

        The folded rows that are evidence stay in the history, as long as ``retention`` says.

        ``fold`` gets the old snapshot and the folded entries only. After an error ``load`` returns the data either
        before or after the compaction; both give the same records.
        """

    def prove(self, seq: int) -> tuple[Inclusion, str]:
        """That an acknowledged row is in the tree over all rows so far; and the row's hash."""

    def close(self) -> None:
        """Release all files and locks; may be called twice."""


def _no_action(_record: Record) -> None:
    pass


def _no_use(_device: str, _seen: UseReading | None) -> bool:
    return False


class OvertakenError(Exception):
    """A device was used since the look that a row was to rest on. Nothing was written: look again."""


class Ledger:
    """Records by device, as durable as they are true."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], Moment],
        keep: int = KEEP,
        fold_at_once: int = FOLD_AT_ONCE,
        loaded: Loaded | None = None,
        listener: Listener | None = None,
        evidence: Retention = KEEP_ALL,
    ) -> None:
        """Load everything from the store, unless the caller passes what it has just loaded."""
        self._listener = listener
        # ``assembly`` sets it before the first write. The writing thread calls it when rows are on the disk, before a
        # reader sees them.
        self.notary: Notary | None = None
        self._store = store
        self._now = now
        self._keep = keep
        self._most = keep + fold_at_once
        self._evidence = evidence
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ledger-read")
        self._lock = asyncio.Lock()
        self.changed = Changed()  # a row was added, or a write has failed
        # ``assembly`` sets both. The first gets each new record before a reader sees it: ``FenceUpkeep`` opens or
        # closes the device in the kernel. The second is asked on the writing thread, just before it writes.
        self.on_record: Callable[[Record], None] = _no_action
        self.overtaken: Callable[[str, UseReading | None], bool] = _no_use
        self._disk: Disk = Works()
        self._unwritten: dict[str, Event] = {}  # the newest sighting of each device that could not be recorded
        loaded = loaded or store.load(states.replay)
        self.may_be_old = loaded.may_be_old  # whether it may be an older copy: earlier proofs do not count
        self._set_records(loaded)

    def _set_records(self, loaded: Loaded) -> None:
        self._records = {record.device.uuid: record for record in loaded.records}
        for record in loaded.records:
            self.on_record(record)
        self.records: Mapping[str, Record] = MappingProxyType(self._records)  # the current ones, by UUID
        self.head = loaded.head  # a copy elsewhere shows whether the last rows were cut off
        self._rows = loaded.rows
        self._recent = deque(loaded.recent, REMEMBERED)

    @property
    def fault(self) -> LedgerUnavailable | None:
        """Why nothing can be written now."""
        return self._disk.fault if isinstance(self._disk, Outage) else None

    @property
    def seq(self) -> int:
        """The number of the newest row."""
        return self.head.size

    @property
    def kept(self) -> Kept:
        """From which wall times on the last history could have rows."""
        return self._store.kept

    async def append(self, op: str, *events: tuple[str, Event], seen: Mapping[str, Facts] = NO_LOOK) -> None:
        """Record the events of one operation, all or none. A cancelled caller still waits for the end of the write.

        ``seen``: by device, what the decision rests on. Raises OvertakenError if it does not hold any more.
        """
        await aio.finish(self._append(op, events, seen))

    async def append_of_node(self, event: ev.NodeEvent) -> None:
        """Record an event of the node, which changes no record."""
        await aio.finish(self._append_of_node(event))

    async def try_again(self) -> None:
        """After a failed write, record since when nothing could be written: it shows when the ledger works again."""
        if self._disk != Works() and not self._lock.locked():  # a write that hangs must not hold up its caller
            await aio.finish(self._append_of_node())

    def was_unavailable(self, since: Moment, why: str) -> None:
        """It could not be opened since this moment: the next write records that."""
        self._disk = Works(ev.WritesFailed(since, self._now(), why))

    async def _append_of_node(self, *events: ev.NodeEvent) -> None:
        async with self._lock:
            await self._catch_up("")
            for event in events:
                await self._record_of_node(event)
        self.changed.notify()

    async def _record_of_node(self, event: ev.NodeEvent) -> None:
        at = self._now()
        drafts = [LedgerEntry(0, ev.NODE, at, "", event)]
        entries = await self._write(lambda: self._store.append(drafts), at)
        self._has_written(entries)
        self.head = self._store.head

    async def _append(self, op: str, events: Sequence[tuple[str, Event]], seen: Mapping[str, Facts]) -> None:
        async with self._lock:
            try:
                late = await self._catch_up(op)
                decided_without = not late.isdisjoint(device for device, _ in events)
                if not decided_without:
                    await self._record(op, events, seen)
            except LedgerUnavailable:
                self._record_later(events)
                raise
        self.changed.notify()
        if decided_without:
            why = "cannot record this: an earlier observation of the device had to be recorded first"
            raise LedgerUnavailable(why, "try again")

    async def _catch_up(self, op: str) -> frozenset[str]:
        """Write what an outage has left to write; returns the devices whose sightings were recorded late.

        The sightings are kept until they are on the disk.
        """
        if self._disk == Works():
            return frozenset()
        if outage.is_stale(self._disk):
            self._set_records(await self._write(lambda: self._store.load(states.replay), self._now()))
        untold = outage.to_tell(self._disk, self._now())
        if untold is not None:
            await self._record_of_node(untold)
            self._disk = Works()
        late = ((device, states.late(self._records.get(device), event)) for device, event in self._unwritten.items())
        events = [(device, event) for device, event in late if event is not None]
        if events:
            await self._record(op, events)
        self._unwritten = {}
        return frozenset(device for device, _ in events)

    def _record_later(self, events: Sequence[tuple[str, Event]]) -> None:
        for device, event in events:
            sighting = states.to_record_later(self._unwritten.get(device), event)
            if sighting is not None:
                self._unwritten[device] = sighting

    async def _record(
        self, op: str, events: Sequence[tuple[str, Event]], seen: Mapping[str, Facts] = NO_LOOK
    ) -> None:  # fmt: skip
        """Legal, then durable, then true."""
        at = self._now()
        drafts = [LedgerEntry(0, device, at, op, _resting_on(event, seen.get(device))) for device, event in events]
        changed: dict[str, Record] = {}
        before: list[Record | None] = []  # before each event
        after: list[Record] = []
        for draft in drafts:
            record = changed.get(draft.device, self._records.get(draft.device))
            before.append(record)
            after.append(states.apply(record, draft))
            changed[draft.device] = after[-1]
        began = asyncio.get_running_loop().time()
        entries = await self._write(lambda: self._append_and_sign(drafts, before, after, seen), at)
        for record in changed.values():
            self.on_record(record)
        self._records.update(changed)
        self._has_written(entries)
        self._tell(entries, before, asyncio.get_running_loop().time() - began)
        if self._rows >= self._most:
            folded = await self._write(
                lambda: self._store.compact(states.replay, self._keep, at, self._evidence), self._now()
            )
            self._rows -= folded
        self.head = self._store.head

    def _tell(self, entries: Sequence[LedgerEntry], before: Sequence[Record | None], took: float) -> None:
        if self._listener is not None:
            try:
                self._listener(entries, before, took)
            except Exception:  # the events are recorded: an error in the metrics must not undo that
                logger.exception("cannot count what was recorded")

    def _has_written(self, entries: Sequence[LedgerEntry]) -> None:
        self._recent.extend(entries)
        self._rows += len(entries)
        for entry in entries:
            logs_itself = isinstance(entry.event, ev.ScrubFailed)  # the job logs its own end
            level = logging.WARNING if ev.is_warning(entry.event) and not logs_itself else logging.DEBUG
            if logger.is_enabled_for(level):  # every grant comes here, and the text takes as long as a decision
                logger.log(level, event_text.tell(entry.event), op=entry.op, device=entry.device, row=entry.seq)

    def _append_and_sign(
        self,
        drafts: Sequence[LedgerEntry],
        before: Sequence[Record | None],
        after: Sequence[Record],
        seen: Mapping[str, Facts],
    ) -> tuple[LedgerEntry, ...]:
        for device in {it.device for it in drafts if isinstance(it.event, ev.ON_NO_USE)} & seen.keys():
            if self.overtaken(device, seen[device].use_reading):
                raise OvertakenError(device)
        entries = self._store.append(drafts)
        if self.notary is not None:
            try:
                self.notary.recorded(tuple(map(Change, entries, before, after)), self._store.prove)
            except Exception:  # the events are recorded: what others get to see of them must not undo that
                logger.exception("cannot sign or hand over what was recorded")
        return entries

    async def checkpoint(self) -> None:
        """Have the notary sign the present state of the ledger, unless the last write failed."""
        async with self._lock:
            notary = self.notary
            if notary is None or outage.is_stale(self._disk):
                return
            try:
                await self._write(lambda: notary.checkpoint(self._store.prove(self._store.head.size)[0]), self._now())
            except LedgerUnavailable:
                raise
            except Exception:  # whatever the signer raises: the ledger is written all the same
                logger.exception("cannot sign a checkpoint")

    async def _write(self, work: Callable[[], T], began: Moment) -> T:
        """Do this on the writing thread. What it wrote is on the disk when this returns. ``began``: now."""
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(SLOW, self._stalled, began)
        try:
            done = await loop.run_in_executor(self._writer, work)
        except LedgerUnavailable as error:
            self._report(outage.failed(self._disk, error, began))
            raise
        finally:
            alarm.cancel()
        if isinstance(self._disk, Outage):
            self._disk = outage.wrote(self._disk, self._now())
        return done

    def _stalled(self, began: Moment) -> None:
        logger.error("the ledger has stopped writing: no device is granted until the disk answers", seconds=SLOW)
        slow = LedgerUnavailable(
            f"a write has taken longer than {SLOW:g} s", "look for a disk that hangs in the kernel log"
        )
        self._report(outage.hangs(self._disk, slow, began))

    def _report(self, disk: Outage) -> None:
        """A service that cannot record offers no device: wake all waiting calls."""
        self._disk = disk
        self.changed.notify()

    async def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> HistoryPage:
        """The newest entries of the window, of one device or of all, newest last.

        If the disk hangs, they are the newest ones in memory. A later page, of rows before a certain one, waits for the
        disk. After a jump of the wall clock, rows of the asked length of time count as well.
        """
        if since is not None:
            now = self._now()
            window = replace(window, uptime=now.uptime - (now.wall - since))
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._readers, lambda: self._store.history(device, since, limit, window))
        try:
            await asyncio.wait([reading], timeout=READ if window.before is None else None)
            if reading.done():
                return HistoryPage(reading.result())
        finally:
            reading.cancel()  # if it has not begun
        logger.error("the ledger cannot be read: the newest rows are answered from memory", seconds=READ)
        entries = tuple(reversed(list(islice(self._remembered(device, since, window), limit))))
        return HistoryPage(entries, partial=len(entries) < limit)

    def _remembered(self, device: str | None, since: float | None, window: Window) -> Iterator[LedgerEntry]:
        for entry in reversed(self._recent):
            in_time = (since or 0.0) <= entry.at.wall <= (window.until or entry.at.wall)
            wanted = not window.kinds or ledger_rows.KINDS[type(entry.event)] in window.kinds
            if device in (None, entry.device) and in_time and entry.seq > window.after and wanted:
                yield entry

    async def close(self) -> None:
        """Finish the current write, then close the store."""
        async with self._lock:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._store.close)
        self._writer.shutdown()
        self._readers.shutdown()


def _resting_on(event: Event, seen: Facts | None) -> Event:
    """The event with the reading with which the look began, if it is one that has such a reading."""
    if seen is None or not isinstance(event, ev.READS_FENCE):
        return event
    return replace(event, fence=guarded.of_look(seen))
