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
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scrubber.core.model import DeviceNumber
from scrubber.fence import kernel, program
from scrubber.fence.instructions import assemble
from scrubber.fence.kernel import Attached, Map
from scrubber.fence.questions import Questions

NAME = "autoclave_fence"  # of the program in the kernel
_FIRST_INDEX = struct.pack("<I", 0)
_TIME = struct.Struct("<Q")
_PRESENT = bytes(4)


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

    excused: int = 0  # questions that were no uses
    gaps: int = 0  # what the kernel did not count: each may be a use
    proof: int = 0  # names the last proof ...
    uses: int = 0  # ... and how many uses there were by then


class Fence:
    """The fence below one control group: for the whole node it is the root of all groups."""

    def __init__(self, group: Path) -> None:
        """Find the fence, or build it. FenceError says why it cannot stand."""
        with ExitStack() as closing:
            self._group, standing = closing.enter_context(_found(group))
            self._build(standing, closing)
            self._closing = closing.pop_all()

    def _build(self, standing: Attached | None, closing: ExitStack) -> None:
        """Take the maps of the fence that stands, and attach the program of this version in its place if it differs."""
        descriptors = _maps_of(standing, closing) if standing is not None else {}
        for name in program.MAPS.keys() - descriptors.keys():
            shape = program.MAPS[name]
            descriptors[name] = kernel.make_map(name, shape.kind, shape.key, shape.value, shape.entries)
            closing.callback(os.close, descriptors[name])
        maps = _shaped(descriptors)
        self._rules, self._members = maps[program.RULES], maps[program.MEMBERSHIP]
        self._counters, self._lease, self._kept = maps[program.COUNTERS], maps[program.LEASE], maps[program.PROOFS]
        self._open_to = _by_device(self._members)
        self._written: dict[bytes, bytes] = {}  # by device: its rule in the kernel, once this life has written it
        self.questions = Questions(descriptors[program.QUESTIONS])
        closing.callback(self.questions.close)
        self._loaded = loaded = kernel.load(NAME, assemble(program.program(), descriptors))
        closing.callback(os.close, loaded)
        kernel.bind(loaded, descriptors[program.PROOFS])
        described = kernel.describe(loaded)
        if standing is None:
            kernel.attach(self._group, loaded)
        elif described.tag != standing.tag or set(described.maps) != set(standing.maps):
            kernel.replace(self._group, loaded, standing.id)
        else:
            described = standing
        self._standing = described

    def stands(self) -> bool:
        """Whether the kernel still runs the program, so that nothing was missed."""
        return any(it.id == self._standing.id for it in kernel.attached(self._group))

    def stand_again(self) -> None:
        """Attach the program once more, after somebody has taken it away. What it did not count is a gap."""
        for number in self.numbers():
            self.miss(number)
        kernel.attach(self._group, self._loaded)
        self._standing = kernel.describe(self._loaded)

    def groups(self, number: DeviceNumber) -> frozenset[int]:
        """The control groups that may open a device, or could when not everybody might."""
        return frozenset(self._open_to[_key(number)])

    def opens_to_all(self, number: DeviceNumber) -> bool:
        """Whether everybody may open a device, also by the rule of an earlier life of the service."""
        rule = self._rules.get(_key(number))
        return rule is None or bool(program.RULE.unpack(rule)[0])

    def set(self, number: DeviceNumber, open_to: Collection[int] | None, *, refuse: bool) -> None:
        """Let these control groups open a device, and what is below them; None: everybody.

        Others are counted, and refused if ``refuse``. While everybody may, groups that could before stay uncounted.
        """
        key, rule = _key(number), program.RULE.pack(open_to is None, refuse)
        now = self._open_to[key]
        wanted = frozenset(now if open_to is None else open_to)
        if now == wanted and self._written.get(key) == rule:
            return
        if self._counters.get(key) is None:
            self._counters.put(key, program.COUNTS.pack(0, 0))
        for group in now - wanted:
            self._members.remove(key + _TIME.pack(group))
            now.remove(group)
        for group in wanted - now:
            self._members.put(key + _TIME.pack(group), _PRESENT)
            now.add(group)
        self._written.pop(key, None)  # until the kernel has taken this one
        self._rules.put(key, rule)
        self._written[key] = rule

    def numbers(self) -> frozenset[DeviceNumber]:
        """The devices that are fenced, also those of an earlier life of the service."""
        return frozenset(map(program.number, self._rules))

    def forget(self, numbers: Iterable[DeviceNumber]) -> None:
        """Fence these devices no longer. Their counts stay, and what is not counted from now on is a gap."""
        for number in numbers:
            self.miss(number)
            key = _key(number)
            self._written.pop(key, None)
            self._rules.remove(key)
            for group in self._open_to.pop(key, ()):
                self._members.remove(key + _TIME.pack(group))

    def miss(self, number: DeviceNumber) -> None:
        """Somebody may have the device open who is not counted: a gap."""
        kept = self.kept(number)
        self.keep(number, replace(kept, gaps=kept.gaps + 1))

    def counts(self, number: DeviceNumber) -> Counts | None:
        """What was counted of a device while it was fenced; None if it never was."""
        value = self._counters.get(_key(number))
        return None if value is None else _counts(value)

    def uses(self, number: DeviceNumber) -> int:
        """How often others have used a device, as far as it is known by now: not who was refused or is excused."""
        counts, kept = self.counts(number) or Counts(0, 0), self.kept(number)
        return counts.asked - counts.refused + kept.gaps - kept.excused

    def kept(self, number: DeviceNumber) -> KeptInKernel:
        """What was kept of a device since the fence was built; nothing if nothing was."""
        value = self._kept.get(_key(number))
        return KeptInKernel() if value is None else KeptInKernel(*program.PROOF.unpack(value))

    def keep(self, number: DeviceNumber, kept: KeptInKernel) -> None:
        """Keep this of a device. It is lost with the fence, so at the latest with a reboot."""
        self._kept.put(_key(number), program.PROOF.pack(kept.excused, kept.gaps, kept.proof, kept.uses))

    def refuse_for(self, seconds: float) -> None:
        """Renew the lease: refuse from now on for so long, unless it is renewed again."""
        until = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)
        self._lease.put(_FIRST_INDEX, _TIME.pack(max(until, 0)))

    def close(self) -> None:
        """Let go of the fence. It stands on."""
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
            yield opened, next((it for it in kernel.attached(opened) if it.name == NAME), None)
        except kernel.UnavailableError as error:
            raise FenceError(f"cannot fence the GPUs: {error}") from error
        except OSError as error:
            raise FenceError(f"cannot fence the GPUs: {_lacks(error)}") from error


def _lacks(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "loading its program takes the capability CAP_SYS_ADMIN, and a kernel that is not locked down"
    if error.errno == errno.ENOSYS:
        return "this kernel has no bpf(2)"
    return f"this kernel refuses its program, which takes Linux 6.1 or newer: {error.strerror}"


@dataclass(frozen=True, slots=True)
class FenceRule:
    """What the fence does with a device."""

    device: DeviceNumber
    open_to: frozenset[int] | None  # control groups; None: all
    refuse: bool
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
            raise FenceError("the fence that stands is of another version of autoclave")
        maps = _shaped(descriptors)
        open_to = _by_device(maps[program.MEMBERSHIP])
        (until,) = _TIME.unpack(maps[program.LEASE].get(_FIRST_INDEX) or bytes(8))
        left = (until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return Inspected(tuple(_rule(key, maps, open_to[key]) for key in maps[program.RULES]), max(left, 0.0))


def _rule(key: bytes, maps: Mapping[str, Map], groups: Iterable[int]) -> FenceRule:
    to_all, refuse = program.RULE.unpack(maps[program.RULES].get(key) or bytes(program.RULE.size))
    counts = _counts(maps[program.COUNTERS].get(key) or bytes(program.COUNTS.size))
    return FenceRule(program.number(key), None if to_all else frozenset(groups), bool(refuse), counts)


def _key(number: DeviceNumber) -> bytes:
    """The key of a device number in the maps; ``program.number`` is the way back."""
    return struct.pack("<II", number.kind.value << 16 | number.major, number.minor)


def _by_device(members: Iterable[bytes]) -> defaultdict[bytes, set[int]]:
    """The control groups that may open a device, by its key."""
    groups = defaultdict[bytes, set[int]](set)
    for member in members:
        groups[member[:8]].add(_TIME.unpack(member[8:])[0])
    return groups


def _counts(value: bytes) -> Counts:
    passed, refused = program.COUNTS.unpack(value)
    return Counts(passed + refused, refused)


def take_down(group: Path) -> bool:
    """Remove the fence below a control group. Returns whether one stood there. FenceError says why it cannot tell."""
    with _found(group) as (opened, standing):
        if standing is None:
            return False
        kernel.detach(opened, standing.id)
        return True


def root(mounts: Path = Path("/proc/self/mountinfo")) -> Path:
    """The root of all control groups of version 2; FenceError if this node has none, or this container sees none."""
    try:
        place = kernel.unified_root(mounts.read_text(errors="surrogateescape"))
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
        descriptor = kernel.open_map(number)
        closing.callback(os.close, descriptor)
        maps[kernel.map_name(descriptor)] = descriptor
    return maps
