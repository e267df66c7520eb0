"""What can be seen of a device just now, gathered into facts. Looks through backend and /proc; decides nothing.

Two looks: the quick one asks the driver alone and is good enough when it says that nobody is there; the full one goes
through all processes, and is the only one that a deed may rest on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from scrubber.core import presence
from scrubber.core.model import DeviceInfo, Facts, Holder, Incarnation, Moment, Record, State, Vitals
from scrubber.devices.base import Address, Backend, DeviceError, DeviceLostError, DriverClosedError, Readings
from scrubber.devices.calls import Caller, Round, in_turn
from scrubber.ground import log
from scrubber.node import checkpoint, clock
from scrubber.node.identity import kubelet_epoch
from scrubber.node.proc import BlindError
from scrubber.node.process_ends import ProcessEnds
from scrubber.node.processes import Processes, nobody
from scrubber.observe.driver_release import DriverRelease
from scrubber.observe.look_cache import TENANTED, LookCache, ObservedSince

logger = log.get("observer")

Holders = dict[str, tuple[Holder, ...] | None]
T = TypeVar("T")
Ignored = Callable[[str], Callable[[Holder], bool]]
BUSY_STATES = TENANTED | {State.SCRUBBING}


class Observer:
    """The eyes of the service. ``patience`` is how long a driver may take to answer."""

    def __init__(  # noqa: PLR0913 - the eyes are put together from many parts
        self,
        backend: Backend,
        processes: Processes,
        boot_id: str,
        kubelet_dir: Path,
        observed_since: float,
        ignored: Ignored = lambda _uuid: nobody,
        *,
        patience: float = 2.0,
        caller: Caller | None = None,
        ends: ProcessEnds | None = None,
        now: Callable[[], Moment] = clock.now,
    ) -> None:
        """Nothing is looked at yet.

        ``observed_since``: the uptime at which this service began. ``ignored`` tells for each device who may have it
        open and is no user. ``ends`` is told at every full look whose end is worth the next one.
        """
        self._ignored = ignored
        self.backend = backend
        self.patience = patience
        self._processes = processes
        self._boot_id = boot_id
        self._kubelet_dir = kubelet_dir
        self._vigil = ObservedSince(observed_since, now)
        self._late: dict[str, float] = {}  # since when it does not answer
        self._caller = caller or Caller()
        self._ours: set[int] = set()
        self._holding = Round(self._walk)
        self._living = Round(self._count)
        self._driver = Round(self._instance)
        self._visits = LookCache()
        self._ends = ends
        self._members: Mapping[str, int] = {}  # of each container that lives, one process
        self._away = DriverRelease(backend, self._caller, patience)
        self._named: dict[str, frozenset[int]] = {}  # whom the driver listed at the last walk
        self._took = 0.0  # seconds that it took

    def own(self, pid: int) -> None:
        """A worker of ours: not a user of the device."""
        self._ours.add(pid)

    def disown(self, pid: int) -> None:
        """The worker has been reaped; its pid may be anybody's now."""
        self._ours.discard(pid)

    async def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices; raises DeviceError when they cannot be listed."""
        return await self._caller.ask("inventory", self.backend.inventory, self.patience)

    async def quick(self, record: Record, *, last: bool = False) -> Facts:
        """Facts at the price of one question to the driver; a full look where that is not a clear no.

        A driver that lists its users leaves out who merely has the device open. So its no stands only for a while after
        a full look, and never for the ``last`` look before somebody uses the device.
        """
        met = self.backend.lists_users and (record.state in TENANTED or not last)  # who it was may stand for who it is
        uuid = record.device.uuid
        if met and (still := await self._still(record)) is not None:
            return self._vigil.kept(uuid, still)
        try:
            incarnation, in_use = await self._caller.ask(
                uuid, lambda: (self._incarnation(), self._answer(self.backend.in_use, uuid)), self.patience
            )
        except DeviceError as error:
            # Whoever asks must hear that the device does not answer; who holds it can be seen all the same.
            vitals = None if self._no_news(error) else _silent(error)
            return replace(await self.full(record), vitals=vitals)
        enough = not self.backend.lists_users or (not last and self._visits.met_nobody(record))
        if in_use is False and record.state is not State.IN_USE and enough:
            return self._vigil.kept(uuid, Facts(incarnation, self.epoch(), ()))
        if in_use is None:  # perhaps for memory that is held by nobody who could be seen
            vitals = await self.vitals(uuid, record.device.parent)
            return replace(await self.full(record), vitals=vitals)
        return await self.full(record)

    async def _still(self, record: Record) -> Facts | None:
        """What the last full look saw, while its witness still runs and nobody new is listed.

        That is enough to say that the device is in use, and is never a no. Whoever is on it unlisted shows at the next
        full look, which comes when the last one has become a small share of the time since. The last look before a use
        of a device without an owner is a full one always.
        """
        unchanged = self._unchanged(record)
        try:
            return await self._caller.ask(record.device.uuid, unchanged, self.patience) if unchanged else None
        except DeviceError:
            return None

    def _unchanged(self, record: Record) -> Callable[[], Facts | None] | None:
        """The question for that, to be asked in a thread; None where the last look cannot stand."""
        known = self._visits.witnessed(record)
        if known is None:
            return None
        visit, witness = known

        def ask() -> Facts | None:
            if self._in_reset(record.device.uuid):  # then it is not asked
                return None
            here = self._processes.lives(witness) and self.backend.listed(record.device.uuid) <= visit.listed
            same = here and self._incarnation() == visit.facts.incarnation
            return replace(visit.facts, epoch=self.epoch()) if same else None

        return ask

    async def glance(self, records: Sequence[Record]) -> dict[str, Facts]:
        """Health, and who is there, of those of which the driver alone can tell: in one thread, one after the other.

        Who is missing is to be asked by itself: also the one that hangs, and all behind it. It holds up one glance; the
        next is without it, or is none for as long as the first has not returned.
        """
        driver, epoch = cache(self._incarnation), self.epoch()  # the same for all
        prompt = [it for it in records if it.device.uuid not in self._late]
        questions = {it.device.uuid: self._glimpse(it, driver, epoch) for it in prompt}
        known = {uuid: ask for uuid, ask in questions.items() if ask is not None}
        told = await in_turn(self._caller, "glance", known, self.patience)
        return {uuid: self._vigil.kept(uuid, facts) for uuid, facts in told.items() if facts is not None}

    def _glimpse(
        self, record: Record, driver: Callable[[], Incarnation], epoch: str
    ) -> Callable[[], Facts | None] | None:  # fmt: skip
        """What a thread is to ask about one of them; None where the answer could only be that it takes more."""
        uuid, parent = record.device.uuid, record.device.parent
        unchanged = self._unchanged(record) if self.backend.lists_users else None
        free = record.state is not State.IN_USE and (not self.backend.lists_users or self._visits.met_nobody(record))
        left = presence.taken_away(record)  # nobody is on it, and nobody waits for it: it needs no look by itself
        if unchanged is None and not (free or left):
            return None

        def ask() -> Facts | None:
            if self._in_reset(uuid):
                return None
            incarnation = driver()
            told, in_use = self.backend.look(uuid)
            vitals = self._in_layout(told, parent)
            if left and vitals.lost:
                return Facts(incarnation, epoch, None, vitals=vitals)
            if free and in_use is False:
                return Facts(incarnation, epoch, (), vitals=vitals)
            seen = unchanged() if unchanged is not None else None
            return seen and replace(seen, vitals=vitals)

        return ask

    async def full(self, record: Record, siblings: Sequence[Record] = (), starting_pod: str | None = None) -> Facts:
        """Facts that a deed may rest on: everybody who has the device, or one of its siblings, open.

        ``starting_pod`` is who is about to start on it.
        """
        uuids = [record.device.uuid, *(sibling.device.uuid for sibling in siblings)]
        try:
            incarnation = await self._driver.ask()
            holders = await self._holding.ask(*uuids)
            alive = await self._alive(record.owner.container if record.owner else None)
            starting_pod_alive = await self._alive(starting_pod)
        except (DeviceError, BlindError):
            self._visits.forget(record)
            return self._vigil.kept(record.device.uuid, Facts(record.incarnation, self.epoch(), None))
        busy = _siblings_busy(siblings, holders)
        holding = holders[record.device.uuid]
        seen = Facts(
            incarnation,
            self.epoch(),
            holding,
            owner_alive=alive,
            starting_pod_alive=starting_pod_alive,
            siblings_busy=busy,
        )
        facts = self._vigil.kept(record.device.uuid, seen)
        self._remember(record, facts)
        if self._ends is not None:
            self._follow(self._ends, record, facts, starting_pod)
        return facts

    def _follow(self, ends: ProcessEnds, record: Record, facts: Facts, starting_pod: str | None) -> None:
        """One whose end is worth a look: of the owner's container while that lives, else of those who are on it."""
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
        try:
            return self.backend.container_of(pid) == container
        except BlindError:
            return False

    def _remember(self, record: Record, facts: Facts) -> None:
        owner = record.owner.container if record.owner and self.backend.lists_users else None
        member = self._members.get(owner or "")
        witnesses = facts.holders or (self._processes.witness(member) if member is not None else ())
        listed = self._named.get(record.device.uuid, frozenset())
        self._visits.remember(record, facts, listed, witnesses, self._took)

    async def vitals(self, uuid: str, parent: str | None = None) -> Vitals | None:
        """Health as reported; while a single report is missing what was told unasked (``partial``), or None.

        Of a slice that is not there its GPU, the ``parent``, tells whether it was laid out anew.

        One late answer is no illness: drivers hold their locks while another device is reset. Two in a row are. Nor is
        what a device seems to be in the middle of a reset.
        """
        try:
            vitals = await self._caller.ask(uuid, lambda: self._vitals(uuid, parent), self.patience)
        except DeviceError as error:
            silent, heard = self._unanswered(uuid, error), await self._heard(uuid)
            return replace(silent, xids=heard.xids, signs=heard.signs) if silent and heard else silent or heard
        if vitals is not None:
            self._late.pop(uuid, None)
        return vitals

    def _unanswered(self, uuid: str, error: DeviceError) -> Vitals | None:
        silent = None if self._no_news(error) else _silent(error)
        if silent is None or silent.lost:
            return silent
        now = asyncio.get_running_loop().time()
        # Whoever else asks for a call that is late already hears so at once: that is the same answer.
        return silent if now - self._late.setdefault(uuid, now) >= self.patience else None

    async def _heard(self, uuid: str) -> Vitals | None:
        """Asked apart from the driver, which may hang. In a reset of its own a device says what is no news."""
        try:
            return await self._caller.ask(f"log {uuid}", lambda: self._news(uuid), self.patience)
        except DeviceError:  # it has no log, or not now: nothing was told, which is no health either
            return None

    def _news(self, uuid: str) -> Vitals | None:
        return None if uuid in self._away.resetting or self._in_reset(uuid) else self.backend.heard(uuid)

    def epoch(self) -> str:
        """Which life of the kubelet this is."""
        return kubelet_epoch(self._kubelet_dir)

    def away(self, *uuids: str) -> AbstractAsyncContextManager[None]:
        """The driver is left alone while these are reset; DeviceError when an earlier question does not come back.

        Processes are seen all the same. What the driver does not say meanwhile is no news; it is news when it cannot
        be asked longer than that.
        """
        return self._away.during(*uuids)

    async def back(self) -> None:
        """Wait until the driver can be asked again after the resets that are over; what that takes has an end."""
        await self._away.back()

    def _answer(self, question: Callable[[str], T], uuid: str) -> T | None:
        """What the backend answers; in a reset there is no answer."""
        return None if self._in_reset(uuid) else question(uuid)

    def _vitals(self, uuid: str, parent: str | None) -> Vitals | None:
        told = self._answer(self.backend.vitals, uuid)
        return None if told is None else self._in_layout(told, parent)

    def _in_layout(self, told: Vitals, parent: str | None) -> Vitals:
        """A GPU that is in a reset, owes something after one, or does not answer, says nothing about its slices."""
        if not told.lost or parent is None or self._in_reset(parent):
            return told
        try:
            ours = parent in self.backend.owed()  # it was we who took them: they are missed
            return told if ours else presence.slice_vitals(told, self.backend.vitals(parent))
        except DeviceError:
            return told

    def _in_reset(self, uuid: str) -> bool:
        """By a tool that has outlived its worker: nobody can say of the device that it is free, or what it is."""
        return uuid not in self._away.resetting and self.backend.in_reset(uuid)

    def _no_news(self, error: DeviceError) -> bool:
        return isinstance(error, DriverClosedError) and self._away.now()

    async def owed(self) -> Mapping[str, Address]:
        """GPUs to which a reset that was cut off still owes something, and where; raises DeviceError."""
        return await self._caller.ask("owed", self.backend.owed, self.patience)

    async def readings(self) -> Mapping[str, Readings]:
        """What whole GPUs measure; of none while the driver is left alone, or does not answer in time."""
        return (await in_turn(self._caller, "readings", {"all": self.backend.readings}, self.patience)).get("all", {})

    async def incarnation(self) -> Incarnation:
        """This boot and this driver instance; raises DeviceError when the driver cannot be asked."""
        return await self._driver.ask()

    async def _instance(self, _asked: frozenset[str]) -> Incarnation:
        return await self._caller.ask("driver", self._incarnation, self.patience)

    def _incarnation(self) -> Incarnation:
        return Incarnation(self._boot_id, self.backend.driver())

    async def _walk(self, uuids: frozenset[str]) -> Holders:
        listed: dict[str, frozenset[int] | None] = dict.fromkeys(uuids, frozenset())
        if self.backend.lists_users:
            listed = dict(zip(uuids, await asyncio.gather(*map(self._listed, uuids)), strict=True))
        told = {uuid: pids for uuid, pids in listed.items() if pids is not None}
        self._named |= told
        began = asyncio.get_running_loop().time()
        found = await self._caller.ask("processes", lambda: self._holders(told), 5 * self.patience)
        self._took = asyncio.get_running_loop().time() - began
        return dict.fromkeys(uuids) | found

    async def _listed(self, uuid: str) -> frozenset[int] | None:
        """Whom the driver names; None when it cannot be told. A driver that is closed for a reset names nobody."""
        try:
            return await self._caller.ask(uuid, lambda: self._answer(self.backend.listed, uuid), self.patience)
        except DeviceError as error:
            return frozenset() if self._no_news(error) else None

    def _holders(self, listed: Mapping[str, frozenset[int]]) -> Holders:
        """One walk; another one only for devices that other bystanders may have open."""
        found: Holders = {}
        for bystander in {self._ignored(uuid) for uuid in listed}:
            files = {uuid: self._files(uuid) for uuid in listed if self._ignored(uuid) == bystander}
            no_user = partial(self._no_user, tuple(self._ours), bystander)
            found |= self._processes.holders(files, ignored=no_user, listed=listed)
        return found

    def _no_user(self, ours: Collection[int], bystander: Callable[[Holder], bool], holder: Holder) -> bool:
        """Our workers, what they have started (a tool that resets the device), and bystanders."""
        return self._processes.descends(holder.pid, ours) or bystander(holder)

    def _files(self, uuid: str) -> tuple[str, ...]:
        """None of a device that is gone or in a reset: who uses it cannot be told, which is no news of the others."""
        try:
            return () if self._in_reset(uuid) else self.backend.files(uuid)
        except DeviceError:
            return ()

    async def owners(self, uuids: Sequence[str]) -> dict[str, frozenset[str]]:
        """The pods that the kubelet has written the devices down for; raises CheckpointError when it cannot be read."""
        found = await self._caller.ask("checkpoint", lambda: checkpoint.owners(self._kubelet_dir), self.patience)
        return {uuid: found.get(uuid, frozenset()) for uuid in uuids}

    async def _alive(self, container: str | None) -> bool | None:
        return None if container is None else container in await self._living.ask(container)

    async def _count(self, _asked: frozenset[str]) -> Mapping[str, int]:
        self._members = await self._caller.ask("containers", self.backend.living, self.patience)
        return self._members


def _silent(error: DeviceError) -> Vitals:
    """What is to be thought of a device that gave no answer."""
    return Vitals(lost=True) if isinstance(error, DeviceLostError) else Vitals(unresponsive=True, why=str(error))


def _siblings_busy(siblings: Sequence[Record], holders: Holders) -> bool | None:
    """True, False, or None where one of them could not be looked at."""
    seen = [holders[sibling.device.uuid] for sibling in siblings]
    if any(seen) or any(sibling.state in BUSY_STATES for sibling in siblings):
        return True
    return None if None in seen else False
