"""Finds who holds devices: by the driver's list where ``core.observation`` accepts it, or by a search of /proc.

A search leaves workers and bystanders out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from ground import log
from scrubber.core.model import Holder, Incarnation
from scrubber.core.use_counter import UseReading
from scrubber.devices.base import UNSHOWN, DeviceError, ShortageError
from scrubber.devices.blocking_calls import UnresponsiveError
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls, Shared

logger = log.get("observer")

T = TypeVar("T")
R = TypeVar("R")
Holders = dict[str, tuple[Holder, ...] | None]
IsBystander = Callable[[Holder], bool]
NOT_LISTED: Mapping[str, frozenset[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What one search for holders found."""

    holders: Holders
    held_up: str = ""  # which process was too slow to read, or cannot be read, for operators
    unreadable: str = ""  # the latter alone
    missing: Mapping[str, str] = field(default_factory=dict)  # why the files of a device cannot be looked for
    open: frozenset[str] = frozenset()  # the devices of which the driver listed a holder
    left: frozenset[str] = frozenset()  # those whose holder was not found, and has left
    settled: bool = True  # whether its last listing of the processes showed no new one
    bystander_pods: Mapping[str, frozenset[str]] = field(default_factory=dict)  # ``Sighting.bystander_pods``, by device


class HolderSearch:
    """Searches for holders. The service's own workers do not count as holders."""

    def __init__(self, driver: DriverCalls, processes: Processes, bystanders: Callable[[str], IsBystander]) -> None:
        """``bystanders``: for each device, which holders do not count."""
        self._listed: dict[str, frozenset[int]] = {}  # the holders that the driver listed at the last search
        self._driver = driver
        self._processes = processes
        self._bystanders = bystanders
        self._workers: set[int] = set()
        self._all_holders = Shared(self._find_holders)
        self._unlisted: dict[str, str] = {}  # of each device whose list the driver does not give: why
        self._logged_pid = 0  # of a process that held up a search
        self._logged_unreadable = ""  # of a process that cannot be read

    def own(self, pid: int) -> None:
        """Count a process as a worker of the service, not as a holder."""
        self._workers.add(pid)

    def disown(self, pid: int) -> None:
        """Forget a worker that was reaped: the pid may belong to another process now."""
        self._workers.discard(pid)

    @property
    def workers(self) -> frozenset[int]:
        """The workers of the service now."""
        return frozenset(self._workers)

    async def of(
        self, uuids: Sequence[str], listed: Mapping[str, frozenset[int]] = NOT_LISTED
    ) -> tuple[Incarnation, SearchResult]:  # fmt: skip
        """The driver instance, and the holders of these devices.

        Raises DeviceError if the driver cannot be asked. A holder may leave before the search finds it. If the driver
        still lists a process, and the search found no holder, only bystanders have the device open. ``listed``: the
        holders that the driver has just listed, by device; it is asked about the others.
        """
        ours = self.workers  # also those that end meanwhile: the lists have them
        asked = [uuid for uuid in uuids if uuid not in listed]
        incarnation, lists = await asyncio.gather(self._driver.incarnation(), self._lists(asked))
        lists |= listed
        answered = {uuid: pids for uuid, pids in lists.items() if pids is not None}
        self._listed |= answered
        search = await self._all_holders.ask(*answered) if answered else SearchResult({})
        unfound = [uuid for uuid in uuids if search.holders.get(uuid) == ()]
        missed = await asyncio.gather(*map(self._ask_missed, unfound))
        holders = dict.fromkeys(uuids) | search.holders | dict(zip(unfound, missed, strict=True))
        opened = frozenset(uuid for uuid, pids in answered.items() if pids - ours - self._workers)
        lists = await self._lists([uuid for uuid in opened if holders[uuid] == ()])
        left = frozenset(uuid for uuid, pids in lists.items() if not (pids or frozenset()) - ours - self._workers)
        keys = {uuid: uuid for uuid in uuids} | {uuid: _missed(uuid) for uuid in unfound}
        why = {uuid: self._unlisted[key] for uuid, key in keys.items() if key in self._unlisted}
        search = replace(search, holders=holders, missing=why | dict(search.missing), open=opened, left=left)
        return incarnation, search

    async def read_counters(self, uuids: Sequence[str]) -> dict[str, UseReading]:
        """What the use counters say. One that does not answer is missing."""
        answers = dict(zip(uuids, await asyncio.gather(*map(self._ask_counter, uuids)), strict=True))
        return {uuid: answer for uuid, answer in answers.items() if answer is not None}

    async def _find_holders(self, asked: frozenset[str]) -> SearchResult:
        listed = {uuid: self._listed[uuid] for uuid in asked}
        try:
            search = await self._driver.caller.ask("processes", lambda: self._search(listed), 5 * self._driver.patience)
        except UnresponsiveError:
            seconds, pid = self._processes.slowest()  # not its name, which may be slow to read
            search = SearchResult({}, f"pid {pid} took {seconds:.1f} s to read")
        if search.unreadable and search.unreadable != self._logged_unreadable:
            self._logged_unreadable = search.unreadable
            logger.warning("a process cannot be read", error=search.unreadable)
        if search.held_up != search.unreadable:
            seconds, pid = self._processes.slowest()
            if pid != self._logged_pid:  # once for each process
                self._logged_pid = pid
                logger.warning("reading all processes takes too long", slowest_pid=pid, its_seconds=round(seconds, 3))
        return search

    async def _lists(self, uuids: Sequence[str]) -> dict[str, frozenset[int] | None]:
        return dict(zip(uuids, await asyncio.gather(*map(self._list_holders, uuids)), strict=True))

    async def _list_holders(self, uuid: str) -> frozenset[int] | None:
        """The holders that the driver lists; None if the driver does not answer. A released driver lists no holder."""
        return await self._ask_driver(uuid, self._driver.backend.listed_holders, uuid, frozenset())

    async def _ask_missed(self, uuid: str) -> tuple[Holder, ...] | None:
        """The processes that have the device open and were not found; None if this is not known.

        A released driver says nothing.
        """
        return await self._ask_driver(_missed(uuid), self._missed, uuid, ())

    def _missed(self, uuid: str) -> tuple[Holder, ...] | None:
        """The processes that are not holders must explain what the kernel counts.

        Runs in a thread. A process may take a file out of a socket after the search has passed it: then this shows the
        file.
        """
        files = self._driver.backend.open_files(uuid)
        if files.unshown:
            raise DeviceError(UNSHOWN)
        return self.named(uuid, files.shown_by)

    async def _ask_counter(self, uuid: str) -> UseReading | None:
        """What the use counter says; None if the device is in a reset that the service does not know of."""
        # This question has a key of its own: another question about the device may hang, and only files answer for a
        # simulated one.
        return await self._ask_driver(f"use counter {uuid}", self._driver.read_uses, uuid, None)

    async def _ask_driver(self, key: str, question: Callable[[str], T], uuid: str, released: R) -> T | R | None:
        """The answer of the driver; None if it does not answer.

        ``released``: the answer to assume while the driver is released.
        """
        driver = self._driver
        try:
            answer = await driver.caller.ask(key, partial(driver.answer, question, uuid), driver.patience)
        except ShortageError:
            raise
        except DeviceError as error:
            self._unlisted[key] = str(error)
            return released if driver.caused_by_release(error) else None
        self._unlisted.pop(key, None)
        return answer

    def named(self, uuid: str, listed: frozenset[int]) -> tuple[Holder, ...] | None:
        """The holders among the processes on the driver's list, as /proc shows them; None if one is not found.

        Runs in a thread.
        """
        ours, is_bystander, holders = self.workers, self._bystanders(uuid), list[Holder]()
        for pid in sorted(listed - ours):
            try:
                process = self._processes.process(pid)
            except OSError:  # such as too many open files
                return None
            if not process:
                return None
            holders += [holder for holder in process if not self._is_ignored(ours, is_bystander, holder)]
        return tuple(holders)

    def _search(self, listed: Mapping[str, frozenset[int]]) -> SearchResult:
        """Find the holders of all devices, in one search for each set of bystanders."""
        workers, until = tuple(self._workers), time.monotonic() + 4 * self._driver.patience
        groups: dict[IsBystander, dict[str, tuple[str, ...]]] = {}
        for uuid in listed:
            groups.setdefault(self._bystanders(uuid), {})[uuid] = self._files(uuid)
        holders, held_up, unreadable, missing, settled = Holders(), "", "", dict[str, str](), True
        bystander_pods = dict[str, frozenset[str]]()
        for is_bystander, files in groups.items():
            ignored, left = partial(self._is_ignored, workers, is_bystander), until - time.monotonic()
            holders |= self._processes.holders(files, workers, is_bystander=ignored, listed=listed, within=left)
            if self._processes.gave_up:
                seconds, pid = self._processes.slowest()
                held_up = f"{self._processes.named(pid)} took {seconds:.1f} s to read"
            unreadable = self._processes.unreadable or unreadable
            missing |= self._processes.missing
            bystander_pods |= self._processes.bystander_pods
            settled = settled and self._processes.settled
        why = held_up or unreadable
        return SearchResult(holders, why, unreadable, missing, settled=settled, bystander_pods=bystander_pods)

    def _is_ignored(self, workers: Collection[int], is_bystander: IsBystander, holder: Holder) -> bool:
        """Whether a holder is a bystander, or descends from a worker (a reset tool), even one that has just started."""
        return self._processes.descends(holder.pid, {*workers, *self._workers}) or is_bystander(holder)

    def _files(self, uuid: str) -> tuple[str, ...]:
        """The files of a device; none if the device is gone.

        In that case only the holders of this device are unknown. The use counter and the list before rule out a reset
        that the service does not know of.
        """
        try:
            return self._driver.backend.files(uuid)
        except DeviceError:
            return ()


def _missed(uuid: str) -> str:
    return f"open files {uuid}"
