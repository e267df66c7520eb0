"""Observes devices through the backend and /proc, and returns facts. Decides nothing.

A quick observation asks the driver alone: it is enough for a round, not before a use, unless the fence proves the same.
A full observation finds all holders: it searches all processes of the node. A scrub begins and ends with one. Before a
start behind the fence, and between the two of a scrub, the list is enough (``listed``) after one that found no holder.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from scrubber.core import fencing, presence
from scrubber.core.fencing import OpenTo
from scrubber.core.model import AilmentKind, Facts, Holder, Incarnation, KubeletAssignment, State, holder_names
from scrubber.core.record import Record
from scrubber.core.witness import FENCE, Counted, Testimony
from scrubber.devices.base import DeviceError, ShortageError
from scrubber.devices.calls import in_turn
from scrubber.node import assignments, clock
from scrubber.node.ends import Ends
from scrubber.node.proc import DEAD, BlindError
from scrubber.node.processes import Processes, no_bystander
from scrubber.observe.alone import Alone
from scrubber.observe.driver_calls import DriverCalls, DriverList, Shared
from scrubber.observe.health import HealthReports
from scrubber.observe.holders import Holders, HolderSearch, IsBystander, SearchResult
from scrubber.observe.observed_since import ObservedSince

_NEWS_WITHIN = 10.0  # seconds after a search in which a round looks for nobody else who opens a device in use
_IDLE_WITHIN = 60.0  # seconds after a search in which an owner that is on no list may be idle, or hang
BUSY_STATES = frozenset({State.GRANTED, State.IN_USE, State.SCRUBBING})


class Observer:
    """Observes the devices for the service, and brings together what its parts find."""

    def __init__(
        self,
        driver: DriverCalls,
        processes: Processes,
        kubelet_dir: Path,
        observed_since: ObservedSince,
        bystanders: Callable[[str], IsBystander] = lambda _uuid: no_bystander,
        *,
        ends: Ends | None = None,
        on_pass: Callable[[], None] = lambda: None,
    ) -> None:
        """``bystanders``: for each device, which holders do not count.

        ``ends``: learns at every full observation whom to follow, so that its end calls for the next
        observation. ``on_pass``: called whenever all processes are searched for live containers.
        """
        self.driver = driver
        self.health = HealthReports(driver)
        self.holders = HolderSearch(driver, processes, bystanders)
        self._owners = Owners(driver, processes, ends, on_pass)
        self._processes = processes
        self._kubelet_dir = kubelet_dir
        self._observed_since = observed_since
        self._alone = Alone()
        self._searched_at: dict[str, float] = {}  # for each device, the uptime of the last search

    async def quick(self, record: Record, *, before_use: bool = False) -> Facts:
        """Facts by the driver's list where it is enough; else a full observation.

        ``before_use``: the last observation before a container uses the device. Who only has it open is not on the
        list, so nothing but the fence takes the place of a search then.
        """
        driver, uuid, vitals = self.driver, record.device.uuid, None
        try:
            question = partial(self._ask_list, uuid, driver.read_incarnation, driver.backend.has_holders)
            said = await driver.caller.ask(uuid, question, driver.patience)
        except DeviceError as error:
            # The caller must hear of a device that does not answer. The holders can be seen all the same.
            vitals = self.health.unanswered(uuid, error)
        else:
            facts = await self._named(record, said)
            if facts is not None and (not before_use or self._alone.proven(uuid, self.witness(uuid))):
                self._owners.follow(record, facts, None)
                return self._observed_since.stamped(uuid, facts)
            # Without an answer: perhaps because of leaked memory, which has no holder that can be seen.
            unknown = said is None or said.held is None
            vitals = await self.health.vitals(uuid, record.device.parent) if unknown else None
        if record.state is State.SCRUBBING:  # the holder is usually a worker of the service
            return replace(await self.listed(record), vitals=vitals)
        return replace(await self.full(record), vitals=vitals)

    async def _named(self, record: Record, said: DriverList | None) -> Facts | None:
        """``_by_list``; None if it takes too long. The device is not to blame for that."""
        question = partial(self._by_list, record, said)
        try:
            return await self.driver.caller.ask(f"list {record.device.uuid}", question, self.driver.patience)
        except DeviceError:
            return None

    async def quick_all(self, records: Sequence[Record]) -> dict[str, Facts]:
        """Health and holders of the devices for which the driver's list is enough. One thread asks about all of them.

        A device that is missing from the answer needs its own observation. If a device hangs, it and all devices after
        it are missing. As long as the thread hangs, further calls return nothing. After that, they skip the devices
        whose last health report was late.
        """
        incarnation = cache(self.driver.read_incarnation)  # the same for all devices
        asked = {it.device.uuid: it for it in records if not self.health.is_late(it.device.uuid)}
        questions = {uuid: partial(self._quick_question, record, incarnation) for uuid, record in asked.items()}
        answers = await in_turn(self.driver.caller, "quick observation", questions, self.driver.patience)
        found = {
            uuid: self._observed_since.stamped(uuid, facts) for uuid, facts in answers.items() if facts is not None
        }
        for uuid, facts in found.items():
            self._owners.follow(asked[uuid], facts, None)
        return found

    # -- in a thread

    def _quick_question(self, record: Record, read_incarnation: Callable[[], Incarnation]) -> Facts | None:
        uuid = record.device.uuid
        if self.driver.in_orphaned_reset(uuid):
            return None
        reported, held = self.driver.backend.quick_observation(uuid)
        vitals = self.health.in_layout(reported, record.device.parent)
        if vitals.lost and presence.taken_away(record):  # it has no holder, and no pod waits for it
            return Facts(read_incarnation(), None, vitals=vitals)
        facts = self._by_list(record, self._ask_list(uuid, read_incarnation, lambda _uuid: held))
        return facts and replace(facts, vitals=vitals)

    def _ask_list(
        self, uuid: str, read_incarnation: Callable[[], Incarnation], has_holders: Callable[[str], bool | None]
    ) -> DriverList | None:  # fmt: skip
        """None during an orphaned reset: the driver must not be asked then."""
        if self.driver.in_orphaned_reset(uuid):
            return None
        at, incarnation, held = self._observed_since.uptime(), read_incarnation(), has_holders(uuid)
        pids = None
        if held is not False:
            try:
                pids = self.driver.backend.listed_holders(uuid)
            except DeviceError:
                if held is None:
                    raise
        return DriverList(at, incarnation, held, pids)

    def _by_list(self, record: Record, said: DriverList | None) -> Facts | None:
        """Facts by the driver's list, or None if only a search can tell."""
        if said is None:
            return None
        uuid, container = record.device.uuid, record.tenancy.container
        listed = self.holders.named(uuid, said.pids or frozenset())
        if said.held and not said.pids:  # it has left, or holds the memory in a way that no list shows
            listed = None
        alive = None if container is None else self._owners.has_member(container)
        # Last: it counts a use that began and ended meanwhile.
        self._observed_since.testified(uuid, witness := self.holders.ask_witness(uuid))
        if listed is None and said.held and record.state is not State.SCRUBBING:
            self._observed_since.used(uuid, said.at)  # by a process that has left, perhaps
        if listed is None or alive is False or not self._is_enough(record, said, listed, witness, alive=alive):
            return None
        return Facts(said.incarnation, listed, owner_alive=alive)

    def _is_enough(
        self, record: Record, said: DriverList, listed: tuple[Holder, ...], witness: Testimony, *, alive: bool | None
    ) -> bool:
        """Whether the list says enough for a round. What takes a device from its user, or begins a scrub, is searched.

        Who has the device open and is on no list shows at a search.
        """
        uuid, owner = record.device.uuid, record.tenancy.owner
        news = fencing.open_to(record) is not OpenTo.ALL and self._alone.has_news(uuid, witness)
        searched = self._observed_since.uptime() - self._searched_at.get(uuid, -math.inf)
        match record.state:
            case State.SCRUBBING:
                return True
            case State.IN_USE:
                if news and searched > _NEWS_WITHIN:
                    return False
                unannounced = owner is not None and owner.unannounced
                return bool(listed) or (alive is True and not unannounced and searched < _IDLE_WITHIN)
            case State.DIRTY | State.UNKNOWN:
                return bool(listed) or self._alone.proven(uuid, witness)
            case State.QUARANTINED if _is_stuck(record):
                return bool(listed)
            case State.GRANTED if record.tenancy.until_release:
                return not news and (bool(listed) or (said.held is not None and searched < _IDLE_WITHIN))
            case State.CLEAN | State.GRANTED | State.QUARANTINED:
                return not news and (bool(listed) or said.held is not None)

    async def before_start(self, record: Record, starting_pod: str, *, admitted: bool = False) -> Facts:
        """Facts for the start of a container. They take no search where the fence shows that nobody has the device.

        ``admitted``: the kubelet has asked about this start, and now the runtime does. Only the owner may have come.
        """
        uuid = record.device.uuid
        if (record.state is State.GRANTED or admitted) and self._alone.proven(uuid, self.witness(uuid)):
            facts = await self.listed(record, starting_pod=starting_pod)
            if self._alone.proven(uuid, facts.witness):
                return facts
        return await self.full(record, starting_pod=starting_pod)

    async def listed(
        self, record: Record, siblings: Sequence[Record] = (), starting_pod: str | None = None
    ) -> Facts:  # fmt: skip
        """Facts by the driver's list, if it names nobody; else ``full``. After a full observation that found no holder.

        Who has come since and uses the memory is on the list. Who only has the device open is not.
        """
        uuid = record.device.uuid
        try:
            alive, starting_pod_alive = await self._owners.are_alive(record, starting_pod)
            # Last, so that the driver also tells of a use during the question before.
            uuids = [uuid, *(sibling.device.uuid for sibling in siblings)]
            listed = await self.holders.none_listed(uuids, idle=starting_pod is not None)
            if alive is False:  # one may have started during the question
                alive, starting_pod_alive = await self._owners.are_alive(record, starting_pod)
        except (DeviceError, BlindError):
            return await self.full(record, siblings, starting_pod)
        if listed is None:
            return await self.full(record, siblings, starting_pod)
        incarnation, result = listed
        self._hear(result)
        busy = _siblings_busy(siblings, result.holders)
        unstamped = Facts(
            incarnation,
            result.holders[uuid],
            owner_alive=alive,
            starting_pod_alive=starting_pod_alive,
            siblings_busy=busy,
        )
        facts = self._observed_since.stamped(uuid, unstamped)
        if starting_pod is not None:
            self._owners.follow(record, facts, starting_pod)
        return facts

    async def full(
        self,
        record: Record,
        siblings: Sequence[Record] = (),
        starting_pod: str | None = None,
    ) -> Facts:
        """Facts that a change may rest on: all holders of the device and of its siblings.

        ``starting_pod``: the pod that asks to start on the device.
        """
        uuids = [record.device.uuid, *(sibling.device.uuid for sibling in siblings)]
        before = {uuid: self._alone.begin(uuid, self.witness(uuid)) for uuid in uuids}
        try:
            (incarnation, search), (alive, starting_pod_alive) = await asyncio.gather(
                self.holders.of(uuids), self._owners.are_alive(record, starting_pod)
            )
            if alive is False and search.holders[record.device.uuid] == ():  # one may have started during the search
                alive, starting_pod_alive = await self._owners.are_alive(record, starting_pod)
        except (DeviceError, BlindError) as error:
            lack = str(error) if isinstance(error, ShortageError) else ""
            why = "" if lack else str(error)
            blind = Facts(record.incarnation, None, shortage=lack, held_up=why)
            return self._observed_since.stamped(record.device.uuid, blind)
        self._hear(search)
        for uuid, known in before.items():
            self._searched_at[uuid] = self._observed_since.uptime()
            self._alone.end(uuid, known, search.holders[uuid], settled=search.settled)
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
        unstamped = Facts(
            incarnation,
            holders,
            owner_alive=alive,
            starting_pod_alive=starting_pod_alive,
            siblings_busy=_siblings_busy(siblings, search.holders),
            held_up=search.missing.get(record.device.uuid, search.held_up) if holders is None else "",
        )
        facts = self._observed_since.stamped(record.device.uuid, unstamped)
        self._owners.follow(record, facts, starting_pod)
        return facts

    def _hear(self, search: SearchResult) -> None:
        for uuid, said in search.testimonies.items():
            self._observed_since.testified(uuid, said)

    def recorded(self, record: Record) -> None:
        """A row about the device is in the ledger. What the kernel does for the service follows from the record."""
        guard, receipt = self.driver.guard, record.scrubs.receipt
        if guard is None:
            return
        open_to = fencing.open_to(record)
        guard.changed(record.device.uuid, open_to)
        self._alone.changed(record.device.uuid, open_to)
        if record.state is State.CLEAN and receipt is not None and receipt.witness == FENCE:
            said = self._observed_since.uses_since(record.device.uuid, receipt.finished.uptime)
            # Who opened it between the search of the scrub and its clear may have it open, without a use since.
            if said is not None and self._alone.proven(record.device.uuid, said):
                guard.proven(record.device.uuid, receipt.id, said.uses)

    def resume(self, records: Iterable[Record]) -> None:
        """After a start: the proofs that the kernel has watched over since. Call it once the devices are known."""
        guard = self.driver.guard
        if guard is None:
            return
        for record in records:
            uuid, receipt = record.device.uuid, record.scrubs.receipt
            if record.state is not State.CLEAN or receipt is None:
                continue
            uses = guard.uses_at_proof(uuid, receipt.id)
            if uses is not None:
                self._alone.resume(uuid, uses)
                self._observed_since.resume(uuid, receipt.finished.uptime, Counted(FENCE, uses))

    def witness(self, uuid: str) -> Testimony | None:
        """What the witness of the device's short uses said last; None if it was not asked yet."""
        return self._observed_since.testimony(uuid)

    async def process_of_owner(self, record: Record) -> tuple[Holder, ...]:
        """A live process of the container that owns the device, whether or not it has the device open; for operators.

        Empty if none is found.
        """
        owner = record.tenancy.container
        try:
            await self._owners.is_alive(owner)
        except (DeviceError, BlindError):
            return ()
        member = self._owners.member(owner)
        return self._processes.process(member) if member is not None else ()

    def epoch(self) -> str:
        """Names this run of the kubelet."""
        return clock.kubelet_epoch(self._kubelet_dir)

    async def assignments(self, uuids: Sequence[str]) -> dict[str, KubeletAssignment]:
        """What the kubelet's checkpoint says about the devices; raises AssignmentsError when it cannot be read."""
        ask, patience = self.driver.caller.ask, self.driver.patience
        found = await ask("checkpoint", lambda: assignments.by_device(self._kubelet_dir), patience)
        return {uuid: found.get(uuid, KubeletAssignment()) for uuid in uuids}


class Owners:
    """The containers that own devices."""

    def __init__(
        self, driver: DriverCalls, processes: Processes, ends: Ends | None, on_pass: Callable[[], None]
    ) -> None:
        """``on_pass``: called whenever all processes are searched for live containers.

        ``ends``: learns at every full observation whom to follow, so that its end calls for the next one.
        """
        self._driver = driver
        self._processes = processes
        self._ends = ends
        self._on_pass = on_pass
        self._members: Mapping[str, int] = {}  # one process of each container that was found alive
        self._live_containers = Shared(self._find_containers)

    def member(self, container: str | None) -> int | None:
        """A process of a container that was found alive."""
        return self._members.get(container or "")

    async def are_alive(self, record: Record, starting_pod: str | None) -> tuple[bool | None, bool | None]:
        """Whether the owner of a device lives, and the pod that asks to start on it, which may be the same."""
        owner = record.tenancy.container
        alive = await self.is_alive(owner)
        return alive, alive if starting_pod == owner else await self.is_alive(starting_pod)

    def has_member(self, container: str) -> bool:
        """Whether a process of the container is found alive without a search. In a thread."""
        member = self._find_member(container, self._members.get(container))
        if member is not None:
            self._members = {**self._members, container: member}
        return member is not None

    async def is_alive(self, container: str | None) -> bool | None:
        """Whether a process of the container lives. None for no container."""
        if container is None:
            return None
        known = self._members.get(container)
        ask, patience = self._driver.caller.ask, self._driver.patience
        member = await ask(f"pod {container}", lambda: self._find_member(container, known), patience)
        if member is not None:
            self._members = {**self._members, container: member}
            return True
        return container in await self._live_containers.ask(container)

    def _find_member(self, container: str, known: int | None) -> int | None:
        """A live process of the container, the known one if it still runs; None if only a search can tell."""
        if known is not None and self._is_in(known, container):
            return known
        return self._driver.backend.member(container)

    async def _find_containers(self, _asked: frozenset[str]) -> Mapping[str, int]:
        self._on_pass()
        self._members = await self._driver.caller.ask("containers", self._driver.backend.living, self._driver.patience)
        return self._members

    def follow(self, record: Record, facts: Facts, starting_pod: str | None) -> None:
        """Follow the owner's container while it lives, else a holder of the device."""
        ends = self._ends
        if ends is None:
            return
        device, owner = record.device.uuid, record.tenancy.container
        lives = facts.owner_alive if owner is not None else facts.starting_pod_alive
        container = owner or starting_pod
        member = self.member(container) if lives else None
        if member is not None:
            ends.follow(device, member, lambda: self._is_in(member, container), container)
        elif facts.holders:
            holder = facts.holders[0]
            ends.follow(device, holder.pid, lambda: self._processes.lives(holder))
        else:
            ends.forget(device)

    def _is_in(self, pid: int, container: str | None) -> bool:
        """Whether a live process is in the container. False if its first thread has ended: then only a search tells."""
        try:
            found = self._processes.process(pid)
        except OSError:  # such as too many open files
            return False
        return any(it.container == container and it.state not in DEAD for it in found)


def _is_stuck(record: Record) -> bool:
    """Whether the device waits for the end of a process, which the driver may list no more."""
    present = record.health.quarantine
    return present is not None and present.ailment.kind is AilmentKind.STUCK_PROCESS


def _siblings_busy(siblings: Sequence[Record], holders: Holders) -> bool | None:
    """Whether a sibling is in use; None where a sibling could not be observed.

    A sibling that is recorded as gone, and that could not be observed, does not count.
    """
    if any(holders[it.device.uuid] or it.state in BUSY_STATES for it in siblings):
        return True
    return None if any(holders[it.device.uuid] is None and not presence.is_gone(it) for it in siblings) else False
