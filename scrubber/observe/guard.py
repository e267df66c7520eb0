"""Keeps the fence in step with the records, and tells who asked for a device that was not given to it.

A question of a bystander is no use: it is recognised while its process runs, by the same rules as a holder. All other
questions count as uses, also those that nobody could look into.
"""

from __future__ import annotations

import hashlib
import os
import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ground import log, process_names
from scrubber.core import fencing
from scrubber.core.fencing import OpenTo, Pod
from scrubber.core.model import DeviceNumber, Holder
from scrubber.core.record import Record
from scrubber.core.witness import FENCE, Counted, Missed, Testimony
from scrubber.fence.fence import Fence
from scrubber.fence.questions import Question

logger = log.get("fence")

IsBystander = Callable[[Holder], bool]
_NAMED = 4  # askers of a device that are named at most
_TRIES = 8  # readings of the count, while questions come
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds: by so much a process may have started later than /proc says
_RECOGNISED_FOR = 2.0  # seconds in which a bystander that has ended is still known
_POLL_MS = 500  # the thread that reads the questions looks this often whether it must end


@dataclass(frozen=True, slots=True)
class Look:
    """What the guard asks about processes and control groups."""

    process: Callable[[int], tuple[Holder, ...]]  # a process by its pid; empty if it has ended
    groups: Callable[[str], frozenset[int]]  # the control groups of a pod
    bystanders: Callable[[str], IsBystander]  # for each device, who does not count


class Guard:
    """Guards the devices whose numbers it knows."""

    def __init__(self, fence: Fence, service: int, look: Look) -> None:
        """``service``: the control group of this service, to which each device is always open."""
        self._fence = fence
        self._service = service
        self._look = look
        self._turn = threading.RLock()  # the fence is asked by many threads, and its questions can be read once
        self._numbers: dict[str, frozenset[DeviceNumber]] = {}
        self._records: dict[str, Record] = {}
        self._open_to: dict[str, frozenset[int] | None] = {}
        self._failed: dict[str, str] = {}  # devices whose rule the kernel did not take, and why
        self._uses: dict[str, int] = {}  # by device: those that were said last, which never become fewer ...
        self._more: dict[
            str, int
        ] = {}  # ... and how many more than the kernel counts: another number counts for it now
        self._askers: dict[str, deque[str]] = {}
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
        numbers = _of_one_device_each(numbers)
        with self._turn:
            if self._ending.is_set() or numbers == self._numbers:
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
                self._numbers = {}  # tried again with the next reading; until then nothing is guarded
                logger.warning("the devices are not guarded", error=str(error))
                return
            for uuid in changed:
                self._open_to.pop(uuid, None)
                self._open(uuid)

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
        record = self._records.get(uuid)
        try:
            now = self._members(fencing.open_to(record) if record is not None else OpenTo.SERVICE)
            if uuid in self._open_to and self._open_to[uuid] == now:
                return
            self._open_to.pop(uuid, None)
            for number in numbers:
                self._fence.set(number, now, refuse=False)
        except OSError as error:
            self._failed[uuid] = f"the kernel does not take the rule of the fence: {error.strerror}"
            return
        self._open_to[uuid] = now
        if self._failed.pop(uuid, ""):
            self._more[uuid] = self._more.get(uuid, 0) + 1

    def _members(self, open_to: OpenTo | Pod) -> frozenset[int] | None:
        match open_to:
            case OpenTo.ALL:
                return None
            case OpenTo.SERVICE:
                return frozenset({self._service})
            case Pod(uid):
                groups = self._look.groups(uid)
                return groups | {self._service} if groups else None

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
            uses += self._more.get(uuid, 0)
            said = max(uses, self._uses.get(uuid, 0))
            self._more[uuid] = self._more.get(uuid, 0) + said - uses
            self._uses[uuid] = said
            return Counted(FENCE, said)

    def _counted_now(self, uuid: str) -> int:
        self._take_questions()
        return self._counted(uuid)

    def _counted(self, uuid: str) -> int:
        """What the kernel has counted for the device, without the bystanders that are known by now."""
        found = 0
        for number in self._numbers[uuid]:
            counts, kept = self._fence.counts(number), self._fence.kept(number)
            found += (counts.asked if counts is not None else 0) + kept.gaps - kept.excused
        return found

    def proven(self, uuid: str, proof: str, uses: int) -> None:
        """The device was proven clean, and nobody has used it since this many uses. A later run can ask for that."""
        with self._turn:
            if not self._numbers.get(uuid) or self._ending.is_set():
                return
            self._askers.pop(uuid, None)
            try:
                self._keep(uuid, proof=_named(proof), uses=uses - self._more.get(uuid, 0))
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
            return kept.uses if kept.proof == _named(proof) else None

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
            kept = self._fence.kept(question.device)
            self._fence.keep(question.device, replace(kept, excused=kept.excused + 1))
            return
        if holder is not None:
            name = process_names.describe(holder.command, holder.pid, holder.container or "no container")
        else:
            name = process_names.describe(question.command, question.pid, "it has ended")
        askers = self._askers.setdefault(uuid, deque(maxlen=_NAMED))
        if name in askers:
            return
        askers.append(name)
        logger.warning("a process asked for a GPU that is not its own", device=uuid, process=name)

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


def _of_one_device_each(numbers: Mapping[str, frozenset[DeviceNumber]]) -> dict[str, frozenset[DeviceNumber]]:
    """The numbers of each device, and none of a device that shares one with another."""
    times = Counter(number for mine in numbers.values() for number in mine)
    return {uuid: mine if all(times[it] == 1 for it in mine) else frozenset() for uuid, mine in numbers.items()}


def _first(numbers: Iterable[DeviceNumber]) -> DeviceNumber:
    return min(numbers, key=lambda number: (number.major, number.minor))


def _named(proof: str) -> int:
    """The proof, in the room that the kernel keeps for it."""
    return int.from_bytes(hashlib.blake2b(proof.encode(), digest_size=8).digest(), "little")
