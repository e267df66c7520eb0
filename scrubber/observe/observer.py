"""Observes devices and returns facts: holders, siblings, owners, pods, use counter.

It decides nothing: ``core.observation`` says which look is enough for the purpose of a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from scrubber.core import absence, ownership
from scrubber.core.model import Facts, Holder, KubeletAssignment, Moment, Sighting, State, holder_names, place_words
from scrubber.core.observation import BY_LIST, Look, Purpose, enough
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, UseReading
from scrubber.devices.base import DeviceError, ShortageError
from scrubber.fence.live_openers import LiveOpener
from scrubber.node import assignments, clock
from scrubber.node.proc import BlindError
from scrubber.node.processes import Processes, no_bystander
from scrubber.observe.driver_calls import DriverCalls, HealthReports
from scrubber.observe.driver_look import DriverList, DriverLook
from scrubber.observe.holder_search import NOT_LISTED, Holders, HolderSearch, IsBystander
from scrubber.observe.observed_since import ObservedSince, compared
from scrubber.observe.owner_ends import Ends, OwnerContainers

OF_TENANTS = {Purpose.ROUND, Purpose.RESERVE, Purpose.GRANT, Purpose.START}  # the kubelet is asked, too
BUSY_STATES = frozenset({State.GRANTED, State.IN_USE, State.SCRUBBING})


class Observer:
    """Observes the devices for the service, and combines what its parts find."""

    def __init__(  # noqa: PLR0913 - its parts
        self,
        driver: DriverCalls,
        processes: Processes,
        kubelet_dir: Path,
        observed_since: ObservedSince,
        resetting: Callable[[Record], bool],
        bystanders: Callable[[str], IsBystander] = lambda _uuid: no_bystander,
        *,
        ends: Ends | None = None,
        on_pass: Callable[[], None] = lambda: None,
    ) -> None:
        """``resetting``: whether a sibling is being reset. ``bystanders``: for each device, which holders do not count.

        ``ends``: learns at every full observation whose end the monitor waits for: that end starts the next
        observation. ``on_pass``: called whenever all processes are searched for live containers.
        """
        self.driver = driver
        self.health = HealthReports(driver)
        self.holders = HolderSearch(driver, processes, bystanders)
        self._owners = OwnerContainers(driver, processes, ends, on_pass)
        self._processes = processes
        self._kubelet_dir = kubelet_dir
        self._observed_since = observed_since
        self._driver_look = DriverLook(driver, self.health, self.holders, self._owners, observed_since)
        self._resetting = resetting
        self._found: dict[str, tuple[Holder, ...]] = {}  # by device: whom the last search has found

    async def look(
        self, record: Record, purpose: Purpose, *, starting_pod: str | None = None, siblings: Sequence[Record] = ()
    ) -> Facts:
        """What is seen of a device for a purpose: by the driver's list if that is enough, otherwise by a search.

        ``starting_pod``: the pod that asks to start on the device. ``siblings``: for a reset, those that it takes down.
        """
        uuid, briefly = record.device.uuid, purpose in BY_LIST
        error: DeviceError | BlindError | None = None
        said = seen = starts = vitals = None
        if purpose is not Purpose.RESET:
            try:
                starts = await self._starts(record, starting_pod)
                said, seen = await self._driver_look.at(record, briefly=briefly)
            except (DeviceError, BlindError) as why:  # the holders can be seen all the same
                error = why
        if seen is not None and enough(purpose, seen.known) is not Look.SEARCH:
            facts = self._seen(record, replace(seen.sighting, starting_pod_alive=starts), starting_pod)
        else:
            if briefly and isinstance(error, DeviceError):  # the caller must hear of a device that does not answer
                vitals = self.health.unanswered(uuid, error)
            elif briefly and (said is None or said.held is None):  # perhaps because of leaked memory
                vitals = await self.health.vitals(uuid, record.device.parent)
            facts = replace(await self._search(record, said, siblings, starting_pod), vitals=vitals)
        return await self.with_kubelet(record, facts) if purpose in OF_TENANTS else facts

    async def look_at_all(self, records: Sequence[Record]) -> dict[str, Facts]:
        """What a round sees of the devices for which the driver's list is enough, and their health.

        A device that is missing from the answer needs a look of its own. As long as the thread of this hangs, further
        calls return nothing. After that, they skip the devices whose last health report was late.
        """
        seen = await self._driver_look.at_all(records)
        known = {record.device.uuid: record for record in records}
        return {uuid: self._seen(record, seen[uuid]) for uuid, record in known.items() if uuid in seen}

    async def _starts(self, record: Record, starting_pod: str | None) -> bool | None:
        """Whether the pod that asks to start lives. First, so that the look also tells of a use meanwhile."""
        return (await self._are_alive(record, starting_pod))[1] if starting_pod is not None else None

    async def _search(
        self,
        record: Record,
        said: DriverList | None,
        siblings: Sequence[Record] = (),
        starting_pod: str | None = None,
    ) -> Facts:
        """All holders of the device and of its siblings, by a search of all processes.

        ``said``: what the driver has just said about the device. It is not asked again.
        """
        uuids = [record.device.uuid, *(sibling.device.uuid for sibling in siblings)]
        listed = {record.device.uuid: said.others} if said is not None and said.pids is not None else NOT_LISTED
        try:
            if said is not None:
                readings = {record.device.uuid: said.reading}
            else:
                readings = await self.holders.read_counters(uuids)
            before = self._observed_since.before_search(readings)
            (incarnation, search), (alive, starting_pod_alive) = await asyncio.gather(
                self.holders.of(uuids, listed), self._are_alive(record, starting_pod)
            )
            if alive is False and search.holders[record.device.uuid] == ():  # one may have started during the search
                alive, starting_pod_alive = await self._are_alive(record, starting_pod)
            later = await self.holders.read_counters(uuids)  # a search takes long: somebody may have come and left
        except (DeviceError, BlindError) as error:
            lack = str(error) if isinstance(error, ShortageError) else ""
            why = "" if lack else str(error)
            return self._facts(record, Sighting(record.incarnation, None, shortage=lack, held_up=why))
        for uuid, reading in later.items():
            self._observed_since.read(uuid, reading)
        found = {uuid: held if uuid in readings and uuid in later else None for uuid, held in search.holders.items()}
        search = replace(search, holders=found)
        self._observed_since.searched(before, (record, *siblings), search.holders, settled=search.settled)
        self._found |= {uuid: held for uuid, held in search.holders.items() if held is not None}
        holders = search.holders[record.device.uuid]
        for seen in (record, *siblings):
            uuid, held = seen.device.uuid, search.holders[seen.device.uuid]
            if uuid in search.left:
                why = "a process had it open, and left before the service found it"
            elif held is None and uuid in search.open:
                why = "a process had it open that the service did not find"
                why += f": {search.held_up}" if search.held_up else ""
            elif held and seen is not record and seen.state is State.CLEAN:
                why = f"it was used by {holder_names(held)}"
            else:
                continue
            self._observed_since.interrupt(uuid, why)  # it may leave before the next observation, with its bytes left
        seen_now = Sighting(
            incarnation,
            holders,
            owner_alive=alive,
            starting_pod_alive=starting_pod_alive,
            siblings_busy=_siblings_busy(siblings, search.holders),
            held_up=search.missing.get(record.device.uuid, search.held_up) if holders is None else "",
            bystander_pods=search.bystander_pods.get(record.device.uuid, frozenset()),
            use_reading=readings.get(record.device.uuid),
        )
        return self._seen(record, seen_now, starting_pod)

    async def _are_alive(self, record: Record, starting_pod: str | None) -> tuple[bool | None, bool | None]:
        """Whether the owner of a device lives, and whether the pod that asks to start on it lives.

        Both may be one pod.
        """
        owner = record.tenancy.container if record.tenancy.owner is not None else None
        alive = await self._owners.is_alive(owner) if owner is not None else None
        if starting_pod is None:
            return alive, None
        return alive, alive if starting_pod == owner else await self._owners.has_started(starting_pod)

    def _seen(self, record: Record, seen: Sighting, starting_pod: str | None = None) -> Facts:
        """The facts. From now on, the end of who has the device wakes the monitor."""
        facts = self._facts(record, seen)
        self._owners.watch_for_end(record, facts, starting_pod)
        return facts

    def _facts(self, record: Record, seen: Sighting, *, at: Moment | None = None) -> Facts:
        """The facts, with what the fence says about the owner and about the last user."""
        uuid, guard, owner, receipt = record.device.uuid, self.driver.guard, record.tenancy.owner, record.scrubs.receipt
        resetting = record.device.reset_domain is not None and self._resetting(record)
        facts = self._observed_since.facts(uuid, seen, domain_resetting=resetting, at=at)
        containers = [it.container for it in facts.holders or () if it.container is not None]
        if guard is not None and containers:
            facts = replace(facts, pods={uid: name for uid in containers if (name := guard.places.pod_name(uid))})
        if guard is not None and owner is not None and not owner.seen:  # it may have ended before anybody looked
            facts = replace(facts, owner_left=guard.rules.owner_left(uuid))
        if guard is not None and receipt is not None and (facts.holders or receipt.finished.uptime < facts.used_at):
            users = guard.openers.users(uuid, receipt.finished.wall)
            facts = _used(facts, users, partial(guard.places.exempts_process, uuid))
        return facts

    def overtaken(self, uuid: str, seen: UseReading | None) -> bool:
        """``Ledger.overtaken``: whether others may have used the device since this reading of a look."""
        guard = self.driver.guard
        if guard is not None and isinstance(seen, Counted) and seen.fence and guard.count.still(uuid, seen.fence):
            return False
        try:
            now = self.driver.read_uses(uuid)
        except DeviceError:
            return True
        self._observed_since.read(uuid, now)
        return seen is None or compared(seen, now)[1] is not None

    def disown(self, worker: int, *, has_ended: bool) -> None:
        """A worker of the service has finished.

        If its process has not ended, it is a holder from now on, perhaps of all devices: the fence does not count the
        programs of the service, and NVML may open each device.
        """
        self.holders.disown(worker)
        if not has_ended:
            self._observed_since.doubt_all()

    def doubt(self, uuids: Iterable[str]) -> None:
        """The next full observation of these devices takes a search: a reset tool may have them open."""
        for uuid in uuids:
            self._observed_since.doubt(uuid)

    def last_uses(self, uuid: str) -> UseReading | None:
        """The last answer of the use counter of the device; None if it was not asked yet."""
        return self._observed_since.last_reading(uuid)

    def known_holders(self, record: Record, facts: Facts) -> tuple[Holder, ...]:
        """The holders by these facts, for operators.

        For a device that belongs to somebody, also those of the last search that still run: the driver's list, which is
        enough for a round then, names only programs that use its memory.
        """
        holders = facts.holders or ()
        if record.state not in (State.GRANTED, State.IN_USE):
            return holders
        listed = {(it.pid, it.started) for it in holders}
        before = (it for it in self._found.get(record.device.uuid, ()) if (it.pid, it.started) not in listed)
        return (*holders, *filter(self._still_runs, before))

    def _still_runs(self, holder: Holder) -> bool:
        try:
            return self._processes.lives(holder)
        except OSError:  # such as too many open files
            return False

    async def process_of_owner(self, record: Record) -> tuple[Holder, ...]:
        """A live process of the container that owns the device, for operators.

        The process need not have the device open. Empty if no process is found.
        """
        owner = record.tenancy.container
        try:
            await self._owners.is_alive(owner)
        except (DeviceError, BlindError):
            return ()
        member = self._owners.member(owner)
        return self._processes.process(member) if member is not None else ()

    async def with_kubelet(self, record: Record, facts: Facts, *, to_take_back: bool = False) -> Facts:
        """The facts of a granted device, with the run of the kubelet.

        Where a decision about the owner needs them, also with the pods in the kubelet's checkpoint.
        """
        owner, uuid = record.tenancy.owner, record.device.uuid
        if record.tenancy.grant is not None:
            facts = replace(facts, epoch=self.epoch())
        of_owner = (
            owner is not None
            and ownership.needs_assignment(owner, facts)
            and not ownership.about_to_start(owner, facts.at)
        )
        of_job = to_take_back and record.tenancy.until_release
        if not of_owner and not of_job:
            return facts
        try:
            return replace(facts, assigned_pods=(await self.assignments([uuid]))[uuid].pods)
        except (assignments.AssignmentsError, DeviceError):
            return facts

    def epoch(self) -> str:
        """Names this run of the kubelet."""
        return clock.kubelet_epoch(self._kubelet_dir)

    async def assignments(self, uuids: Sequence[str]) -> dict[str, KubeletAssignment]:
        """What the kubelet's checkpoint says about the devices. Raises AssignmentsError if it cannot be read."""
        ask, patience = self.driver.caller.ask, self.driver.patience
        assigned = await ask("checkpoint", lambda: assignments.by_device(self._kubelet_dir), patience)
        return {uuid: assigned.get(uuid, KubeletAssignment()) for uuid in uuids}


def _used(facts: Facts, users: Sequence[LiveOpener], exempts: Callable[[Holder], bool | None]) -> Facts:
    """The facts with the last program that has used the device since its proof.

    A program that is not exempt comes first. ``exempts``: whether the policy exempts the control group of a holder;
    None: that is not known, so the holder must be the process that asked.
    """
    if not users:
        return facts
    last, are_exempt = users[-1].opener, all(user.opener.exempt for user in users)
    for holder in facts.holders or ():
        by_group = exempts(holder)
        are_exempt = are_exempt and (any(user.has(holder) for user in users) if by_group is None else by_group)
    return replace(facts, used_by=place_words(last.place, last.pod), users_exempt=are_exempt)


def _siblings_busy(siblings: Sequence[Record], holders: Holders) -> bool | None:
    """Whether a sibling is in use; None if a sibling could not be observed.

    A sibling that is recorded as gone, and that could not be observed, does not count.
    """
    if any(holders[sibling.device.uuid] or sibling.state in BUSY_STATES for sibling in siblings):
        return True
    unseen = (sibling for sibling in siblings if holders[sibling.device.uuid] is None)
    return False if all(map(absence.is_gone, unseen)) else None
