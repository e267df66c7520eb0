"""The one memory of the service.

Rule 1: ``append`` is legal, then durable, then true, in this order: the table is asked, the store has it on disk, and
        only then does anybody see the new record.
Rule 2: start-up replays through the same ``states.apply``. There is no second way to change anything.
Rule 3: after a write that failed, what is on disk decides: memory is read anew before the next append.
Rule 4: who was seen on a device and could not be recorded is recorded before anything else: by then they may be gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Protocol, TypeVar

from scrubber.core import event_text, states
from scrubber.core import events as ev
from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Moment, Record
from scrubber.ground import aio, log
from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger.store import Draft, Head, Loaded, Store

T = TypeVar("T")
logger = log.get("ledger")
NOTABLE = (
    ev.Soiled,
    ev.Distrusted,
    ev.GrantedUnproven,
    ev.Escalated,
    ev.AilmentFound,
    ev.Quarantined,
    ev.Reinstated,
)  # what somebody who reads the log wants to know; the end of a job is told with its job, the rest at level debug
SLOW = 2.0  # seconds: a disk that takes longer hangs, and whoever asks for a device waits with it
SIGHTINGS = (ev.Soiled, ev.PutInUse)  # a proof that they end would stand if a full disk made us forget them
KEEP = 30_000  # rows kept in full, some two thousand scrubs; what is older is folded into a snapshot
FOLD_AT_ONCE = 5_000  # rows beyond that before the next fold: appends wait for it


class Witness(Protocol):
    """Whoever wants to know what has become true, and how long that took. It must not wait."""

    def row(self, entry: LedgerEntry, before: Record | None) -> None:
        """This has become true of a device that stood so before."""
        ...

    def written(self, seconds: float) -> None:
        """So long until it was durable."""
        ...


def replay(records: Sequence[Record], entries: Sequence[LedgerEntry]) -> tuple[Record, ...]:
    """The records after these entries."""
    result = {record.device.uuid: record for record in records}
    for entry in entries:
        result[entry.device] = states.apply(result.get(entry.device), entry)
    return tuple(result.values())


class Ledger:
    """Records by device, as durable as they are true."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], Moment],
        keep: int = KEEP,
        fold_at_once: int = FOLD_AT_ONCE,
        loaded: Loaded | None = None,
        witness: Witness | None = None,
    ) -> None:
        """Read everything the store holds, unless whoever opened it has just done so."""
        self._witness = witness
        self._store = store
        self._now = now
        self._keep = keep
        self._most = keep + fold_at_once
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ledger-read")
        self._lock = asyncio.Lock()
        self._moved = asyncio.Event()
        self._stale = False
        self._unwritten: dict[str, Event] = {}  # the newest sighting of each device that could not be recorded
        self.fault: str | None = None
        self.news = 0  # how often there was any
        self._believe(loaded or store.load())

    def _load(self) -> None:
        self._believe(self._store.load())

    def _believe(self, loaded: Loaded) -> None:
        self._records = {record.device.uuid: record for record in replay(loaded.snapshot, loaded.entries)}
        self._head = loaded.head
        self._rows = len(loaded.entries)

    @property
    def records(self) -> Mapping[str, Record]:
        """What is true now, by device UUID."""
        return MappingProxyType(self._records)

    @property
    def head(self) -> Head:
        """The newest row: who wrote it down elsewhere can tell whether a tail was cut off."""
        return self._head

    @property
    def seq(self) -> int:
        """The number of the newest row."""
        return self._head.seq

    async def append(self, op: str, *events: tuple[str, Event]) -> None:
        """Record the events of one operation, all or none. Whoever is cancelled meanwhile leaves when it is done."""
        await aio.finish(self._append(op, events))

    async def _append(self, op: str, events: Sequence[tuple[str, Event]]) -> None:
        async with self._lock:
            try:
                first = await self._catch_up(op) if self._stale else frozenset[str]()
                if first.isdisjoint(device for device, _ in events):
                    await self._record(op, events)
            except LedgerUnavailable:
                self._keep_sightings(events)
                raise
            if not first.isdisjoint(device for device, _ in events):  # it was decided without knowing of that
                self.announce()
                why = "cannot record this: what was seen while the ledger failed came first; ask again"
                raise LedgerUnavailable(why)
        for device, event in events:
            level = logging.WARNING if _notable(event) else logging.DEBUG
            if logger.is_enabled_for(level):  # every grant passes here, and a sentence takes as long as a decision
                logger.log(level, event_text.tell(event), op=op, device=device, row=self.seq)
        self.announce()

    async def _catch_up(self, op: str) -> frozenset[str]:
        """After a failed write: read what is on disk, then record what was seen meanwhile; it may be gone by now.

        The devices of which that was. Until it is on disk it is kept, whatever fails once more.
        """
        await self._write(self._load)
        self._stale = False
        seen = {device: event for device, event in self._unwritten.items() if self._counts(device, event)}
        if seen:
            await self._record(op, tuple(seen.items()))
        self._unwritten = {}
        return frozenset(seen)

    def _keep_sightings(self, events: Sequence[tuple[str, Event]]) -> None:
        """The newest of each device; but an owner's that could not be admitted does not hide who was there before."""
        for device, event in events:
            before = self._unwritten.get(device)
            if isinstance(event, SIGHTINGS) and (before is None or _taints(event) or not _taints(before)):
                self._unwritten[device] = event

    def _counts(self, device: str, event: Event) -> bool:
        """Whether it still changes anything: a write that was said to have failed may have reached the disk."""
        record = self._records.get(device)
        return record is not None and type(event) in states.TABLE[record.state]

    async def _record(self, op: str, events: Sequence[tuple[str, Event]]) -> None:
        at = self._now()
        changed, before = self._legal(op, at, events)
        drafts = [Draft(device, at, op, event) for device, event in events]
        began = asyncio.get_running_loop().time()
        entries = await self._write(lambda: self._store.append(drafts))
        self.fault = None  # a write that worked, and nothing less: what can be read need not be writable
        self._records.update(changed)
        self._tell(entries, before, asyncio.get_running_loop().time() - began)
        self._rows += len(drafts)
        if self._rows >= self._most:
            self._rows -= await self._write(lambda: self._store.compact(replay, self._keep, at))
        self._head = self._store.head

    def _legal(
        self, op: str, at: Moment, events: Sequence[tuple[str, Event]]
    ) -> tuple[dict[str, Record], list[Record | None]]:
        """The records that these events change, and how each event finds its own."""
        changed: dict[str, Record] = {}
        found: list[Record | None] = []
        for device, event in events:
            before = changed.get(device, self._records.get(device))
            found.append(before)
            changed[device] = states.apply(before, LedgerEntry(0, device, at, op, event))
        return changed, found

    def _tell(self, entries: Sequence[LedgerEntry], before: Sequence[Record | None], seconds: float) -> None:
        if self._witness is None:
            return
        try:
            self._witness.written(seconds)
            for entry, record in zip(entries, before, strict=True):
                self._witness.row(entry, record)
        except Exception:  # what is true stays true, whoever cannot count it
            logger.exception("cannot count what was recorded")

    async def _write(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(SLOW, self._complain, f"a write has taken longer than {SLOW:g} s")
        try:
            return await loop.run_in_executor(self._writer, work)
        except LedgerUnavailable as error:
            self._stale = True
            self._complain(error.message)
            raise
        finally:
            alarm.cancel()

    def _complain(self, fault: str) -> None:
        """Who cannot record must not offer."""
        self.fault = fault
        self.announce()

    def announce(self) -> None:
        """Wake whoever waits for news: a row was added, or something else that is shown has changed."""
        self.news += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self, seq: int, timeout: float) -> bool:  # noqa: ASYNC109 - the time is part of the question
        """Wait until there is something newer than this row, but not longer than this."""
        return self.seq != seq or await self._stirred(timeout)

    async def heard(self, news: int, timeout: float) -> bool:  # noqa: ASYNC109 - the time is part of the question
        """Wait until anything was announced beyond so much news, but not longer than this."""
        return self.news != news or await self._stirred(timeout)

    async def _stirred(self, timeout: float) -> bool:  # noqa: ASYNC109 - the time is part of the question
        try:
            async with asyncio.timeout(timeout):  # wait_for would forget a cancellation that comes with the news
                return await self._moved.wait()
        except TimeoutError:
            return False

    async def history(self, device: str | None, since: float | None, limit: int) -> tuple[LedgerEntry, ...]:
        """The newest entries, of one device or of all, newest last."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: self._store.history(device, since, limit))

    async def close(self) -> None:
        """Finish what is being written, then let go of the file."""
        async with self._lock:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._store.close)
        self._writer.shutdown()
        self._readers.shutdown()


def _taints(event: Event) -> bool:
    """Whether somebody else than the owner was seen."""
    return not isinstance(event, ev.PutInUse) or event.owner.unannounced or event.owner.crowded


def _notable(event: Event) -> bool:
    return isinstance(event, NOTABLE) or (isinstance(event, ev.PutInUse) and event.owner.crowded)
