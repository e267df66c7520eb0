"""Keeps the fence in step with the records, and tells who asked for a device that was not given to it.

A question of a bystander is no use: it is recognised while its process runs, by the same rules as a holder. Nor is one
that was refused, or one of a control group that is exempt. All other questions count as uses, also those that nobody
could look into.
"""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ground import log, process_names
from ground.errors import InvalidRequest
from scrubber.core import fencing
from scrubber.core.fencing import Container, Group, OpenTo
from scrubber.core.model import DeviceNumber, Holder
from scrubber.core.record import Record
from scrubber.core.witness import FENCE, Counted, Missed, Testimony
from scrubber.fence.fence import Fence
from scrubber.fence.questions import Question
from scrubber.node import clock
from scrubber.node.unified import Place
from scrubber.observe.askers import Asker, Askers

logger = log.get("fence")

IsBystander = Callable[[Holder], bool]
LOGGED_EVERY = 3600.0  # seconds between two lines about one program that asks again and again
_JUDGED_FOR = 1.0  # seconds in which a group that was not exempt is not looked up again
_JUDGED = 256  # groups
_TRIES = 8  # readings of the count, while questions come
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds: by so much a process may have started later than /proc says
_RECOGNISED_FOR = 2.0  # seconds in which a bystander that has ended is still known
_POLL_MS = 500  # the thread that reads the questions looks this often whether it must end


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says of a device."""

    refuse: bool = False  # others, or only count them
    fenced: bool = True
    lease: float = 600.0  # seconds for which others are still refused without the service
    exempt: frozenset[int] = frozenset()  # the control groups that may open it at any time


@dataclass(frozen=True, slots=True)
class Look:
    """What the guard asks about processes, control groups and the policy."""

    process: Callable[[int], tuple[Holder, ...]]  # a process by its pid; empty if it has ended
    groups: Callable[[str], frozenset[int]]  # the control groups of a pod or container
    bystanders: Callable[[str], IsBystander]  # for each device, who does not count
    terms: Callable[[str], Terms]  # for each device
    read: Callable[[], None]  # which groups there are, for the next ``terms``
    place: Callable[[int], Place | None]  # what a control group is; None if it is gone


class Guard:
    """Guards the devices whose numbers it knows."""

    def __init__(self, fence: Fence, service: int, look: Look) -> None:
        """``service``: the control group of this service, to which each device is always open."""
        self._fence = fence
        self._service = service
        self._look = look
        self._turn = threading.RLock()  # the fence is asked by many threads, and its questions can be read once
        self._known: Mapping[str, frozenset[DeviceNumber]] = {}  # all devices ...
        self._numbers: dict[str, frozenset[DeviceNumber]] = {}  # ... and those that the policy fences
        self._terms: Mapping[str, Terms] = {}  # of all devices, as of the last round or question of a new group
        self._unguarded = ""  # why none is, as it was logged
        self._records: dict[str, Record] = {}
        self._open_to: dict[str, tuple[frozenset[int] | None, bool]] = {}  # and whether others are refused
        self._failed: dict[str, str] = {}  # devices whose rule the kernel did not take, and why
        self._uses: dict[str, int] = {}  # by device: those that were said last, which never become fewer ...
        self._more: dict[str, int] = {}  # ... and by how many they are more than the kernel counts
        self._said_at: dict[str, float] = {}  # by device: the uptime of the last count that was said
        self.askers = Askers(lambda: clock.now().wall)
        self._logged: dict[tuple[str, str, str], float] = {}  # by device, program and place: the time of the last line
        self._judged: dict[int, tuple[float, Place | None]] = {}  # groups that asked lately, and until which uptime
        self._recognised: dict[tuple[int, str, int], float] = {}  # bystanders that asked lately, until this uptime
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read, name="fence", daemon=True)

    def start(self) -> None:
        """Read each question as soon as it is asked: its process may end at once."""
        self._reader.start()

    def learn(self, numbers: Mapping[str, frozenset[DeviceNumber]]) -> None:
        """Guard these devices, and no others: called with each reading of the inventory.

        A number of two devices, such as of one that is gone, guards neither. A device with other numbers than before
        may have been used meanwhile.
        """
        with self._turn:
            self._known = numbers
            self._learn()

    def _learn(self) -> None:
        if self._ending.is_set():
            return
        self._terms = {uuid: self._look.terms(uuid) for uuid in self._known}
        alone = _of_one_device_each(self._known)
        numbers = {uuid: mine if self._terms[uuid].fenced else frozenset() for uuid, mine in alone.items()}
        if numbers == self._numbers:
            return
        changed = {uuid for uuid, mine in numbers.items() if self._numbers.get(uuid) != mine}
        known = changed & self._uses.keys()
        try:
            self._forget_proofs(known)
            self._numbers = numbers
            self._forget_proofs(known)
            self._fence.forget(self._fence.numbers() - frozenset[DeviceNumber]().union(*numbers.values()))
            for uuid in known:
                self._more[uuid] = self._uses[uuid] + 1 - self._counted(uuid)
        except OSError as error:
            self._numbers = {}  # tried again with the next round; until then nothing is guarded
            if str(error) != self._unguarded:
                self._unguarded = str(error)
                logger.warning("the devices are not guarded", error=str(error))
            return
        self._unguarded = ""
        for uuid in changed:
            self._open_to.pop(uuid, None)
            self._open(uuid)

    def renew(self) -> None:
        """Follow the policy and the control groups of the node, and refuse for another while: called in each round."""
        with self._turn:
            self._look.read()
            self._learn()
            leases = []
            for uuid, mine in self._numbers.items():
                self._open(uuid)
                if mine and self._terms[uuid].refuse:
                    leases.append(self._terms[uuid].lease)
            if leases and not self._ending.is_set():
                try:
                    self._fence.refuse_for(min(leases))
                except OSError as error:
                    logger.warning("the lease of the fence is not renewed", error=str(error))

    def changed(self, record: Record) -> None:
        """A row about the device is in the ledger: open it to whom it is open now, and to nobody else.

        Raises nothing: what the kernel does not take is tried again with the next question, and counts as a use.
        """
        with self._turn:
            self._records[record.device.uuid] = record
            self._open(record.device.uuid)

    def _open(self, uuid: str) -> None:
        numbers = self._numbers.get(uuid)
        if not numbers or self._ending.is_set():
            return
        record, terms = self._records.get(uuid), self._terms[uuid]
        try:
            members = self._members(fencing.open_to(record) if record is not None else OpenTo.SERVICE)
            now = members if members is None else members | terms.exempt, terms.refuse
            if uuid in self._open_to and self._open_to[uuid] == now:
                return
            self._open_to.pop(uuid, None)
            for number in numbers:
                self._fence.set(number, now[0], refuse=terms.refuse)
        except OSError as error:
            self._failed[uuid] = f"the kernel does not take the rule of the fence: {error.strerror}"
            return
        self._open_to[uuid] = now
        if self._failed.pop(uuid, ""):
            self._more[uuid] = self._more.get(uuid, 0) + 1

    def _members(self, open_to: OpenTo | Container | Group) -> frozenset[int] | None:
        match open_to:
            case OpenTo.ALL:
                return None
            case OpenTo.SERVICE:
                return frozenset({self._service})
            case Group(group):
                return frozenset({self._service, group})
            case Container(name):
                groups = self._look.groups(name)
                return groups | {self._service} if groups else None

    def demand_tenant(self, group: int) -> None:
        """Refuse a control group that the devices of a job cannot be open to. Raises InvalidRequest."""
        with self._turn:
            place, own = self._look.place(group), self._look.place(self._service)
        if place is None or own is None:
            raise InvalidRequest("the control group that was named is gone")
        if not place.name or group in own.groups:
            raise InvalidRequest("the control group that was named holds the scrub service itself")

    def refuses(self, uuid: str) -> bool | None:
        """Whether others cannot open the device. None while the kernel is not asked about it."""
        rule = self._open_to.get(uuid)
        return rule[1] if self._numbers.get(uuid) and rule is not None else None

    def witness(self, uuid: str) -> Testimony | None:
        """How often others have used the device; None if it is not guarded."""
        with self._turn:
            if not self._numbers.get(uuid) or self._ending.is_set():
                return None
            if uuid in self._failed:
                self._open(uuid)
            if uuid in self._failed:
                return Missed(self._failed[uuid])
            try:
                if not self._fence.stands():
                    self._fence.stand_again()
                    logger.warning("the fence was taken out of the kernel; it stands again")
                uses = self._counted_now(uuid)
                for _ in range(_TRIES):
                    if not self._fence.questions.waiting():
                        break  # otherwise somebody has asked since the last reading, and may be a bystander
                    uses = self._counted_now(uuid)
            except OSError as error:
                return Missed(f"the kernel does not say what the fence has counted: {error.strerror}")
            # A question may be counted before it can be read, and excused after it was said: what was said stays said.
            self._said_at[uuid] = time.clock_gettime(time.CLOCK_BOOTTIME)
            uses += self._more.get(uuid, 0)
            said = max(uses, self._uses.get(uuid, 0))
            self._more[uuid] = self._more.get(uuid, 0) + said - uses
            self._uses[uuid] = said
            return Counted(FENCE, said)

    def _counted_now(self, uuid: str) -> int:
        self._take_questions()
        return self._counted(uuid)

    def _counted(self, uuid: str) -> int:
        """What the kernel has counted for the device: not who was refused, nor the bystanders that are known by now."""
        found = 0
        for number in self._numbers[uuid]:
            counts, kept = self._fence.counts(number), self._fence.kept(number)
            found += (counts.asked - counts.refused if counts is not None else 0) + kept.gaps - kept.excused
        return found

    def proven(self, uuid: str, proof: str, uses: int) -> None:
        """The device was proven clean, and nobody has used it since this many uses. A later run can ask for that."""
        with self._turn:
            if not self._numbers.get(uuid) or self._ending.is_set():
                return
            try:
                self._keep(uuid, proof=_named(proof, self._numbers[uuid]), uses=uses - self._more.get(uuid, 0))
            except OSError as error:  # then a later run makes a proof of its own
                logger.warning("a proof is not kept in the kernel", device=uuid, error=str(error))

    def _keep(self, uuid: str, *, proof: int, uses: int = 0) -> None:
        first = _first(self._numbers[uuid])
        self._fence.keep(first, replace(self._fence.kept(first), proof=proof, uses=max(uses, 0)))

    def _forget_proofs(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            if self._numbers.get(uuid):
                self._keep(uuid, proof=0)

    def uses_at_proof(self, uuid: str, proof: str) -> int | None:
        """How many uses there were at this proof. None: it was not told, or before a reboot."""
        with self._turn:
            if not self._numbers.get(uuid):
                return None
            try:
                kept = self._fence.kept(_first(self._numbers[uuid]))
            except OSError:
                return None
            return kept.uses if kept.proof == _named(proof, self._numbers[uuid]) else None

    def _take_questions(self) -> None:
        if not self._numbers:
            return  # nobody would know yet whose they are
        owners = {number: uuid for uuid, numbers in self._numbers.items() for number in numbers}
        for question in self._fence.questions.new():
            if (uuid := owners.get(question.device)) is not None:
                self._take(uuid, question)

    def _take(self, uuid: str, question: Question) -> None:
        try:
            holder = next(iter(self._look.process(question.pid)), None)
        except OSError:
            holder = None
        if holder is not None and holder.started > question.uptime - _TICK:
            holder = None  # it may be a later process with this pid
        who = (question.pid, question.command, question.group)
        recognised = holder is not None and self._look.bystanders(uuid)(holder)
        if recognised or (holder is None and self._recognised.get(who, 0.0) > question.uptime):
            self._recognised = {it: until for it, until in self._recognised.items() if until > question.uptime}
            self._recognised[who] = question.uptime + _RECOGNISED_FOR
            self._excuse(uuid, question)
            return
        place = self._place(question.group, question.uptime)
        if place is not None and place.groups & self._terms[uuid].exempt:
            self._excuse(uuid, question)
            self._open(uuid)  # a group that began after the last round
        else:
            self._add(uuid, question, holder, place)

    def _place(self, group: int, uptime: float) -> Place | None:
        """Where a process ran. Exempt groups are read again for a group that has not asked lately."""
        until, place = self._judged.pop(group, (0.0, None))
        if until <= uptime:
            until, place = uptime + _JUDGED_FOR, self._look.place(group)
            self._look.read()
            self._terms = {uuid: self._look.terms(uuid) for uuid in self._known}
        self._judged[group] = until, place
        if len(self._judged) > _JUDGED:
            del self._judged[next(iter(self._judged))]
        return place

    def _excuse(self, uuid: str, question: Question) -> None:
        if question.refused:  # the kernel says that it was no use
            return
        kept = self._fence.kept(question.device)
        self._fence.keep(question.device, replace(kept, excused=kept.excused + 1))
        if question.uptime <= self._said_at.get(uuid, 0.0):  # perhaps said as a use: no later one may take its place
            self._more[uuid] = self._more.get(uuid, 0) + 1

    def _add(self, uuid: str, question: Question, holder: Holder | None, place: Place | None) -> None:
        """Remember who asked, and say so once an hour."""
        container = (holder and holder.container) or (place and place.container)
        unit = place.name if place is not None else ""
        where = container or unit or ("no container" if holder is not None else "")
        command = holder.command if holder is not None else question.command
        asker = self.askers.add(uuid, command, question.pid, where, refused=question.refused)
        key = uuid, command, where
        if asker.last < self._logged.get(key, 0.0) + LOGGED_EVERY:
            return
        self._logged = {it: at for it, at in self._logged.items() if asker.last < at + LOGGED_EVERY} | {key: asker.last}
        times = {"times": asker.times, "refused": asker.refused}
        logger.warning("a process asked for a GPU that is not its own", device=uuid, process=_called(asker), **times)

    def _read(self) -> None:
        waiting = select.poll()
        waiting.register(self._fence.questions.descriptor, select.POLLIN)
        while not self._ending.is_set():
            if not waiting.poll(_POLL_MS):
                continue
            with self._turn:
                try:
                    self._take_questions()
                except OSError as error:  # what is not read counts as a use
                    logger.warning("cannot read who asked for a GPU", error=str(error))
                    self._ending.wait(_POLL_MS / 1000)
            if not self._numbers:
                self._ending.wait(_POLL_MS / 1000)

    def close(self) -> None:
        """Read no more questions, and let go of the fence. It stands on."""
        self._ending.set()
        if self._reader.is_alive():
            self._reader.join()
        with self._turn:
            self._fence.close()


def _called(asker: Asker) -> str:
    """The program and where it ran."""
    return process_names.describe(asker.command, asker.pid, asker.place or "it has ended")


def _of_one_device_each(numbers: Mapping[str, frozenset[DeviceNumber]]) -> dict[str, frozenset[DeviceNumber]]:
    """The numbers of each device, and none of a device that shares one with another."""
    times = Counter(number for mine in numbers.values() for number in mine)
    return {uuid: mine if all(times[it] == 1 for it in mine) else frozenset() for uuid, mine in numbers.items()}


def _first(numbers: Iterable[DeviceNumber]) -> DeviceNumber:
    return min(numbers, key=lambda number: (number.major, number.minor))


def _named(proof: str, numbers: Iterable[DeviceNumber]) -> int:
    """The proof, in the room that the kernel keeps for it. It holds for these numbers, which were counted since."""
    counted = sorted((number.kind.value, number.major, number.minor) for number in numbers)
    return int.from_bytes(hashlib.blake2b(f"{proof} {counted}".encode(), digest_size=8).digest(), "little")
