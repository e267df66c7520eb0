"""Keeps the rules of the fence in step with the records: to whom each device is open, and who is kept off.

A process that could open a device uncounted, and that is still running when the device is closed to it, may have the
device open. That is a gap, and so is each time in which the kernel did not have the rule: each counts as a use.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ground import log
from scrubber.core.fencing import KeptOff, MayOpen
from scrubber.core.model import DeviceNumber
from scrubber.fence import proofs
from scrubber.fence.ignored import Sources
from scrubber.fence.kernel import program
from scrubber.fence.kernel.fence import Fence
from scrubber.fence.owner_groups import OwnerGroups
from scrubber.fence.proofs import first

logger = log.get("fence")


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the kernel does with a device."""

    to_all: bool = False  # everybody may open it, as the kernel took it last ...
    kept_off: KeptOff | None = None  # ... and who is refused otherwise; None: the kernel was not asked
    holds_pods: bool = False  # that is, all of them: where their groups are is known
    failed: str = ""  # why the kernel has not taken what the record wants


class Rules:
    """Those of the devices whose numbers are known."""

    def __init__(
        self,
        fence: Fence,
        service: int,
        sources: Sources,
        note_gap: Callable[[str, str], None],
        *,
        knows_processes: bool = True,
    ) -> None:
        """``service``: the control group of this service, to which each device is always open.

        ``note_gap`` hears why somebody may have opened a device uncounted. ``knows_processes``: whether this service
        knows its processes by the numbers that the kernel tells. If not, everybody in its control group counts as the
        service.
        """
        self.turn = threading.RLock()  # of the rules and the counts: many threads ask the fence
        self.numbers: dict[str, frozenset[DeviceNumber]] = {}  # of the devices that the policy fences
        self.device_of: Mapping[DeviceNumber, str] = {}  # the device that a number belongs to
        self.missed: dict[str, str] = {}  # by device: why a use may have been missed, until a reading says so
        self.stands_since = _uptime()  # since when the fence stands, and nobody has found a gap
        self.ended = False  # the service has let go of the fence
        self._fence = fence
        self._service = service
        self._knows_processes = knows_processes
        self._sources = sources
        self._note_gap = note_gap
        self._owners = OwnerGroups(fence, sources)
        self._known: Mapping[str, frozenset[DeviceNumber]] = {}  # of all devices
        self._unguarded = ""  # why none is guarded, as it was logged
        self._rules: dict[str, _Rule] = {}
        self._lease_ends = 0.0  # the uptime until which others are refused

    def learn(self, numbers: Mapping[str, frozenset[DeviceNumber]]) -> None:
        """Guard these devices, and no others: called with each reading of the inventory.

        A number of two devices, such as of one that is gone, guards neither. A device with other numbers than before
        may have been used meanwhile.
        """
        with self.turn:
            self._known = numbers
            self._learn()

    def _learn(self) -> None:
        alone = _of_one_device_each(self._known)
        numbers = {uuid: mine if self._sources.terms(uuid).fenced else frozenset() for uuid, mine in alone.items()}
        if self.ended or numbers == self.numbers:
            return
        changed = {uuid for uuid, mine in numbers.items() if self.numbers.get(uuid) != mine}
        for uuid in changed:  # first: nobody is kept off a number before the kernel has its rule
            self._rules[uuid] = replace(self._rule(uuid), kept_off=None, holds_pods=False)
        try:
            for uuid in changed:
                proofs.forget(self._fence, self.numbers.get(uuid, ()))
            self.numbers = numbers
            self.device_of = {number: uuid for uuid, mine in numbers.items() for number in mine}
            self._fence.forget(self._fence.numbers() - frozenset[DeviceNumber]().union(*numbers.values()))
        except OSError as error:
            self.numbers, self.device_of = {}, {}  # tried again with the next round; until then nothing is guarded
            if str(error) != self._unguarded:
                self._unguarded = str(error)
                logger.warning("the devices are not guarded", error=str(error))
            return
        self._unguarded = ""
        for uuid in changed:
            self.open(uuid)
        self._renew_lease()

    def renew(self) -> None:
        """Renew the rules, by policy and control groups, the place of the program, and the lease."""
        self.read_sources()
        with self.turn:
            try:
                if not self.ended:
                    self.stand()
            except OSError as error:  # the next reading has missed something then
                logger.warning("cannot ask whether the fence stands", error=str(error))
            self._renew_lease()

    def read_sources(self) -> None:
        """Renew the rules, by policy and control groups."""
        self._sources.read()
        with self.turn:
            self._learn()
            for uuid in self.numbers:
                self.open(uuid)

    def _renew_lease(self) -> None:
        guarded = (uuid for uuid, mine in self.numbers.items() if mine)
        terms = map(self._sources.terms, guarded)
        leases = [each.lease for each in terms if each.kept_off is not KeptOff.NONE]
        if not leases or self.ended:
            return
        now = _uptime()
        until = now + min(leases)
        try:
            self._fence.refuse_for(min(leases))
        except OSError as error:
            logger.warning("the lease of the fence is not renewed", error=str(error))
        else:
            if 0.0 < self._lease_ends < now:
                self.stands_since = now
            self._lease_ends = until

    def changed(self, uuid: str, open_to: MayOpen) -> MayOpen:
        """A row about the device is in the ledger: open it to whom it is open now. Returns to whom it was open.

        Raises nothing: what the kernel does not take is tried again with the next attempt, and counts as a use.
        """
        with self.turn:
            before = self._owners.changed(uuid, open_to)
            self.open(uuid)
        return before

    def owner_left(self, uuid: str) -> bool:
        """Whether the control groups to which the device was opened for a container or for pods were all removed."""
        return self._owners.left(uuid)

    def open(self, uuid: str) -> None:
        """Have the kernel let in whom the device is open to. What it does not take is tried again."""
        numbers = self.numbers.get(uuid)
        if not numbers or self.ended:
            return
        terms, gaps = self._sources.terms(uuid), dict[str, None]()  # each reason once, whatever the number of nodes
        try:
            owners = self._owners.find(uuid, numbers, terms)
            if owners is None or owners:  # it will have been used when it is proven again
                proofs.forget(self._fence, numbers)
            rule = _Rule(owners is None, terms.kept_off, terms.refuse or bool(terms.held))
            if rule.to_all or not rule.holds_pods:  # first: nobody is kept out from the first number on
                self._rules[uuid] = replace(rule, failed=self._rule(uuid).failed)
            service = self._service if self._knows_processes else None
            uncounted = (owners or frozenset()) | ({self._service} if service is None else frozenset())
            for number in numbers:
                if owners is not None and any(map(self._sources.runs, self._leaving(number, uncounted))):
                    self._fence.miss(number)
                    gaps["a process that could open it still runs, and may have it open"] = None
                had_no_rule = self._fence.set(
                    number,
                    None if owners is None else uncounted,
                    refuse=terms.refuse,
                    held=terms.held or (),
                    exempt=terms.exempt,
                    service=service,
                )
                if had_no_rule and not self._rule(uuid).failed:
                    gaps["nothing counted who opens it, such as under another policy"] = None
            if self._owners.unknown(uuid, owners):
                self._fence.miss(first(numbers))
                gaps["the control group of its owner is not known: what the owner opens counts as another's"] = None
            if why := self._rule(uuid).failed:
                self._fence.miss(first(numbers))
                gaps[why] = None
                self.stands_since = _uptime()
        except OSError as error:
            why = f"the kernel does not take the rule of the fence: {error.strerror}"
            self._rules[uuid] = replace(self._rule(uuid), failed=why)
        else:
            self._rules[uuid] = rule
        for why in gaps:
            self._note_gap(uuid, why)

    def _leaving(self, number: DeviceNumber, staying: Collection[int]) -> Iterable[int]:
        """The control groups that could open a device uncounted, and may no longer."""
        for group, kind in self._fence.members(number).items():
            if kind not in (program.EXEMPT, program.HELD) and group not in staying and group != self._service:
                yield group

    def _rule(self, uuid: str) -> _Rule:
        return self._rules.get(uuid, _Rule())

    def admit_process(self, pid: int) -> None:
        """The service has started a process that may open devices. Until it is admitted, what it opens is counted."""
        self._ask_of_process(self._fence.admit_process, pid)

    def dismiss_process(self, pid: int) -> None:
        """A process of the service has ended."""
        self._ask_of_process(self._fence.dismiss_process, pid)

    def _ask_of_process(self, ask: Callable[[int], None], pid: int) -> None:
        with self.turn:
            if self.ended or not self._knows_processes:
                return
            try:
                ask(pid)
            except OSError as error:  # then it counts as a use when it opens a device
                logger.warning("the fence does not take a process of the service", process=pid, error=str(error))

    def stand(self) -> None:
        """Have the program stand, as ``Fence.stand`` says. Can raise OSError."""
        if why := self._fence.stand():
            self.stands_since = _uptime()
            for uuid in self.numbers:
                self.missed[uuid] = why
                self._note_gap(uuid, why)

    def keeps_out(self, uuid: str) -> bool:
        """Whether no pod can open the device now but its owner, and who is exempt."""
        rule = self._rule(uuid)
        closed = bool(self.numbers.get(uuid)) and rule.holds_pods and not rule.failed and not rule.to_all
        return closed and self.lease_left > 0.0

    @property
    def pods_share_groups(self) -> bool:
        """Whether pods have no control groups of their own on this node, so that nobody can be kept off."""
        return not all(self._sources.terms(uuid).pods_have_groups for uuid in [*self._known])

    @property
    def lease_left(self) -> float:
        """Seconds for which others are still refused without a sign of the service."""
        return max(self._lease_ends - _uptime(), 0.0)

    def lacks(self, uuid: str) -> str:
        """Why the kernel does less with the device than it was asked for. Empty: it does all of it."""
        if not self.numbers.get(uuid):
            return self._unguarded or "the service knows no device file that belongs to this device alone"
        rule = self._rule(uuid)
        if not rule.failed and rule.kept_off is not KeptOff.NONE and self.lease_left <= 0.0:
            return "the service has not renewed the lease of the fence"
        return rule.failed

    def kept_off(self, uuid: str) -> KeptOff | None:
        """Who is refused during the lease. None while the kernel is not asked about the device."""
        return self._rule(uuid).kept_off if self.numbers.get(uuid) else None

    def opens_to_all(self, uuid: str) -> bool:
        """Whether everybody may open the device now, whatever the policy says."""
        return bool(self.numbers.get(uuid)) and self._rule(uuid).to_all

    def fault(self, uuid: str) -> str:
        """Why the kernel does not have the rule that the record wants, after another try. Can raise OSError."""
        if self._rule(uuid).failed:
            self.open(uuid)
        if not self._rule(uuid).failed:
            self.stand()
            if not self._fence.still_rules(self.numbers[uuid]):
                self._rules[uuid] = replace(self._rule(uuid), failed="somebody else has changed the rule of the fence")
        return self._rule(uuid).failed


def _of_one_device_each(numbers: Mapping[str, frozenset[DeviceNumber]]) -> dict[str, frozenset[DeviceNumber]]:
    """The numbers of each device, and none of a device that shares one with another."""
    times = Counter(number for mine in numbers.values() for number in mine)
    return {uuid: mine if all(times[it] == 1 for it in mine) else frozenset() for uuid, mine in numbers.items()}


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
