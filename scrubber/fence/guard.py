"""Keeps the fence in step with the records, and counts how often others have used each device.

An attempt is not a use if it was refused or is ignored. All others count. A process that could open a device
uncounted, and that is still running when the device is closed to it, counts too: it may have the device open.
open.

A reading is taken when all attempts that the kernel has told are judged. So what it counts only grows.

Two locks. While attempts are judged, only a reading waits, and not for long. The rules and the counts have a lock of
their own, under which nothing is looked up for an attempt. Who made an attempt that was refused is looked up
afterwards: it was no use.
"""

from __future__ import annotations

import hashlib
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ground import boot, log
from ground.errors import InvalidRequest
from policies.policy_model import FenceMode
from scrubber.core.fencing import KeptOff, MayOpen
from scrubber.core.guarded import FenceReading
from scrubber.core.model import NOWHERE, DeviceNumber, Holder
from scrubber.core.use_counter import Counted, Missed, UseCounter, UseReading
from scrubber.fence.ignored import IgnoredAttempts, Sources
from scrubber.fence.kernel import program
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Counts, Fence
from scrubber.fence.live_openers import LiveOpeners
from scrubber.fence.owner_groups import OwnerGroups
from scrubber.node import clock
from scrubber.node.cgroup_tree import GroupPlace
from scrubber.node.new_groups import NewGroups

logger = log.get("fence")

_TRIES = 8  # readings of the count, while attempts come
_PATIENCE = 0.5  # seconds in which the attempts are to be read before the use counter is read
_TOO_MANY = "more processes ask for GPUs than can be looked up; `autoclave explain` names some of them"
_GROUPS_EVERY = 0.05  # seconds between two readings of the groups of the node, at least
_POLL_MS = 500  # the thread that reads the attempts looks this often whether it must end
_REFUSED = 256  # refused attempts that wait until it is looked up who made them
_LOOKS = 0.1  # the part of its time in which the thread looks that up: who floods may ask for all of it
_LAST_LOOKS = 1.0  # seconds in which it is looked up at a stop: nobody else can do so later


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the kernel does with a device."""

    to_all: bool = False  # everybody may open it, as the kernel took it last ...
    kept_off: KeptOff | None = None  # ... and who is refused otherwise; None: the kernel was not asked
    holds_pods: bool = False  # that is, all of them: where their groups are is known
    failed: str = ""  # why the kernel has not taken what the record wants


class Guard:
    """Guards the devices whose numbers it knows."""

    def __init__(
        self,
        fence: Fence,
        service: int,
        sources: Sources,
        *,
        knows_processes: bool = True,
        new_groups: NewGroups | None = None,
    ) -> None:
        """``service``: the control group of this service, to which each device is always open.

        ``new_groups``: tells at once of a group that may be exempt; without it, the rounds notice it.

        ``knows_processes``: whether this service knows its processes by the numbers that the kernel tells. If not,
        everybody in its control group counts as the service.
        """
        self._fence = fence
        self._service = service
        self._knows_processes = knows_processes
        self._new_groups = new_groups
        self._sources = sources
        self._ignored = IgnoredAttempts(service, sources)
        self.openers = LiveOpeners(lambda: clock.now().wall)
        self._judging = threading.Lock()  # an attempt can be read once
        self._turn = threading.RLock()  # the fence is asked by many threads
        self._boot_id = boot.boot_id()
        self._device_of: Mapping[DeviceNumber, str] = {}  # the device that a number belongs to
        self._known: Mapping[str, frozenset[DeviceNumber]] = {}  # all devices ...
        self._numbers: dict[str, frozenset[DeviceNumber]] = {}  # ... and those that the policy fences
        self._unguarded = ""  # why none is, as it was logged
        self._owners = OwnerGroups(fence, sources)
        self._rules: dict[str, _Rule] = {}
        self._missed: dict[
            str, str
        ] = {}  # by device: why the kernel may have missed a use, until a use counter says so
        self._lease_ends = 0.0  # the uptime until which others are refused
        self.stands_since = _uptime()  # since when it stands, and nobody has found a gap
        self._judged: dict[str, int] = {}  # by counter: how many it had let through when all of them were judged
        self._refused = deque[tuple[str, Attempt]](maxlen=_REFUSED)
        self._looks_again = 0.0  # when the next of them is looked up
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read, name="fence", daemon=True)
        sources.read()  # who is exempt, before the first rule is set

    def start(self) -> None:
        """Read each attempt as soon as it is asked: its process may end at once."""
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
        alone = _of_one_device_each(self._known)
        numbers = {uuid: mine if self._sources.terms(uuid).fenced else frozenset() for uuid, mine in alone.items()}
        if self._ending.is_set() or numbers == self._numbers:
            return
        changed = {uuid for uuid, mine in numbers.items() if self._numbers.get(uuid) != mine}
        for uuid in changed:  # first: nobody is kept off a number before the kernel has its rule
            self._rules[uuid] = replace(self._rule(uuid), kept_off=None, holds_pods=False)
        try:
            self._forget_proofs(changed)
            self._numbers = numbers
            self._device_of = {number: uuid for uuid, mine in numbers.items() for number in mine}
            self._fence.forget(self._fence.numbers() - frozenset[DeviceNumber]().union(*numbers.values()))
        except OSError as error:
            self._numbers, self._device_of = {}, {}  # tried again with the next round; until then nothing is guarded
            if str(error) != self._unguarded:
                self._unguarded = str(error)
                logger.warning("the devices are not guarded", error=str(error))
            return
        self._unguarded = ""
        for uuid in changed:
            self._open(uuid)
        self._renew_lease()

    def renew(self) -> None:
        """Renew the rules, by policy and control groups, and refuse for another while: called in each round."""
        self._renew_rules()
        with self._turn:
            try:
                if not self._ending.is_set():
                    self._stand()
            except OSError as error:  # the next reading has missed something then
                logger.warning("cannot ask whether the fence stands", error=str(error))
            self._renew_lease()

    def _renew_rules(self) -> None:
        self._sources.read()
        with self._turn:
            self._learn()
            for uuid in self._numbers:
                self._open(uuid)

    def _renew_lease(self) -> None:
        guarded = (uuid for uuid, mine in self._numbers.items() if mine)
        terms = map(self._sources.terms, guarded)
        leases = [each.lease for each in terms if each.kept_off is not KeptOff.NONE]
        if not leases or self._ending.is_set():
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

    def changed(self, uuid: str, open_to: MayOpen) -> None:
        """A row about the device is in the ledger: open it to whom it is open now, and to nobody else.

        Raises nothing: what the kernel does not take is tried again with the next attempt, and counts as a use.
        """
        with self._turn:
            self._owners.changed(uuid, open_to)
            self._open(uuid)

    def owner_left(self, uuid: str) -> bool:
        """Whether the control groups to which the device was opened for a container or for pods were all removed."""
        return self._owners.left(uuid)

    def _open(self, uuid: str) -> None:
        numbers = self._numbers.get(uuid)
        if not numbers or self._ending.is_set():
            return
        terms, gaps = self._sources.terms(uuid), dict[str, None]()  # each reason once, whatever the number of nodes
        try:
            owners = self._owners.find(uuid, numbers, terms)
            if owners is None or owners:  # it will have been used when it is proven again
                self._forget_proofs([uuid])
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
                self._fence.miss(_first(numbers))
                gaps["the control group of its owner is not known: what the owner opens counts as another's"] = None
            if why := self._rule(uuid).failed:
                self._fence.miss(_first(numbers))
                gaps[why] = None
                self.stands_since = _uptime()
        except OSError as error:
            why = f"the kernel does not take the rule of the fence: {error.strerror}"
            self._rules[uuid] = replace(self._rule(uuid), failed=why)
        else:
            self._rules[uuid] = rule
        for why in gaps:
            self.note_gap(uuid, why)

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
        with self._turn:
            if self._ending.is_set() or not self._knows_processes:
                return
            try:
                ask(pid)
            except OSError as error:  # then it counts as a use when it opens a device
                logger.warning("the fence does not take a process of the service", process=pid, error=str(error))

    def demand_tenant(self, group: int) -> None:
        """Refuse a control group that the devices of a job cannot be open to. Raises InvalidRequest."""
        with self._turn:
            place, own = self._sources.place(group), self._sources.place(self._service)
        if place is None or own is None:
            raise InvalidRequest("cannot open a device to the control group that was named: it is gone")
        if not place.name or group in own.groups:
            raise InvalidRequest("cannot open a device to the control group that was named: it holds the scrub service")

    def pod_name(self, uid: str) -> str:
        """NAMESPACE/NAME of a pod; empty: it is not known."""
        return self._sources.pod_name(uid)

    def exempts(self, uuid: str, pod: str, place: str, *, before: bool = False) -> bool:
        """Whether the policy in force lets a pod, as NAMESPACE/NAME, or a unit at this place open the device.

        ``before``: whether a policy let it in when it asked. The control group of a unit that has ended is gone: the
        unit is exempt if it was, and the policy in force still names it.
        """
        terms = self._sources.terms(uuid)
        if pod.partition("/")[0] in terms.namespaces:
            return True
        if not place.startswith("/"):  # a container, or a pod without a name
            groups = self._sources.groups(place) if before and place not in NOWHERE else ()
            return any(found.groups & terms.exempt for found in map(self._sources.place, groups) if found is not None)
        if before and terms.names(place):
            return True
        names = {found.name for found in map(self._sources.place, terms.exempt) if found is not None and found.name}
        return any(place == name or place.startswith(f"{name}/") for name in names)

    def exempts_process(self, uuid: str, holder: Holder) -> bool | None:
        """Whether the policy in force lets a process of the host open the device, by its control group.

        So the child of an exempt program is exempt too. None: its group is not known, or it is in a container.
        """
        place = self.place_of(holder)
        return None if place is None else bool(place.groups & self._sources.terms(uuid).exempt)

    def place_of(self, holder: Holder) -> GroupPlace | None:
        """The control group of a process of the host. None: it is not known, or the process is in a container."""
        group = self._sources.group_of(holder) if holder.container is None else None
        place = self._sources.place(group) if group is not None else None
        return place if place is not None and place.container is None else None

    def keeps_out(self, uuid: str) -> bool:
        """Whether no pod can open the device now but its owner, and who is exempt."""
        rule = self._rule(uuid)
        closed = bool(self._numbers.get(uuid)) and rule.holds_pods and not rule.failed and not rule.to_all
        return closed and self.lease_left > 0.0

    @property
    def below(self) -> str:
        """The control group outside of which it sees nobody; empty: it sees all."""
        return self._sources.below

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
        if not self._numbers.get(uuid):
            return self._unguarded or "the service knows no device file that belongs to this device alone"
        rule = self._rule(uuid)
        if not rule.failed and rule.kept_off is not KeptOff.NONE and self.lease_left <= 0.0:
            return "the service has not renewed the lease of the fence"
        return rule.failed

    def kept_off(self, uuid: str) -> KeptOff | None:
        """Who is refused during the lease. None while the kernel is not asked about the device."""
        return self._rule(uuid).kept_off if self._numbers.get(uuid) else None

    def opens_to_all(self, uuid: str) -> bool:
        """Whether everybody may open the device now, whatever the policy says."""
        return bool(self._numbers.get(uuid)) and self._rule(uuid).to_all

    def read(self, uuid: str) -> UseReading | None:
        """What the kernel does with a device for others, and has counted of them; None if it is not guarded."""
        with self._turn:
            reading = self._read_counts(uuid)
            if not isinstance(reading, FenceReading) or self._judged.get(reading.counter) == reading.passed:
                return self._said(uuid, reading)
        if not self._judging.acquire(timeout=_PATIENCE):
            return Missed(_TOO_MANY)
        try:
            for _ in range(_TRIES):
                self._judge_attempts()
                with self._turn:
                    end, is_empty = self._fence.attempts.end(), not self._fence.attempts.waiting()
                    reading = self._read_counts(uuid)
                    if is_empty and self._fence.attempts.end() == end:
                        return self._said(uuid, reading)
            return Missed(_TOO_MANY)
        finally:
            self._judging.release()

    def _said(self, uuid: str, reading: FenceReading | Missed | None) -> UseReading | None:
        if not isinstance(reading, FenceReading):
            return reading
        self._judged[reading.counter] = reading.passed
        return Counted(UseCounter.FENCE, reading.uses, self._missed.pop(uuid, ""), reading)

    def _read_counts(self, uuid: str) -> FenceReading | Missed | None:
        numbers, terms, at = self._numbers.get(uuid), self._sources.terms(uuid), clock.now()
        if not numbers or self._ending.is_set():
            return None
        if self._rule(uuid).failed:
            self._open(uuid)
        if why := self._rule(uuid).failed:
            return Missed(why)
        try:
            self._stand()
            if not self._fence.still_rules(numbers):
                why = "somebody else has changed the rule of the fence"
                self._rules[uuid] = replace(self._rule(uuid), failed=why)
                return Missed(why)
            counts = [self._fence.counts(number) or Counts(0, 0) for number in numbers]
            kept = [self._fence.kept(number) for number in numbers]
        except OSError as error:
            return Missed(f"the kernel does not say what the fence has counted: {error.strerror}")
        return FenceReading(
            at, terms.kept_off.mode if terms.pods_have_groups else FenceMode.OFF,
            "" if terms.pods_have_groups else "pods have no control groups of their own on this node",
            self._counter(numbers),
            passed=sum(it.asked - it.refused for it in counts),
            ignored=sum(it.ignored for it in kept),
            refused=sum(it.refused for it in counts),
            gaps=sum(it.gaps for it in kept),
            exempt=terms.exempt_digest,
            below=self._sources.below,
        )  # fmt: skip

    def _counter(self, numbers: Iterable[DeviceNumber]) -> str:
        """Names what counts the uses of these numbers: the maps of the fence, in this boot."""
        return f"{_named(f'{self._boot_id} {self._fence.counter}', numbers):016x}"

    def _stand(self) -> None:
        if why := self._fence.stand():
            self.stands_since = _uptime()
            for uuid in self._numbers:
                self._missed[uuid] = why
                self.note_gap(uuid, why)

    def note_gap(self, uuid: str, why: str) -> None:
        """Somebody may have opened a device uncounted, for this reason."""
        self.openers.missed(uuid, why)
        logger.warning("the fence may have missed somebody", device=uuid, why=why)

    def proven(self, uuid: str, proof: str, uses: int) -> None:
        """The device was proven clean, and nobody has used it since this many uses. A later run can ask for that."""
        with self._turn:
            if not self._numbers.get(uuid) or self._ending.is_set():
                return
            try:
                self._keep(uuid, proof=_named(proof, self._numbers[uuid]), uses=uses)
            except OSError as error:  # then a later run makes a proof of its own
                logger.warning("a proof is not kept in the kernel", device=uuid, error=str(error))

    def _keep(self, uuid: str, *, proof: int, uses: int = 0) -> None:
        first = _first(self._numbers[uuid])
        self._fence.keep(first, replace(self._fence.kept(first), proof=proof, uses=max(uses, 0)))

    def _forget_proofs(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            numbers = self._numbers.get(uuid)
            if numbers and self._fence.kept(_first(numbers)).proof:
                self._keep(uuid, proof=0)

    def at_proof(self, uuid: str, proof: str) -> Counted | None:
        """The uses at this proof. None: they were not told, or before a reboot."""
        with self._turn:
            numbers = self._numbers.get(uuid)
            if not numbers:
                return None
            try:
                kept = self._fence.kept(_first(numbers))
            except OSError:
                return None
            if kept.proof != _named(proof, numbers):
                return None
            fence = FenceReading(clock.now(), counter=self._counter(numbers), passed=kept.uses)
            return Counted(UseCounter.FENCE, kept.uses, fence=fence)

    def _judge_attempts(self) -> None:
        """Judge the attempts that can be read. The caller has the lock."""
        if not self._device_of or self._ending.is_set():
            return  # nobody would know yet whose they are
        new = [(self._device_of.get(attempt.device), attempt) for attempt in self._fence.attempts.new()]
        asked = [(uuid, attempt) for uuid, attempt in new if uuid is not None]
        with self._turn:
            for uuid in {uuid for uuid, attempt in asked if attempt.refused}:
                self._open(uuid)  # perhaps to a group that began after the last round
        for uuid, attempt in asked:
            if attempt.refused:  # the kernel says that it was no use
                self._refused.append((uuid, attempt))
            elif self._look_up(uuid, attempt):
                self._ignore(uuid, attempt)

    def _look_up(self, uuid: str, attempt: Attempt) -> bool:
        """Find and remember who made the attempt, unless it was the service. Whether the attempt is not a use."""
        judged = self._ignored.judge(uuid, attempt)
        if judged is None:
            return True
        exempt = bool(judged.groups & self._sources.terms(uuid).exempt)
        opener = judged.opener(attempt, self._sources.pod_name(judged.place), exempt=exempt)
        self.openers.add(uuid, opener, ignored=judged.ignored, at=attempt.uptime)
        return judged.ignored

    def _look_up_refused(self) -> None:
        """Remember who made the attempt that was refused first, unless too much time went into that already."""
        began = time.monotonic()
        if not self._refused or began < self._looks_again:
            return
        with self._judging:
            uuid, attempt = self._refused.popleft()
            self._look_up(uuid, attempt)
            with self._turn:
                self._open(uuid)  # perhaps to a group of which nobody knew before that look
        now = time.monotonic()
        self._looks_again = now + (now - began) * (1 / _LOOKS - 1)

    def _ignore(self, uuid: str, attempt: Attempt) -> None:
        with self._turn:
            if attempt.device not in self._numbers.get(uuid, ()):
                return
            try:
                kept = self._fence.kept(attempt.device)
                self._fence.keep(attempt.device, replace(kept, ignored=kept.ignored + 1))
            except OSError as error:  # it stays a use
                logger.warning("the fence does not ignore an attempt", device=uuid, error=str(error))

    def _read(self) -> None:
        attempts, everything = select.poll(), select.poll()
        for poll in (attempts, everything):
            poll.register(self._fence.attempts.descriptor, select.POLLIN)
        if self._new_groups is not None and self._new_groups.descriptor is not None:
            everything.register(self._new_groups.descriptor, select.POLLIN)
        pause = 0.0  # until this time new groups wait: who may make groups may make many
        while not self._ending.is_set():
            is_due = time.monotonic() >= pause
            look = 1000 * max(self._looks_again - time.monotonic(), 0.0)
            wait = min(look, _POLL_MS) if self._refused else _POLL_MS
            asked = everything.poll(wait) if is_due else attempts.poll(min(wait, _GROUPS_EVERY * 1000))
            try:
                if asked and is_due and self._new_groups is not None and self._new_groups.any():
                    self._renew_rules()
                    pause = time.monotonic() + _GROUPS_EVERY
                if asked:
                    with self._judging:
                        self._judge_attempts()
                self._look_up_refused()
            except Exception as error:  # noqa: BLE001 - the thread goes on: what it does not read counts as a use
                logger.warning("cannot read who asked for a GPU", error=repr(error))
                self._ending.wait(_POLL_MS / 1000)
            if not self._device_of:
                self._ending.wait(_POLL_MS / 1000)

    def close(self) -> None:
        """Read no more attempts, and let go of the fence. It stands on."""
        self._ending.set()
        if self._reader.is_alive():
            self._reader.join()
        until = time.monotonic() + _LAST_LOOKS
        with self._judging:
            while self._refused and time.monotonic() < until:
                self._look_up(*self._refused.popleft())
            with self._turn:
                self._fence.close()
        if self._new_groups is not None:
            self._new_groups.close()


def _of_one_device_each(numbers: Mapping[str, frozenset[DeviceNumber]]) -> dict[str, frozenset[DeviceNumber]]:
    """The numbers of each device, and none of a device that shares one with another."""
    times = Counter(number for mine in numbers.values() for number in mine)
    return {uuid: mine if all(times[it] == 1 for it in mine) else frozenset() for uuid, mine in numbers.items()}


def _first(numbers: Iterable[DeviceNumber]) -> DeviceNumber:
    return min(numbers, key=lambda number: (number.major, number.minor))


def _named(proof: str, numbers: Iterable[DeviceNumber]) -> int:
    """A name of the proof that fits into what the kernel keeps. It holds for these numbers, counted since then.

    And for this way of counting: earlier services have also said counts of attempts that were not judged yet.
    """
    counted = sorted((number.kind.value, number.major, number.minor) for number in numbers)
    return int.from_bytes(hashlib.blake2b(f"{proof} judged {counted}".encode(), digest_size=8).digest(), "little")


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
