"""The fence on a node: which device numbers it guards, to whom each is open, and how often others asked.

It stands in the kernel and outlives this process. The next one finds it again, with its rules and its counts. What it
refuses it refuses for the time of a lease only: a node whose service is gone is not kept from its GPUs.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from scrubber.core.model import DeviceNumber
from scrubber.fence.kernel import bpf, program
from scrubber.fence.kernel.attempts import Attempts
from scrubber.fence.kernel.bpf import Attached, Map
from scrubber.fence.kernel.instructions import assemble

NAME = "autoclave_fence"  # of the program in the kernel
_FIRST_INDEX = struct.pack("<I", 0)
_TIME = struct.Struct("<Q")
_PROCESS = struct.Struct("<I")


class FenceError(Exception):
    """The fence cannot stand here. The message says what is missing, for operators."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How often others than those to whom a device is open have asked for it. One open asks more than once."""

    asked: int
    refused: int


@dataclass(frozen=True, slots=True)
class KeptInKernel:
    """What the service keeps in the kernel about a device, for a later run of itself."""

    ignored: int = 0  # attempts that were no uses
    gaps: int = 0  # what the kernel did not count: each may be a use
    proof: int = 0  # names the last proof ...
    uses: int = 0  # ... and how many uses there were by then


class Read(NamedTuple):
    """What the kernel and the service have counted of others."""

    passed: int
    refused: int
    ignored: int
    gaps: int


class Fence:
    """The fence below one control group: for the whole node it is the root of all groups."""

    def __init__(self, group: Path) -> None:
        """Find the fence, or build it. FenceError says why it cannot stand."""
        self._keeps = False  # whether this service is the one that keeps it
        with ExitStack() as closing:
            self._group, standing = closing.enter_context(_found(group))
            self._build(standing, closing)
            self._closing = closing.pop_all()

    def _build(self, standing: Attached | None, closing: ExitStack) -> None:
        """Take the maps of the fence that stands, and attach the program of this version in its place if it differs."""
        descriptors = _maps_of(standing, closing) if standing is not None else {}
        for name in program.MAPS.keys() - descriptors.keys():
            shape = program.MAPS[name]
            descriptors[name] = bpf.make_map(name, shape.kind, shape.key, shape.value, shape.entries)
            closing.callback(os.close, descriptors[name])
        maps = _shaped(descriptors)
        self._rules, self._members = maps[program.RULES], maps[program.MEMBERSHIP]
        self._counters, self._lease, self._kept = maps[program.COUNTERS], maps[program.LEASE], maps[program.PROOFS]
        self._processes, self._keeper = maps[program.PROCESSES], maps[program.KEEPER]
        self._open_to = _by_device(self._members.items())
        self._written: dict[bytes, bytes] = {}  # by device: its rule in the kernel, once this life has written it
        self.counter = bpf.map_id(descriptors[program.COUNTERS])  # names what counts, in this boot
        self.attempts = Attempts(descriptors[program.ATTEMPTS])
        closing.callback(self.attempts.close)
        self._descriptors = descriptors
        self._standing = self._attach(standing)
        self._changes = 0  # of the programs of the control group, as the kernel counts them
        self._in_order()

    def _attach(self, standing: Attached | None = None) -> Attached:
        """Attach the program, in the place of the one that stands if that is another.

        Nobody holds it then but the control group, so that it is gone as soon as somebody detaches it.
        """
        with ExitStack() as closing:
            loaded = bpf.load(NAME, assemble(program.program(), self._descriptors))
            closing.callback(os.close, loaded)
            for unused in program.UNUSED:
                bpf.bind(loaded, self._descriptors[unused])
            described = bpf.describe(loaded)
            if standing is None:
                bpf.attach(self._group, loaded)
            elif described.tag != standing.tag or set(described.maps) != set(standing.maps):
                bpf.replace(self._group, loaded, standing.id)
            else:
                return standing
            return described

    def stand(self) -> str:
        """Have the program be the last of its control group, which no other one can then overrule.

        Returns why it may have missed somebody since the last call; that is a gap of each device.
        """
        why = self._disturbed()
        if not why:
            return ""
        for number in self.numbers():
            self.miss(number)
        ids = self._in_order()
        if ids[-1:] != (self._standing.id,):
            before, self._standing = self._standing.id, self._attach()
            if before in ids:
                bpf.detach(self._group, before)
            self._in_order()
        return why

    def _disturbed(self) -> str:
        changes, ids = self._changes, self._in_order()
        if self._standing.id not in ids:
            return "somebody had taken the fence out of the kernel"
        if ids[-1] != self._standing.id:
            return "another program could let in whom the fence refuses"
        return "" if changes == self._changes else "somebody has changed the programs beside the fence"

    def _in_order(self) -> tuple[int, ...]:
        """The programs of the control group. Without the right to ask: this one, if it is attached."""
        try:
            ids, self._changes = bpf.in_order(self._group)
        except PermissionError:
            with suppress(FileNotFoundError), bpf.by_id(self._standing.id) as loaded:
                return (self._standing.id,) if bpf.is_attached(self._group, loaded) else ()
            return ()
        return ids

    def keep_alone(self, process: int, started: int, *, runs: Callable[[int, int], bool]) -> None:
        """Be the one service that keeps this fence: two would take away each other's rules. FenceError: another is.

        ``process``, ``started``: of this service; ``runs`` tells whether one with such a start runs.
        """
        keeper, start = program.KEPT_BY.unpack(self._keeper.get(_FIRST_INDEX) or bytes(program.KEPT_BY.size))
        if keeper and keeper != process and runs(keeper, start):
            raise FenceError(
                f"cannot fence the GPUs: another scrub service, process {keeper}, keeps the fence of this node; "
                "one of the two must end, or have `fence: {mode: off}` in its policy"
            )
        self._keeper.put(_FIRST_INDEX, program.KEPT_BY.pack(process, started))
        self._keeps = True
        for other in [*self._processes]:
            if other != _PROCESS.pack(process):
                self._processes.remove(other)

    def admit_process(self, pid: int) -> None:
        """A process of the service may open each device from its control group, uncounted."""
        self._processes.put(_PROCESS.pack(pid), bytes(4))

    def dismiss_process(self, pid: int) -> None:
        """It may no longer: it has ended, and another one may get its number."""
        self._processes.remove(_PROCESS.pack(pid))

    def members(self, number: DeviceNumber) -> Mapping[int, int]:
        """The control groups that the rule of a device names, also those of before everybody might open it."""
        return self._open_to[_key(number)]

    def still_rules(self, numbers: Iterable[DeviceNumber]) -> bool:
        """Whether the kernel has the rules that this life has written, and lets in uncounted nobody else.

        If not, they are written with the next ones.
        """
        keys = [*map(_key, numbers)]
        changed = [key for key in keys if self._rules.get(key) != self._written.get(key, b"")]
        members = _by_device(self._members.items())
        changed += [key for key in keys if not _uncounted(members[key]) <= _uncounted(self._open_to[key])]
        for key in changed:
            self._written.pop(key, None)
            self._open_to[key] = members[key]
        return not changed

    def set(
        self,
        number: DeviceNumber,
        open_to: Collection[int] | None,
        *,
        refuse: bool,
        held: Collection[int] = (),
        exempt: Collection[int] = (),
        service: int | None = None,
    ) -> bool:
        """Let these control groups open a device, and what is below them; None: everybody.

        Returns whether nobody has counted for a while up to now, as after ``forget``. That is a gap.

        Others are counted, and refused if ``refuse`` or if they are ``held``. Those who are ``exempt`` are counted, and
        never refused, also below a group that is held. So is whoever is in the group of the ``service`` and is no
        process of it. While everybody may open the device, groups that could before stay members.
        """
        key, rule = _key(number), program.RULE.pack(open_to is None, refuse)
        now = self._open_to[key]
        stay = dict.fromkeys(open_to, program.OWNER) if open_to is not None else now  # an exempt owner as an owner
        wanted = dict.fromkeys(held, program.HELD) | dict.fromkeys(exempt, program.EXEMPT) | stay
        if service is not None:
            wanted[service] = program.SERVICE
        if now == wanted and self._written.get(key) == rule:
            return False
        uncounted = self._counters.get(key) is not None and self._rules.get(key) is None
        if self._counters.get(key) is None:
            self._kept.remove(key)  # of a layout whose counts are not read: they are no later ones of its proof
            self._counters.put(key, program.COUNTS.pack(0, 0))
        elif uncounted:
            self.miss(number)
        for group in now.keys() - wanted.keys():
            self._members.remove(key + _TIME.pack(group))
            del now[group]
        for group, kind in wanted.items():
            if now.get(group) != kind:
                self._members.put(key + _TIME.pack(group), program.MEMBER.pack(kind))
                now[group] = kind
        self._written.pop(key, None)  # until the kernel has taken this one
        self._rules.put(key, rule)
        self._written[key] = rule
        return uncounted

    def numbers(self) -> frozenset[DeviceNumber]:
        """The devices that are fenced, also those of an earlier life of the service."""
        return frozenset(map(program.number, self._rules))

    def forget(self, numbers: Iterable[DeviceNumber]) -> None:
        """Fence these devices no longer. Their counts stay. A gap begins, which ``set`` notes."""
        for number in numbers:
            key = _key(number)
            self._written.pop(key, None)
            self._rules.remove(key)
            for group in [*self._open_to[key]]:  # one that the kernel keeps is removed by the next rule
                self._members.remove(key + _TIME.pack(group))
                del self._open_to[key][group]

    def miss(self, number: DeviceNumber) -> None:
        """Somebody may have the device open who is not counted: a gap."""
        kept = self.kept(number)
        self.keep(number, replace(kept, gaps=kept.gaps + 1))

    def counts(self, number: DeviceNumber) -> Counts | None:
        """What was counted of a device while it was fenced; None if it never was."""
        value = self._counters.get(_key(number))
        return None if value is None else _counts(value)

    def read(self, numbers: Iterable[DeviceNumber]) -> Read:
        """What was counted of these numbers together, and what the service keeps beside that."""
        keys = [*map(_key, numbers)]
        counts = [program.COUNTS.unpack(self._counters.get(key) or bytes(program.COUNTS.size)) for key in keys]
        kept = [program.PROOF.unpack(self._kept.get(key) or bytes(program.PROOF.size)) for key in keys]
        passed, refused = (sum(each) for each in zip(*counts, strict=True))
        ignored, gaps, _, _ = (sum(each) for each in zip(*kept, strict=True))
        return Read(passed, refused, ignored, gaps)

    def kept(self, number: DeviceNumber) -> KeptInKernel:
        """What was kept of a device since the fence was built; nothing if nothing was."""
        value = self._kept.get(_key(number))
        return KeptInKernel() if value is None else KeptInKernel(*program.PROOF.unpack(value))

    def keep(self, number: DeviceNumber, kept: KeptInKernel) -> None:
        """Keep this of a device. It is lost with the fence, so at the latest with a reboot."""
        self._kept.put(_key(number), program.PROOF.pack(kept.ignored, kept.gaps, kept.proof, kept.uses))

    def refuse_for(self, seconds: float) -> None:
        """Renew the lease: refuse from now on for so long, unless it is renewed again."""
        until = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)
        self._lease.put(_FIRST_INDEX, _TIME.pack(max(until, 0)))

    def close(self) -> None:
        """Let go of the fence. It stands on, and another service may keep it."""
        if self._keeps:
            self._keeps = False
            self._keeper.put(_FIRST_INDEX, bytes(program.KEPT_BY.size))
        self._closing.close()


@contextmanager
def _found(group: Path) -> Iterator[tuple[int, Attached | None]]:
    """The control group, open, and the program of a fence that stands there. FenceError says why it cannot tell."""
    with ExitStack() as closing:
        try:
            opened = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FenceError(f"cannot fence the GPUs: cannot open the group {group}: {error.strerror}") from error
        closing.callback(os.close, opened)
        try:
            yield opened, next(iter(bpf.attached(opened, NAME)), None)
        except bpf.UnavailableError as error:
            raise FenceError(f"cannot fence the GPUs: {error}") from error
        except OSError as error:
            raise FenceError(f"cannot fence the GPUs: {_lacks(error)}") from error


def _lacks(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return "this kernel has no bpf(2)"
    refused = f"Linux {os.uname().release} answers {error.filename or 'bpf(2)'} with: {error.strerror}"
    if error.errno == errno.EPERM:
        return f"{refused}; it takes the capability CAP_SYS_ADMIN, and a kernel that is not locked down"
    return f"{refused}; it takes Linux 6.1 or newer"


@dataclass(frozen=True, slots=True)
class FenceRule:
    """What the fence does with a device."""

    device: DeviceNumber
    open_to: frozenset[int] | None  # control groups, also those that are exempt; None: all
    held: frozenset[int]  # control groups: who is in them is refused
    refuse: bool  # everybody else too
    counts: Counts


@dataclass(frozen=True, slots=True)
class Inspected:
    """What stands in the kernel."""

    rules: tuple[FenceRule, ...]
    lease: float  # seconds for which others are refused if nobody renews it


def inspect(group: Path) -> Inspected | None:
    """The fence below a control group, None if none stands. FenceError says why it cannot tell."""
    with _found(group) as (_, standing), ExitStack() as closing:
        if standing is None:
            return None
        descriptors = _maps_of(standing, closing)
        if program.MAPS.keys() - descriptors.keys():
            raise FenceError("the present fence was put up by another version of Autoclave")
        maps = _shaped(descriptors)
        open_to = _by_device(maps[program.MEMBERSHIP].items())
        (until,) = _TIME.unpack(maps[program.LEASE].get(_FIRST_INDEX) or bytes(8))
        left = (until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return Inspected(tuple(_rule(key, maps, open_to[key]) for key in maps[program.RULES]), max(left, 0.0))


def _rule(key: bytes, maps: Mapping[str, Map], members: Mapping[int, int]) -> FenceRule:
    to_all, refuse = program.RULE.unpack(maps[program.RULES].get(key) or bytes(program.RULE.size))
    counts = _counts(maps[program.COUNTERS].get(key) or bytes(program.COUNTS.size))
    held = frozenset(group for group, kind in members.items() if kind == program.HELD)
    open_to = None if to_all else frozenset(members.keys() - held)
    return FenceRule(program.number(key), open_to, frozenset() if to_all else held, bool(refuse), counts)


def _key(number: DeviceNumber) -> bytes:
    """The key of a device number in the maps; ``program.number`` is the way back."""
    return struct.pack("<II", number.kind.value << 16 | number.major, number.minor)


def _by_device(members: Mapping[bytes, bytes]) -> defaultdict[bytes, dict[int, int]]:
    """The control groups that the rule of a device names, by its key, with what each is."""
    groups = defaultdict[bytes, dict[int, int]](dict)
    for member, kind in members.items():
        groups[member[:8]][_TIME.unpack(member[8:])[0]] = program.MEMBER.unpack(kind)[0]
    return groups


def _uncounted(members: Mapping[int, int]) -> set[tuple[int, int]]:
    return {(group, kind) for group, kind in members.items() if kind in (program.OWNER, program.SERVICE)}


def _counts(value: bytes) -> Counts:
    passed, refused = program.COUNTS.unpack(value)
    return Counts(passed + refused, refused)


def _runs_not(_pid: int, _started: int) -> bool:
    return False


def admit(
    root: Path, group: int, *, processes: Collection[int] = (), runs: Callable[[int, int], bool] = _runs_not
) -> None:
    """Let a control group open each device of a fence that stands, until the next service sets its rules.

    What its programs open is counted, apart from these ``processes`` of a service that begins. The fence may be of an
    earlier version: the names of its maps end with the same words, and mean the same. ``runs``: as for
    ``Fence.keep_alone``; while another service keeps the fence, nobody is let in. FenceError says why the fence cannot
    be asked.
    """
    with _standing_maps(root) as found:
        if "keeper" in found:
            keeper = program.KEPT_BY.unpack(
                Map(found["keeper"], 4, program.KEPT_BY.size).get(_FIRST_INDEX) or bytes(16)
            )
            if keeper[0] and runs(*keeper):
                return
        for process in processes if "service" in found else ():
            Map(found["service"], 4, 4).put(_PROCESS.pack(process), bytes(4))
        kind = program.MEMBER.pack(program.SERVICE if processes else program.EXEMPT)
        for number in Map(found["rules"], 8, program.RULE.size) if {"rules", "members"} <= found.keys() else ():
            Map(found["members"], 16, program.MEMBER.size).put(number + _TIME.pack(group), kind)


def dismiss(root: Path, group: int) -> None:
    """Let in no longer whom ``admit`` has let in. FenceError says why the fence cannot be asked."""
    with _standing_maps(root) as found:
        members = Map(found["members"], 16, program.MEMBER.size) if "members" in found else None
        for member in members.items() if members is not None else ():
            if members is not None and member.endswith(_TIME.pack(group)):
                members.remove(member)


@contextmanager
def _standing_maps(root: Path) -> Iterator[dict[str, int]]:
    """The maps of the fence that stands, by the last word of their names; none if none stands."""
    with _found(root) as (_, standing), ExitStack() as closing:
        found = _maps_of(standing, closing) if standing is not None else {}
        yield {name.rpartition("_")[2]: descriptor for name, descriptor in found.items()}


def take_down(group: Path) -> bool:
    """Remove the fence below a control group. Returns whether one stood there. FenceError says why it cannot tell."""
    with _found(group) as (opened, standing):
        if standing is None:
            return False
        bpf.detach(opened, standing.id)
        return True


def root(mounts: Path = Path("/proc/self/mountinfo")) -> Path:
    """The root of all control groups of version 2; FenceError if this node has none, or this container sees none."""
    try:
        place = bpf.unified_root(mounts.read_text(errors="surrogateescape"))
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot read {mounts}: {error.strerror}") from error
    if place is None:
        raise FenceError("cannot fence the GPUs: no cgroup v2 with the root of the node is mounted here")
    return place


def _shaped(descriptors: Mapping[str, int]) -> dict[str, Map]:
    return {name: Map(descriptors[name], shape.key, shape.value) for name, shape in program.MAPS.items()}


def _maps_of(standing: Attached, closing: ExitStack) -> dict[str, int]:
    """The maps of the program that stands, by their names. A layout of another version has other names."""
    maps = {}
    for number in standing.maps:
        descriptor = bpf.open_map(number)
        closing.callback(os.close, descriptor)
        maps[bpf.map_name(descriptor)] = descriptor
    return maps
