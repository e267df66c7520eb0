"""A guard over a pretended kernel, beside it what is true on the node: who was let in, and how often others used it.

Each move acts on both. The promises, held against the truth after each:

* while the guard says that it keeps others out, nobody else opens a device; whoever may open it is never refused;
* each use by others is told: a use counter counts at least those since it answered last, or has ``Missed`` something;
* nothing else is told as a use; and a proof that an earlier life has kept says the same after a restart;
* what two readings tell is true, also over a restart: where nobody else was let through, nobody else has opened it;
* nothing is raised, whatever the kernel answers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from policies.values import FenceMode
from scrubber.core.fencing import Container, Group, OpenTo
from scrubber.core.guarded import between
from scrubber.core.model import DeviceNumber, Holder, NodeKind
from scrubber.core.use_counter import Counted, FenceReading, Missed
from scrubber.fence import attempt_reader, guard, ignored, rules
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel import bpf, fence, program
from scrubber.fence.kernel.attempts import Attempt, Attempts
from scrubber.fence.kernel.fence import Fence, FenceError
from scrubber.node.cgroup_tree import GroupPlace
from tests.fakes.bpf import Bpf, Process

WHOLE = {
    "gpu-0": frozenset({DeviceNumber(NodeKind.CHARACTER, 195, 0)}),
    "gpu-1": frozenset({DeviceNumber(NodeKind.CHARACTER, 195, 1), DeviceNumber(NodeKind.CHARACTER, 226, 128)}),
}
OTHER = frozenset({DeviceNumber(NodeKind.CHARACTER, 195, 2)})
DEVICES = tuple(WHOLE)
PODS = ("pod-a", "pod-b")
BYSTANDER = "dcgm"
LEASE = 600.0
ACTORS = (  # who opens: the group by its name, and the command
    ("pod-a", "train"), ("pod-b", "train"), ("pod-a/deep", "train"), ("job", "train"), ("foreign", "train"),
    ("foreign/deep", "train"), ("unit", "train"), ("unit", BYSTANDER), ("foreign", BYSTANDER), ("service", "worker"),
    ("service", "tool"), ("service", "train"), ("", "train"),
)  # fmt: skip
DEEP = 8  # groups below that of a pod


@dataclass
class Truth:
    """What happened to a device."""

    counted: int = 0  # uses that the kernel counts: each is told
    unseen: int = 0  # what may have been a use, and nobody counts: told at least as one
    doubtful: int = 0  # what may be told, and need not be

    def less(self, before: Truth) -> Truth:
        """What has happened since."""
        return Truth(self.counted - before.counted, self.unseen - before.unseen, self.doubtful - before.doubtful)


@dataclass
class Proof:
    """What was told of a proof that the kernel keeps."""

    name: str
    at: Truth
    ended: bool = False  # it must not be found any more
    doubted: bool = False  # it need not be


@dataclass
class Device:
    """What is true of a device, and of what the guard was told about it."""

    numbers: frozenset[DeviceNumber]
    open_to: OpenTo | Container | Group = OpenTo.SERVICE
    guarded: bool = False
    let_in: set[int] = field(default_factory=set)  # the groups of its owner
    exempt: frozenset[int] = frozenset()
    refuse: bool = False
    to_all: bool = False
    is_shaky: bool = False  # the kernel has failed since: the guard may say less than usual
    tampered: bool = False  # root has changed a rule ...
    removed: bool = False  # ... or removed it: then nobody counts
    noticed: bool = False  # the guard has said so
    truth: Truth = field(default_factory=Truth)
    reported: tuple[int, Truth] | None = None  # the last count of this life, and what had happened by then
    least: tuple[str, int] = "", 0  # the counter and the count that were told last in this life
    missed: bool = False  # the last answer was none, or is not known exactly
    proof: Proof | None = None
    others: int = 0  # times that somebody has opened it who is neither its owner nor the service
    refusals: int = 0  # times that somebody was refused
    is_awaited: bool = False  # its owner has no known group, and the guard has said so
    was_to_all: bool = False  # since the last reading, as the records tell
    read: tuple[FenceReading | None, int, int] | None = None  # the last reading, and what was true by then


class KilledError(BaseException):
    """SIGKILL: no handler of errors may see it as one."""


class Guarded:
    """The node, its kernel, and one life of the service after another."""

    def __init__(self, directory: Path, *, has_pods: bool = True, knows_processes: bool = True) -> None:
        self.now = 1000.0
        self.kernel = Bpf(lambda: self.now)
        self.has_pods, self.knows_processes = has_pods, knows_processes
        self.root = directory
        self.devices = {uuid: Device(numbers) for uuid, numbers in WHOLE.items()}
        self.terms = self.read_terms = Terms(lease=LEASE, pods_have_groups=has_pods)
        self.exempt = set[int]()
        self._groups: dict[str, tuple[int, ...]] = {"": ()}  # by name: its path from the root down
        self._next_group, self._next_pid = 100, 1000
        self.running: dict[int, tuple[Process, float]] = {}
        self.ours = set[int]()
        self.admitted = set[int]()
        self.started = 0  # services, which have their number as that of their process
        self._killed = set[int]()
        self._reused = set[int]()  # numbers of processes that others had before
        self.gap = False  # somebody has detached the program, and the guard has not attached it again
        self.failed = 0  # calls of the kernel
        self._learned_last: Mapping[str, frozenset[DeviceNumber]] = WHOLE
        self._earlier: list[int] = []  # groups of services that have ended
        self._uses_in_between = self._old_answers = 0
        self._refused = set[DeviceNumber]()  # in between
        self._order: Callable[[int], None] = lambda _command: None  # what the kernel does while the guard asks it
        self._closing = ExitStack()
        patch = self._closing.enter_context(pytest.MonkeyPatch.context())
        clock = SimpleNamespace(
            CLOCK_BOOTTIME=7,
            clock_gettime=lambda _clock: self.now,
            clock_gettime_ns=lambda _clock: int(self.now * 1e9),
            monotonic=lambda: self.now,
        )
        for module in (attempt_reader, fence, guard, ignored, rules):
            patch.setattr(module, "time", clock)
        patch.setattr(bpf, "_BATCH", 3)
        self._closing.enter_context(self.kernel.booted())
        for name in ("service", "foreign", "foreign/deep", "unit", "job"):
            self.make_group(name)
        self.begin()

    def close(self) -> None:
        """Let go of all."""
        self.end()
        self._closing.close()

    # -- groups and processes

    def make_group(self, name: str) -> int:
        """A new group; one that is ``deep``, and that of the job, have others above them."""
        above = self._groups[name.rpartition("/")[0]]
        depth = {"deep": DEEP, "job": program.LEVELS}.get(name.rpartition("/")[2], 1)
        path = [*above, *(self._new_group() for _ in range(depth))]
        self._groups[name] = tuple(path)
        return path[-1]

    def _new_group(self) -> int:
        self._next_group += 1
        return self._next_group

    def remove_group(self, name: str) -> None:
        """With all that are below it and all of its processes."""
        for gone in [it for it in self._groups if it == name or it.startswith(f"{name}/")]:
            path = self._groups.pop(gone)
            for pid, (process, _) in [*self.running.items()]:
                if process.groups == path:
                    del self.running[pid]

    def group(self, name: str) -> int:
        """The number of a group; 0 if there is none."""
        return (self._groups.get(name) or (0,))[-1]

    def _runs(self, group: int) -> bool:
        return any(group in process.groups for process, _ in self.running.values())

    def _is_gone(self, group: int) -> bool:
        return not any(group in path for path in self._groups.values())

    def _place(self, group: int) -> GroupPlace | None:
        for name, path in self._groups.items():
            if group in path:
                return GroupPlace(f"/{name}", None, frozenset(path[: path.index(group) + 1]))
        return None

    def _process(self, pid: int) -> tuple[Holder, ...]:
        found = self.running.get(pid)
        return () if found is None else (Holder(pid, found[1], found[0].command, None),)

    def _read(self) -> None:
        self.read_terms = replace(self.terms, exempt=frozenset(self.exempt))

    # -- lives of the service

    def begin(self, *, elsewhere: bool = False) -> None:
        """A service begins: perhaps in another control group."""
        self.started += 1
        if elsewhere:
            self._earlier.append(self.group("service"))
            self.make_group("service")
            fence.admit(self.root, self.group("service"), processes=[self.started], runs=self._keeps)
        for device in self.devices.values():
            device.reported, device.least = None, ("", 0)
            device.guarded = device.is_shaky = device.noticed = device.is_awaited = False
        self.admitted.clear()
        self.fence = Fence(self.root)
        self.fence.keep_alone(self.started, self.started, runs=self._keeps)
        self.gap = False
        sources = Sources(
            process=self._process,
            groups=lambda pod: frozenset({self.group(pod)} - {0}) if self.has_pods else frozenset(),
            bystanders=lambda _uuid: lambda holder: holder.command == BYSTANDER,
            terms=lambda _uuid: self.read_terms,
            read=self._read,
            place=self._place,
            runs=self._runs,
            is_gone=self._is_gone,
            is_ours=lambda pid: pid in self.ours and pid in self.running,
        )
        self.guard = Guard(self.fence, self.group("service"), sources, knows_processes=self.knows_processes)
        for uuid, device in self.devices.items():
            self.guard.rules.changed(uuid, device.open_to)
        self.learn()
        for uuid, device in self.devices.items():
            if device.proof is not None and device.guarded:
                self._check_proof(uuid, device, device.proof)

    def _keeps(self, pid: int, _started: int) -> bool:
        return pid not in self._killed

    def end(self, *, killed: bool = False) -> None:
        """The service ends."""
        if killed:
            self.fence._keeps = False
            self.fence.close()
        else:
            self.guard.close()

    def restart(self, *, killed: bool, elsewhere: bool) -> None:
        """Another service begins in its place."""
        self.end(killed=killed)
        self._killed |= {self.started} if killed else set()
        self.begin(elsewhere=elsewhere)

    def another_service(self) -> None:
        """It must not keep a fence that another one keeps."""
        if self.gap:
            return
        another = Fence(self.root)
        with pytest.raises(FenceError, match="another scrub service"):
            another.keep_alone(99, 99, runs=self._keeps)
        another.close()
        fence.admit(self.root, self.group("foreign"), runs=self._keeps)

    def _check_proof(self, uuid: str, device: Device, proof: Proof) -> None:
        kept, since = self.guard.count.at_proof(uuid, proof.name), device.truth.less(proof.at)
        said = self.guard.count.read(uuid)
        if not isinstance(said, Counted):
            assert device.is_shaky, said
            return
        assert self.guard.count.at_proof(uuid, "another proof") is None
        if kept is None:
            assert proof.ended or proof.doubted, f"{uuid}: the proof is lost"
            return
        assert not proof.ended, f"{uuid}: the proof outlives its end"
        self._check(uuid, said.uses - kept.uses, since)

    # -- what the guard is told

    @contextmanager
    def _asked(self, *uuids: str) -> Iterator[None]:
        """While the guard works, the kernel may do what was ordered."""
        before = self.failed
        self.kernel.before = self._is_asked
        try:
            yield
        finally:
            self.kernel.before = lambda _command: None
            if self.failed != before:
                for uuid in uuids or DEVICES:
                    self._shake(self.devices[uuid])

    def _is_asked(self, command: int) -> None:
        if command in (bpf._MAP_UPDATE, bpf._MAP_DELETE):
            held = self.guard.rules.turn._is_owned()  # type: ignore[attr-defined] # private to threading
            assert held, "of two threads that write, one may take back what the other wrote"
        self._order(command)

    def _shake(self, device: Device) -> None:
        device.is_shaky = True
        device.truth.doubtful += 50
        self._blur(device)
        if device.proof is not None:
            device.proof.doubted = True

    def _blur(self, device: Device) -> None:
        """What was counted since the last count is told as one use at least."""
        for since in [device.reported[1]] if device.reported is not None else []:
            device.truth.unseen += device.truth.counted - since.counted
            device.truth.counted = since.counted

    def _follow(self, uuid: str) -> None:
        """The guard has written the rule of a device, unless the kernel has failed."""
        device = self.devices[uuid]
        if not device.guarded:
            return
        wanted = self._owners(device)
        if wanted == set() and isinstance(device.open_to, Container) and not device.is_awaited:
            device.is_awaited = True
            device.truth.doubtful += 1
        owners = set(device.let_in) if wanted is None else wanted
        left = device.let_in - owners
        if any(map(self._runs, left)):
            device.truth.unseen += 1
            device.truth.doubtful += len(device.numbers) * len(left)
        if wanted is not None:  # an earlier service, whose processes may have it open, is let in no longer
            device.truth.doubtful += len(device.numbers) * sum(map(self._runs, self._earlier))
        device.to_all = wanted is None
        device.was_to_all |= device.to_all
        device.let_in, device.exempt, device.refuse = owners, self.read_terms.exempt, self.read_terms.refuse
        if device.proof is not None and (wanted is None or wanted):
            device.proof.ended |= not device.is_shaky or self._is_open(device, wanted)
        self._see_rule(device)

    def _is_open(self, device: Device, wanted: set[int] | None) -> bool:
        """Whether the kernel, which may have refused a call, lets these in."""
        keys, kernel = [fence._key(number) for number in device.numbers], self.fence
        if wanted is None:
            return any((kernel._rules.get(key) or bytes(8))[0] for key in keys)
        return any(
            kernel._members.get(key + struct.pack("<Q", group)) == program.MEMBER.pack(program.OWNER)
            for key in keys
            for group in wanted
        )

    def _see_rule(self, device: Device) -> None:
        """Whether a rule that root has changed was written again: then its time is told as a use."""
        rule = self.fence._rules.get(fence._key(min(device.numbers, key=str)))
        if device.tampered and rule == program.RULE.pack(device.to_all, device.refuse):
            self._is_repaired(device)

    @staticmethod
    def _is_repaired(device: Device) -> None:
        device.truth.unseen += device.removed
        device.truth.doubtful += 2
        device.tampered = device.removed = device.noticed = False

    def _owners(self, device: Device) -> set[int] | None:
        match device.open_to:
            case OpenTo.SERVICE:
                return set()
            case Group(group):
                return {group}
            case Container(name):
                groups = {self.group(name)} - {0} if self.has_pods else set[int]()
                if not groups and self.has_pods and not device.let_in:
                    return set()
                return groups or ({it for it in device.let_in if self._is_gone(it)} if self.has_pods else None)
            case _:
                return None

    def learn(self, numbers: dict[str, frozenset[DeviceNumber]] | None = None) -> None:
        """The inventory was read."""
        known = {uuid: device.numbers for uuid, device in self.devices.items()} if numbers is None else numbers
        before = {uuid: device.numbers for uuid, device in self.devices.items()}
        self._learned_last = known
        with self._asked():
            self.guard.rules.learn(known)
        for uuid, device in self.devices.items():
            device.numbers = known.get(uuid, frozenset())
            self._learned(uuid, device, changed=before[uuid] != device.numbers)

    def _learned(self, uuid: str, device: Device, *, changed: bool) -> None:
        guarded = bool(device.numbers) and self.read_terms.fenced
        if device.guarded and (changed or not guarded):
            self._blur(device)
            device.truth.unseen += not device.is_shaky  # otherwise the kernel may have kept its rule
            device.truth.doubtful += 2 * len(WHOLE[uuid]) + 2
            device.let_in = set()
            if device.proof is not None:
                device.proof.doubted = True
                device.proof.ended |= changed and bool(device.numbers)
        if changed and device.proof is not None:
            device.proof.doubted = True
        begins = guarded and (changed or not device.guarded)
        device.guarded = guarded
        if begins:
            device.is_shaky |= device.tampered
            self._follow(uuid)

    def renew(self) -> None:
        """A round of the service."""
        failed, began = self.failed, self.now
        with self._asked():
            self.guard.rules.renew()
        for uuid, device in self.devices.items():
            self._learned(uuid, device, changed=False)
            self._follow(uuid)
        self._stood_again()
        for device in self.devices.values():
            device.is_shaky &= self.failed != failed
            assert device.is_shaky or not (device.guarded and device.noticed), "a changed rule is not written again"
        if self.now == began and not any(device.is_shaky for device in self.devices.values()):
            for uuid, device in self.devices.items():
                wanted = device.guarded and device.refuse and not device.to_all
                assert device.tampered or self.guard.rules.keeps_out(uuid) is wanted, (uuid, wanted)

    @property
    def attached(self) -> bool:
        """Whether the kernel asks the program."""
        return bool(self.kernel._attached)

    def _stood_again(self) -> None:
        if self.gap and self.attached:
            self.gap = False
            for device in self.devices.values():
                device.truth.unseen += device.guarded
                device.truth.doubtful += len(device.numbers)

    def changed(self, uuid: str, open_to: OpenTo | Container | Group) -> None:
        """A row is in the ledger."""
        self.devices[uuid].is_awaited &= self.devices[uuid].open_to == open_to
        self.devices[uuid].open_to = open_to
        with self._asked(uuid):
            self.guard.rules.changed(uuid, open_to)
        self._follow(uuid)

    def set_policy(self, *, refuse: bool, fenced: bool, exempt: bool) -> None:
        """The policy is another one from the next reading on."""
        self.terms = replace(self.terms, refuse=refuse and self.has_pods, fenced=fenced)
        self.exempt = {self.group("unit"), self.group("job")} if exempt else set()

    def proven(self, uuid: str, name: str) -> None:
        """The device was proven clean at the count that was told last."""
        device = self.devices[uuid]
        if device.reported is None or device.missed or not device.guarded or device.let_in or device.to_all:
            return
        uses, at = device.reported
        with self._asked(uuid):
            self.guard.count.proven(uuid, name, uses)
        device.proof = Proof(name, replace(at), doubted=device.is_shaky)

    # -- who opens

    def opens(self, actor: int, uuid: str, *, ends: bool = False, times: int = 1, again: bool = False) -> None:
        """Somebody opens a device, and may end at once: then a bystander may get the number of the process."""
        name, command = ACTORS[actor]
        if name not in self._groups or (name == "pod-a/deep" and "pod-a" not in self._groups):
            return
        path = self._groups[name]
        known = next((it for it, _ in self.running.values() if (it.groups, it.command) == (path, command)), None)
        if known is None or not again:
            self._next_pid += 1
            known = Process(self._next_pid, path, command)
            if command == "worker":
                self.admitted.add(known.pid)
                self.guard.rules.admit_process(known.pid)
        self.running.setdefault(known.pid, (known, self.now - 0.1))
        if command == "tool":
            self.ours.add(known.pid)
        is_looked_up = not ends and times == 1 and known.pid not in self._reused
        for number in sorted(WHOLE[uuid] | self.devices[uuid].numbers, key=str)[: 1 + (known.pid % 2)]:
            for _ in range(times):
                self._opens(self.devices[uuid], number, known, ignored=is_looked_up)
        if ends:
            del self.running[known.pid]
            self.guard.rules.dismiss_process(known.pid)
            self.admitted.discard(known.pid)
            if times == 1 and again:
                self.running[known.pid] = Process(known.pid, self._groups["unit"], BYSTANDER), self.now + 0.1
                self._reused.add(known.pid)  # who had the number may be judged for a second more

    def _opens(self, device: Device, number: DeviceNumber, process: Process, *, ignored: bool) -> None:
        keeps_out = self.guard.rules.keeps_out(next(uuid for uuid, it in self.devices.items() if it is device))
        lasts = self._lease() > 0
        passed = self.kernel.opens(number, process)
        if number not in device.numbers:
            return
        groups = set(process.groups)
        is_owner = bool(groups & device.let_in)
        is_service = self.group("service") in groups
        device.refusals += not passed
        owner = self.group(device.open_to.name) if isinstance(device.open_to, Container) else 0
        device.others += passed and not is_owner and not is_service and owner not in groups
        is_free = is_owner or is_service or bool(groups & device.exempt)
        is_changed = device.tampered and number == min(device.numbers, key=str)
        stands = device.guarded and self.attached and not is_changed
        if keeps_out and self.attached and not is_changed and not is_free:
            assert not passed, f"{process} has opened what is kept from it"
        if not device.is_shaky and not is_changed:
            wanted = not stands or is_free or not device.refuse or device.to_all or not lasts
            assert passed is wanted, f"{process}: {'opened' if passed else 'refused'}; {device}"
        if not passed or (is_owner and not device.is_shaky) or process.pid in self.admitted:
            return
        if is_service and not self.knows_processes and not is_changed:
            device.truth.doubtful += device.is_shaky or not stands
            return
        is_ignored = process.command == BYSTANDER or (is_service and process.pid in self.ours)
        if (device.is_shaky or is_changed) and (is_owner or is_ignored):
            device.truth.doubtful += 1
        elif not stands or device.is_shaky:
            device.truth.unseen += 1
            device.truth.doubtful += 1
        elif is_ignored:
            device.truth.doubtful += not ignored
        else:
            device.truth.counted += 1

    def _lease(self) -> float:
        until = int.from_bytes(self.fence._lease.get(bytes(4)) or b"", "little")
        return until / 1e9 - self.now

    # -- what the guard tells

    def read_uses(self, uuid: str) -> None:
        """A use counter is asked."""
        device = self.devices[uuid]
        waited, before, had_failed = self._waiting(), self._uses_in_between, bool(self.guard.rules._rule(uuid).failed)
        answered_old = self._old_answers
        with self._asked():
            said = self.guard.count.read(uuid)
        self._read_by(waited)
        if had_failed and isinstance(said, Counted):  # the rule was written again, for whom it is now
            self._follow(uuid)
        if device.guarded:
            self._see_rule(device)
        self._stood_again()
        is_exact = (self._uses_in_between, self._old_answers) == (before, answered_old)
        device.missed = isinstance(said, Missed) or not is_exact
        if isinstance(said, Missed):
            assert device.is_shaky or device.tampered, said
            self._blur(device)
            device.truth.doubtful += 2
            device.is_shaky, device.noticed = True, said.why.startswith("somebody else has changed the rule")
            return
        if said is None:
            assert device.is_shaky or not device.guarded
            return
        assert isinstance(said, Counted)
        assert device.guarded
        assert said.fence is not None
        if said.fence.counter != device.least[0]:  # its numbers are others: that is told as a use
            device.reported = None
        else:
            assert said.uses >= device.least[1], "a count has become smaller"
        device.least = said.fence.counter, said.uses
        if self._old_answers != answered_old:  # what has happened since is in the next count
            return
        if device.tampered:
            assert device.is_shaky, "a rule that somebody changed was not missed"
            self._is_repaired(device)
        if device.reported is not None and self._uses_in_between == before:
            self._check(uuid, said.uses - device.reported[0], device.truth.less(device.reported[1]))
        if self._uses_in_between == before:  # else it is in this count, or in the next one
            device.reported = said.uses, replace(device.truth)

    def read(self, uuid: str) -> None:
        """The fence is read, as for a grant or a release."""
        device = self.devices[uuid]
        others, refusals = device.others, device.refusals
        with self._asked(uuid):
            answer = self.guard.count.read(uuid)
        if isinstance(answer, Missed) and answer.why.startswith("somebody else has changed the rule"):
            self._blur(device)  # as when a use counter misses something
            device.truth.doubtful += 2
            device.is_shaky = device.noticed = True
        reading = answer.fence if isinstance(answer, Counted) else None
        if device.read is not None:
            before, had_others, had_refusals = device.read
            said = between(before, reading, open_to_all=device.was_to_all)
            if said.mode is not FenceMode.OFF and not said.flaws:
                seen = said.let_through + said.ignored
                assert seen > 0 or others <= had_others, f"{uuid}: {others - had_others} opened it unseen"
                assert said.refused <= device.refusals - had_refusals, f"{uuid}: {said.refused} refusals were told"
        device.read, device.was_to_all = (reading, device.others, refusals), device.to_all

    def read_uses_beside(self, actor: int, uuid: str) -> None:
        """When a use counter has read the attempts, and has not counted yet, a bystander opens the device."""
        attempts, real = self.fence.attempts, self.fence.attempts.new

        def new() -> Iterator[Attempt]:
            yield from real()
            attempts.new = real  # type: ignore[method-assign] # for one reading
            order, self._order = self._order, lambda _command: None
            self.opens(actor, uuid)
            self._order = order

        attempts.new = new  # type: ignore[method-assign] # for one reading
        try:
            self.read_uses(uuid)
        finally:
            attempts.new = real  # type: ignore[method-assign] # for one reading

    @staticmethod
    def _check(uuid: str, more: int, since: Truth) -> None:
        least, most = since.counted + (since.unseen > 0), since.counted + since.unseen + since.doubtful
        assert least <= more <= most, f"{uuid}: {more} uses were told, {least} to {most} are true"

    def reads(self) -> None:
        """The thread of the guard reads the attempts."""
        waited, looked_up = self._waiting(), set[str]()
        with self._asked(), suppress(OSError):  # it goes on
            with self.guard._reader.judging:
                self.guard._reader.judge()
            while self.guard._reader._refused:
                looked_up.add(self.guard._reader._refused[0][0])
                self.guard._reader.look_up_refused()
        self._read_by(waited)
        for uuid in looked_up:
            self._follow(uuid)

    def _waiting(self) -> list[Attempt]:
        """The attempts that wait, without reading them."""
        attempts, place = self.fence.attempts, bytes(self.fence.attempts._read[:8])
        found = list(Attempts.new(attempts))
        attempts._read[:8] = place
        return found

    def _read_by(self, waited: list[Attempt]) -> None:
        """Of these attempts, and of those in between, the guard has read those that do not wait any more."""
        waiting = self._waiting()
        read = {it.device for it in waited if it.refused and it not in waiting}
        read |= self._refused - {it.device for it in waiting}
        for uuid, device in self.devices.items():
            if read & device.numbers:
                self._follow(uuid)
        self._refused.clear()

    # -- others meddle, and time passes

    def detach(self) -> None:
        """Root takes the fence away."""
        self.gap |= fence.take_down(self.root)
        for device in self.devices.values():  # the next life finds nothing
            if device.proof is not None:
                device.proof.doubted = True

    def tamper(self, uuid: str, *, remove: bool) -> None:
        """Root changes a rule."""
        device = self.devices[uuid]
        if not device.guarded or device.removed:
            return
        rules, key = self.fence._rules, fence._key(min(device.numbers, key=str))
        if remove:
            rules.remove(key)
        else:
            rules.put(key, program.RULE.pack(not device.to_all, device.refuse))
        device.tampered, device.removed = True, remove

    def forgets_service(self) -> None:
        """The processes of the service end. Who has ended before it was looked up is not ignored."""
        for attempt in self._waiting():
            for device in self.devices.values():
                device.truth.doubtful += attempt.device in device.numbers and attempt.pid in self.ours
        for pid in self.admitted | self.ours:
            self.running.pop(pid, None)

    def disturb(self, at: int, does: Callable[[], None]) -> None:
        """At this call from now on the kernel does something, once."""
        left = at

        def before(_command: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._order = lambda _command: None
                does()

        self._order = before

    def somebody_opens(self) -> None:
        """A process to which nothing is open asks for all devices, and ends."""
        process = Process(self._next_pid + 1, self._groups["foreign"])
        self._next_pid += 1
        for uuid, device in self.devices.items():
            for number in self._learned_last.get(uuid, ()):
                keeps_out = self.guard.rules.keeps_out(uuid) and not device.tampered and self.attached
                passed = self.kernel.opens(number, process)
                self._refused |= set() if passed else {number}
                assert not (keeps_out and passed), "it has opened what is kept from it"
                device.truth.unseen += passed
                device.truth.doubtful += passed
                device.others, device.refusals = device.others + passed, device.refusals + (not passed)
        self._uses_in_between += 1

    def bystander_opens(self) -> None:
        """A bystander opens all devices, and stays: each of these attempts may be told before it is ignored."""
        self._next_pid += 1
        self.now += 0.01
        process = Process(self._next_pid, self._groups["foreign"], BYSTANDER)
        self.running[process.pid] = process, self.now - 0.01
        for uuid, device in self.devices.items():
            for number in self._learned_last.get(uuid, ()):
                passed = self.kernel.opens(number, process)
                self._refused |= set() if passed else {number}
                device.truth.doubtful += passed
                device.others, device.refusals = device.others + passed, device.refusals + (not passed)
        self._uses_in_between += 1

    def is_late(self) -> None:
        """The kernel answers after the end of each lease."""
        self.now += LEASE + 1

    def answers_old(self) -> None:
        """The kernel says what was true when it was asked before: of a count, of a rule, of the program."""
        self.kernel.is_old = True
        self._old_answers += 1
        for device in self.devices.values():  # what comes after may be told once more
            device.truth.doubtful += device.truth.counted - (device.reported[1].counted if device.reported else 0)

    def is_killed(self) -> None:
        """The service is killed."""
        self.failed += 1
        raise KilledError

    def says_no(self) -> None:
        """The kernel refuses a call."""
        self.failed += 1
        raise OSError(12, os.strerror(12))
