"""Observes devices through the backend and /proc, and returns facts. Decides nothing.

A quick observation asks the driver alone, and is enough when the driver says that the device has no holder. A full
observation finds all holders: it searches all processes of the node, unless the kernel says that no process has the
device open. A step that changes a device rests on a full observation only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Generic, TypeVar

from scrubber.core import ownership, presence
from scrubber.core.model import DeviceInfo, Facts, Holder, Incarnation, KubeletAssignment, Moment, Record, State, Vitals
from scrubber.devices.base import (
    Address,
    Backend,
    Counts,
    DeviceError,
    DeviceLostError,
    DriverClosedError,
    Readings,
    ShortageError,
)
from scrubber.devices.calls import Caller, UnresponsiveError, in_turn
from scrubber.ground import log
from scrubber.node import checkpoint, clock
from scrubber.node.identity import kubelet_epoch
from scrubber.node.proc import DEAD, BlindError
from scrubber.node.process_ends import ProcessEnds
from scrubber.node.processes import Processes, no_bystander
from scrubber.observe.driver_release import DriverRelease
from scrubber.observe.observation_cache import ASSIGNED, UNOBSERVED, ObservationCache, ObservedSince

logger = log.get("observer")

Holders = dict[str, tuple[Holder, ...] | None]
T = TypeVar("T")
IsBystander = Callable[[Holder], bool]
BUSY_STATES = ASSIGNED | {State.SCRUBBING}


@dataclass(frozen=True, slots=True)
class _Search:
    """What one search for holders found."""

    holders: Holders
    held_up: str = ""  # which process was too slow to read, for operators
    open: frozenset[str] = frozenset()  # the devices that a process had open, as the kernel or the driver says
    left: frozenset[str] = frozenset()  # those whose holder was not found, and has left


class _Shared(Generic[T]):
    """One observation for all callers that ask before it begins.

    An observation that has already begun is too old for a later caller, who gets the next one.
    """

    def __init__(self, observe: Callable[[frozenset[str]], Awaitable[T]]) -> None:
        """``observe`` is given everything that was asked about."""
        self._observe = observe
        self._turn = asyncio.Lock()
        self._asked: set[str] = set()
        self._next: asyncio.Task[T] | None = None

    async def ask(self, *about: str) -> T:
        self._asked.update(about)
        if self._next is None:
            self._next = asyncio.create_task(self._take())
            # Its callers may be gone when it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _take(self) -> T:
        async with self._turn:
            asked, self._asked, self._next = frozenset(self._asked), set(), None
            return await self._observe(asked)


class Observer:
    """Observes the devices for the service. ``patience``: the seconds that a driver may take to answer."""

    def __init__(  # noqa: PLR0913 - the observer is put together from many parts
        self,
        backend: Backend,
        processes: Processes,
        boot_id: str,
        kubelet_dir: Path,
        observed_since: float,
        bystanders: Callable[[str], IsBystander] = lambda _uuid: no_bystander,
        *,
        patience: float = 2.0,
        caller: Caller | None = None,
        ends: ProcessEnds | None = None,
        now: Callable[[], Moment] = clock.now,
        on_pass: Callable[[], None] = lambda: None,
        unobserved: float = UNOBSERVED,
    ) -> None:
        """``observed_since``: the uptime at which this service began.

        ``bystanders``: for each device, which holders do not count. ``ends``: learns at every full observation which
        process to follow, so that its end calls for the next observation. ``on_pass``: called whenever all processes
        are searched for live containers.
        ``unobserved``: the seconds without an observation after which earlier proofs end.
        """
        self._bystanders = bystanders
        self.backend = backend
        self.patience = patience
        self._processes = processes
        self._boot_id = boot_id
        self._kubelet_dir = kubelet_dir
        self._observed_since = ObservedSince(observed_since, now, unobserved)
        self._late: dict[str, float] = {}  # since when a device does not answer
        self._caller = caller or Caller()
        self._workers: set[int] = set()
        self._all_holders = _Shared(self._find_holders)
        self._live_containers = _Shared(self._find_containers)
        self._driver = _Shared(self._find_driver)
        self._cache = ObservationCache()
        self._ends = ends
        self._members: Mapping[str, int] = {}  # one process of each container that was found alive
        self._release = DriverRelease(backend, self._caller, patience)
        self._listed: dict[str, frozenset[int]] = {}  # the holders that the driver listed at the last full observation
        self._took = 0.0  # seconds that the last full observation took
        self._on_pass = on_pass
        self._logged_pid = 0  # of a process that held up a search

    def own(self, pid: int) -> None:
        """Count a process as a worker of the service, not as a holder."""
        self._workers.add(pid)

    def disown(self, pid: int) -> None:
        """Forget a worker that was reaped: the pid may belong to another process now."""
        self._workers.discard(pid)

    async def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices; raises DeviceError when they cannot be listed."""
        return await self._caller.ask("inventory", self.backend.inventory, self.patience)

    async def quick(self, record: Record, *, last: bool = False) -> Facts:
        """Facts from one question to the driver if its answer is enough, such as "no holder"; else a full observation.

        A driver that lists holders leaves out a process that only has the device open. So its answer "no holder" is
        enough only for a while after a full observation. It is never enough for the ``last`` observation before a
        container uses the device.
        """
        # Whether the last full observation may be used instead of a new one.
        may_use_cache = self.backend.lists_holders and (record.state in ASSIGNED or not last)
        uuid = record.device.uuid
        if may_use_cache and (facts := await self._cached(record)) is not None:
            return self._observed_since.stamped(uuid, facts)
        try:
            incarnation, held = await self._caller.ask(
                uuid, lambda: (self._incarnation(), self._answer(self.backend.has_holders, uuid)), self.patience
            )
        except DeviceError as error:
            # The caller must hear that the device does not answer. The holders can be seen all the same.
            vitals = None if self._says_nothing(error) else _silent(error)
            return replace(await self.full(record), vitals=vitals)
        if held:
            self._observed_since.seen_open(uuid)
        enough = not self.backend.lists_holders or (not last and self._cache.shows_no_holder(record))
        if held is False and record.state is not State.IN_USE and enough:
            return self._observed_since.stamped(uuid, Facts(incarnation, self.epoch(), ()))
        if held is None:  # perhaps because of leaked memory, which has no holder that can be seen
            vitals = await self.vitals(uuid, record.device.parent)
            return replace(await self.full(record), vitals=vitals)
        return await self.full(record)

    async def _cached(self, record: Record) -> Facts | None:
        """The last full observation, while its witness still runs and the driver lists no new holder.

        This can prove that the device is used, never that it is free. A holder that the driver does not list shows
        at the next full observation. The more a full observation costs, the later the next one comes. The ``last``
        observation of a device that is neither granted nor in use does not come from the cache.
        """
        question = self._cached_question(record)
        try:
            return await self._caller.ask(record.device.uuid, question, self.patience) if question else None
        except DeviceError:
            return None

    def _cached_question(self, record: Record) -> Callable[[], Facts | None] | None:
        """The question for ``_cached``, to be asked in a thread; None where the last observation is not valid."""
        witnessed = self._cache.witnessed(record)
        if witnessed is None:
            return None
        last, witness = witnessed

        def ask() -> Facts | None:
            if self._in_orphaned_reset(record.device.uuid):  # the driver must not be asked about it
                return None
            runs = self._processes.lives(witness) and self.backend.listed_holders(record.device.uuid) <= last.listed
            same = runs and self._incarnation() == last.facts.incarnation
            return replace(last.facts, epoch=self.epoch()) if same else None

        return ask

    async def quick_all(self, records: Sequence[Record]) -> dict[str, Facts]:
        """Health and holders of the devices for which the driver alone is enough. One thread asks about all of them.

        A device that is missing from the answer needs its own observation. If a device hangs, it and all devices after
        it are missing. As long as the thread hangs, further calls return nothing. After that, they skip the devices
        whose last health report was late.
        """
        driver, epoch = cache(self._incarnation), self.epoch()  # the same for all devices
        answering = [it for it in records if it.device.uuid not in self._late]
        questions = {it.device.uuid: self._quick_question(it, driver, epoch) for it in answering}
        known = {uuid: ask for uuid, ask in questions.items() if ask is not None}
        answers = await in_turn(self._caller, "quick observation", known, self.patience)
        return {uuid: self._observed_since.stamped(uuid, facts) for uuid, facts in answers.items() if facts is not None}

    def _quick_question(
        self, record: Record, driver: Callable[[], Incarnation], epoch: str
    ) -> Callable[[], Facts | None] | None:  # fmt: skip
        """What a thread asks about one device; None where the driver alone cannot answer."""
        uuid, parent = record.device.uuid, record.device.parent
        lists = self.backend.lists_holders
        cached = self._cached_question(record) if lists else None
        no_is_enough = record.state is not State.IN_USE and (not lists or self._cache.shows_no_holder(record))
        removed = presence.taken_away(record)  # a device that left the node has no holder and no pod that waits for it
        if cached is None and not (no_is_enough or removed):
            return None

        def ask() -> Facts | None:
            if self._in_orphaned_reset(uuid):
                return None
            incarnation = driver()
            reported, held = self.backend.quick_observation(uuid)
            if held:
                self._observed_since.seen_open(uuid)
            vitals = self._in_layout(reported, parent)
            if removed and vitals.lost:
                return Facts(incarnation, epoch, None, vitals=vitals)
            if no_is_enough and held is False:
                return Facts(incarnation, epoch, (), vitals=vitals)
            facts = cached() if cached is not None else None
            return facts and replace(facts, vitals=vitals)

        return ask

    async def full(self, record: Record, siblings: Sequence[Record] = (), starting_pod: str | None = None) -> Facts:
        """Facts that a change may rest on: all holders of the device and of its siblings.

        ``starting_pod``: the pod that asks to start on the device.
        """
        uuids = [record.device.uuid, *(sibling.device.uuid for sibling in siblings)]
        try:
            incarnation = await self._driver.ask()
            search = await self._holders(uuids)
            alive = await self._is_alive(record.owner.container if record.owner else None)
            starting_pod_alive = await self._is_alive(starting_pod)
        except (DeviceError, BlindError) as error:
            self._cache.forget(record)
            lack = str(error) if isinstance(error, ShortageError) else ""
            blind = Facts(record.incarnation, self.epoch(), None, shortage=lack)
            return self._observed_since.stamped(record.device.uuid, blind)
        holders = search.holders[record.device.uuid]
        self._observed_since.searched(record.device.uuid, found=bool(holders) or record.device.uuid in search.open)
        for seen in (record, *siblings):
            uuid, held = seen.device.uuid, search.holders[seen.device.uuid]
            unnamed = uuid in search.left or (held is None and uuid in search.open)
            unrecorded = seen is not record and seen.state is State.CLEAN and held
            if unnamed or unrecorded:  # it may leave before the next observation, and leave its bytes behind
                self._observed_since.interrupt(uuid)
        unstamped = Facts(
            incarnation,
            self.epoch(),
            holders,
            owner_alive=alive,
            starting_pod_alive=starting_pod_alive,
            siblings_busy=_siblings_busy(siblings, search.holders),
            held_up=search.held_up if holders is None else "",
        )
        facts = self._observed_since.stamped(record.device.uuid, unstamped)
        self._remember(record, facts)
        if self._ends is not None:
            self._follow(self._ends, record, facts, starting_pod)
        return facts

    def _follow(self, ends: ProcessEnds, record: Record, facts: Facts, starting_pod: str | None) -> None:
        """Follow a process of the owner's container while the container lives, else a holder of the device."""
        device, owner = record.device.uuid, record.owner.container if record.owner else None
        lives = facts.owner_alive if owner is not None else facts.starting_pod_alive
        container = owner or starting_pod
        member = self._members.get(container) if lives and container is not None else None
        if member is not None:
            ends.follow(device, member, lambda: self._is_in(member, container))
        elif facts.holders:
            holder = facts.holders[0]
            ends.follow(device, holder.pid, lambda: self._processes.lives(holder))
        else:
            ends.forget(device)

    def _is_in(self, pid: int, container: str | None) -> bool:
        """Whether a live process is in the container. False if its first thread has ended: then only a search tells."""
        return any(it.container == container and it.state not in DEAD for it in self._processes.process(pid))

    def _remember(self, record: Record, facts: Facts) -> None:
        owner = record.owner.container if record.owner and self.backend.lists_holders else None
        member = self._members.get(owner or "")
        try:
            witnesses = facts.holders or (self._processes.process(member) if member is not None else ())
        except OSError:  # such as too many open files
            self._cache.forget(record)
            return
        listed = self._listed.get(record.device.uuid, frozenset())
        self._cache.remember(record, facts, listed, witnesses, self._took)

    async def vitals(self, uuid: str, parent: str | None = None) -> Vitals | None:
        """Health as the device reports it. Without a report: the logged signs alone (``partial``), or None.

        If a slice is missing, its GPU, the ``parent``, tells whether the GPU was partitioned anew.

        One late answer is no sign, because drivers hold their locks while another device is reset. Two late answers in
        a row are. What a device reports during a reset is no sign either.
        """
        try:
            vitals = await self._caller.ask(uuid, lambda: self._vitals(uuid, parent), self.patience)
        except DeviceError as error:
            silent, logged = self._unanswered(uuid, error), await self._logged(uuid)
            return replace(silent, xids=logged.xids, signs=logged.signs) if silent and logged else silent or logged
        if vitals is not None:
            self._late.pop(uuid, None)
        return vitals

    async def memory(self, uuid: str) -> Counts | None:
        """The driver's counts of the device's memory now; None if it does not say."""
        try:
            return await self._caller.ask(uuid, lambda: self.backend.memory(uuid), self.patience)
        except DeviceError:
            return None

    def _unanswered(self, uuid: str, error: DeviceError) -> Vitals | None:
        silent = None if self._says_nothing(error) else _silent(error)
        if silent is None or silent.lost:
            return silent
        now = asyncio.get_running_loop().time()
        # While a late call hangs, further calls fail at once. That is the same late answer, so wait.
        return silent if now - self._late.setdefault(uuid, now) >= self.patience else None

    async def _logged(self, uuid: str) -> Vitals | None:
        """What the log says about a device. Asked apart from the driver, which may hang."""
        try:
            return await self._caller.ask(f"log {uuid}", lambda: self._read_log(uuid), self.patience)
        except DeviceError:  # the device has no log, or the log cannot be read now: that proves no health either
            return None

    def _read_log(self, uuid: str) -> Vitals | None:
        # What a device logs during a reset of ours is expected.
        return None if uuid in self._release.resetting or self._in_orphaned_reset(uuid) else self.backend.reported(uuid)

    def epoch(self) -> str:
        """Names this run of the kubelet."""
        return kubelet_epoch(self._kubelet_dir)

    def driver_released(self, *uuids: str) -> AbstractAsyncContextManager[None]:
        """Release the driver while these devices are reset; DeviceError when an earlier call does not return.

        Processes are still observed. That the driver does not answer while it is released is no sign. It is a sign if
        the driver still does not answer when the release is over.
        """
        return self._release.during_reset(*uuids)

    async def driver_reacquired(self) -> None:
        """Wait until the driver is reacquired after all resets that have ended. The wait has a time limit."""
        await self._release.reacquired()

    def _answer(self, question: Callable[[str], T], uuid: str) -> T | None:
        """The answer of the backend; None during an orphaned reset."""
        return None if self._in_orphaned_reset(uuid) else question(uuid)

    def _vitals(self, uuid: str, parent: str | None) -> Vitals | None:
        reported = self._answer(self.backend.vitals, uuid)
        return None if reported is None else self._in_layout(reported, parent)

    def _in_layout(self, reported: Vitals, parent: str | None) -> Vitals:
        """The vitals of a slice that may be gone because its GPU was partitioned anew.

        A GPU that is in a reset, has a pending restore, or does not answer, says nothing about its slices.
        """
        if not reported.lost or parent is None or self._in_orphaned_reset(parent):
            return reported
        try:
            # If a reset by the service removed the slice, the slice counts as lost.
            ours = parent in self.backend.pending_restores()
            return reported if ours else presence.slice_vitals(reported, self.backend.vitals(parent))
        except DeviceError:
            return reported

    def _in_orphaned_reset(self, uuid: str) -> bool:
        """Whether a reset tool still resets the device after its worker has ended.

        The state and the holders of the device are unknown then.
        """
        return uuid not in self._release.resetting and self.backend.in_reset(uuid)

    def _caused_by_release(self, error: DeviceError) -> bool:
        return isinstance(error, DriverClosedError) and self._release.in_force()

    def _says_nothing(self, error: DeviceError) -> bool:
        """Whether the error is no sign: the driver is released, or the service or its node lacks something."""
        return isinstance(error, ShortageError) or self._caused_by_release(error)

    async def pending_restores(self) -> Mapping[str, Address]:
        """The GPUs that have a pending restore, with their addresses; raises DeviceError."""
        return await self._caller.ask("pending restores", self.backend.pending_restores, self.patience)

    async def readings(self) -> Mapping[str, Readings]:
        """What whole GPUs measure; empty while the driver is released, or does not answer in time."""
        return (await in_turn(self._caller, "readings", {"all": self.backend.readings}, self.patience)).get("all", {})

    async def incarnation(self) -> Incarnation:
        """This boot and this driver instance; raises DeviceError when the driver cannot be asked."""
        return await self._driver.ask()

    async def _find_driver(self, _asked: frozenset[str]) -> Incarnation:
        return await self._caller.ask("driver", self._incarnation, self.patience)

    def _incarnation(self) -> Incarnation:
        return Incarnation(self._boot_id, self.backend.driver())

    async def _holders(self, uuids: Sequence[str]) -> _Search:
        """The holders of these devices. A device that no process has open never waits for a search.

        A holder may leave before the search finds it. If the device is still open, and the search found no holder, only
        bystanders have it open.
        """
        search = await self._search_for(uuids)
        open_but_not_found = [uuid for uuid in uuids if uuid in search.open and search.holders[uuid] == ()]
        if not open_but_not_found:
            return search
        states = await self._open_states(open_but_not_found)
        return replace(search, left=frozenset(uuid for uuid, is_open in states.items() if not is_open))

    async def _search_for(self, uuids: Sequence[str]) -> _Search:
        if self.backend.lists_holders:
            return await self._all_holders.ask(*uuids)
        states = await self._open_states(uuids)
        free = [uuid for uuid, is_open in states.items() if is_open is False]
        rest = [uuid for uuid in uuids if uuid not in free]
        search = await self._all_holders.ask(*rest) if rest else _Search({})
        opened = frozenset(uuid for uuid, is_open in states.items() if is_open)
        return replace(search, holders=dict.fromkeys(free, ()) | search.holders, open=opened)

    async def _open_states(self, uuids: Sequence[str]) -> dict[str, bool | None]:
        """Whether a process has each device open, as the driver or the kernel says; None if that is not known."""
        if self.backend.lists_holders:
            workers = frozenset(self._workers)
            listed = await asyncio.gather(*map(self._list_holders, uuids))
            return {it: None if pids is None else bool(pids - workers) for it, pids in zip(uuids, listed, strict=True)}
        return await self._caller.ask(
            f"open {uuids[0]}",
            lambda: self._processes.open_states({uuid: self._files(uuid) for uuid in uuids}, tuple(self._workers)),
            self.patience,
        )

    async def _find_holders(self, uuids: frozenset[str]) -> _Search:
        listed: dict[str, frozenset[int] | None] = dict.fromkeys(uuids, frozenset())
        workers = frozenset(self._workers)
        if self.backend.lists_holders:
            listed = dict(zip(uuids, await asyncio.gather(*map(self._list_holders, uuids)), strict=True))
        known = {uuid: pids for uuid, pids in listed.items() if pids is not None}
        self._listed |= known
        began = asyncio.get_running_loop().time()
        try:
            search = await self._caller.ask("processes", lambda: self._search(known), 5 * self.patience)
        except UnresponsiveError:
            seconds, pid = self._processes.slowest()  # not its name: that may be what takes so long
            search = _Search({}, f"pid {pid} took {seconds:.1f} s to read")
        else:
            self._took = asyncio.get_running_loop().time() - began
        if search.held_up:
            self._log_slowest()
        opened = frozenset(uuid for uuid, pids in known.items() if pids - workers)
        return replace(search, holders=dict.fromkeys(uuids) | search.holders, open=opened)

    def _log_slowest(self) -> None:
        """Log which process holds up the search, once for each process."""
        seconds, pid = self._processes.slowest()
        if pid != self._logged_pid:
            self._logged_pid = pid
            logger.warning("reading all processes takes too long", slowest_pid=pid, its_seconds=round(seconds, 3))

    async def _list_holders(self, uuid: str) -> frozenset[int] | None:
        """The holders that the driver lists; None when it does not answer. A released driver lists no holder."""
        try:
            return await self._caller.ask(uuid, lambda: self._answer(self.backend.listed_holders, uuid), self.patience)
        except ShortageError:
            raise
        except DeviceError as error:
            return frozenset() if self._caused_by_release(error) else None

    def _search(self, listed: Mapping[str, frozenset[int]]) -> _Search:
        """Find the holders together for all devices that have the same bystanders."""
        workers, until = tuple(self._workers), time.monotonic() + 4 * self.patience
        groups: dict[IsBystander, dict[str, tuple[str, ...]]] = {}
        for uuid in listed:
            groups.setdefault(self._bystanders(uuid), {})[uuid] = self._files(uuid)
        found, held_up = Holders(), ""
        for is_bystander, files in groups.items():
            ignored, left = partial(self._is_ignored, workers, is_bystander), until - time.monotonic()
            found |= self._processes.holders(files, workers, is_bystander=ignored, listed=listed, within=left)
            held_up = self._describe_slowest() if self._processes.gave_up else held_up
        return _Search(found, held_up)

    def _describe_slowest(self) -> str:
        seconds, pid = self._processes.slowest()
        name = ownership.holder_names(self._processes.process(pid)) or f"pid {pid}"
        return f"{name} took {seconds:.1f} s to read"

    def _is_ignored(self, workers: Collection[int], is_bystander: IsBystander, holder: Holder) -> bool:
        """Whether a holder is a descendant of a worker (a reset tool), or a bystander."""
        return self._processes.descends(holder.pid, workers) or is_bystander(holder)

    def _files(self, uuid: str) -> tuple[str, ...]:
        """The files of a device; none if it is gone or in a reset. Then only the holders of this device are unknown."""
        try:
            return () if self._in_orphaned_reset(uuid) else self.backend.files(uuid)
        except DeviceError:
            return ()

    async def assignments(self, uuids: Sequence[str]) -> dict[str, KubeletAssignment]:
        """What the kubelet's checkpoint says about the devices; raises CheckpointError when it cannot be read."""
        found = await self._caller.ask("checkpoint", lambda: checkpoint.assignments(self._kubelet_dir), self.patience)
        return {uuid: found.get(uuid, KubeletAssignment()) for uuid in uuids}

    async def _is_alive(self, container: str | None) -> bool | None:
        if container is None:
            return None
        known = self._members.get(container)
        member = await self._caller.ask(f"pod {container}", lambda: self._find_member(container, known), self.patience)
        if member is not None:
            self._members = {**self._members, container: member}
            return True
        return container in await self._live_containers.ask(container)

    def _find_member(self, container: str, known: int | None) -> int | None:
        """A live process of the container, the known one if it still runs; None if only a search can tell."""
        if known is not None and self._is_in(known, container):
            return known
        return self.backend.member(container)

    async def _find_containers(self, _asked: frozenset[str]) -> Mapping[str, int]:
        self._on_pass()
        self._members = await self._caller.ask("containers", self.backend.living, self.patience)
        return self._members


def _silent(error: DeviceError) -> Vitals:
    return Vitals(lost=True) if isinstance(error, DeviceLostError) else Vitals(unresponsive=True, why=str(error))


def _siblings_busy(siblings: Sequence[Record], holders: Holders) -> bool | None:
    """Whether a sibling is in use; None where a sibling could not be observed.

    A sibling that is recorded as gone, and that could not be observed, does not count.
    """
    if any(holders[it.device.uuid] or it.state in BUSY_STATES for it in siblings):
        return True
    return None if any(holders[it.device.uuid] is None and not presence.is_gone(it) for it in siblings) else False
