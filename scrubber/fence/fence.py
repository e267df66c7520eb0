"""The fence on a node: which device numbers it guards, to whom each is open, and how often others asked.

It stands in the kernel and outlives this process. The next one finds it again, with its rules and its counts. What it
refuses it refuses for the time of a lease only: a node whose service is gone is not kept from its GPUs.
"""

from __future__ import annotations

import errno
import os
import struct
import time
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
class Kept:
    """What the service keeps in the kernel about a device, for a later run of itself."""

    excused: int = 0  # questions that were no uses
    gaps: int = 0  # times in which the kernel did not count: each may hide a use
    proof: int = 0  # names the last proof ...
    uses: int = 0  # ... and how many uses there were by then


class Fence:
    """The fence below one control group: for the whole node it is the root of all groups."""

    def __init__(self, group: Path) -> None:
        """Find the fence, or build it. FenceError says why it cannot stand."""
        with ExitStack() as closing:
            self._group = _opened(group)
            closing.callback(os.close, self._group)
            with _explained():
                self._found(closing)
            self._closing = closing.pop_all()

    def _found(self, closing: ExitStack) -> None:
        """Take the maps of the fence that stands, and attach the program of this version in its place if it differs."""
        standing = _ours(kernel.attached(self._group))
        descriptors = _maps_of(standing) if standing is not None else {}
        for name, shape in program.MAPS.items():
            if name not in descriptors:
                descriptors[name] = kernel.make_map(name, shape.kind, shape.key, shape.value, shape.entries)
            closing.callback(os.close, descriptors[name])
        maps = _shaped(descriptors)
        self._rules, self._members = maps[program.RULES], maps[program.MEMBERSHIP]
        self._counters, self._lease, self._kept = maps[program.COUNTERS], maps[program.LEASE], maps[program.PROOFS]
        self._open_to = dict[bytes, set[int]]()
        for key in self._members:
            self._open_to.setdefault(key[:8], set()).add(struct.unpack("<Q", key[8:])[0])
        self.questions = Questions(descriptors[program.QUESTIONS])
        closing.callback(self.questions.close)
        self._loaded = loaded = kernel.load(NAME, assemble(program.program(), descriptors))
        closing.callback(os.close, loaded)
        kernel.bind(loaded, descriptors[program.PROOFS])
        described = kernel.describe(loaded)
        if standing is None:
            kernel.attach(self._group, loaded)
        elif described.tag != standing.tag or set(described.maps) != set(standing.maps):
            before = kernel.open_program(standing.id)
            try:
                kernel.attach(self._group, loaded, instead_of=before)
            finally:
                os.close(before)
        else:
            described = standing
        self._standing = described

    def stands(self) -> bool:
        """Whether the kernel still runs the program, so that nothing was missed."""
        return any(it.id == self._standing.id for it in kernel.attached(self._group))

    def stand_again(self) -> None:
        """Attach the program once more, after somebody has taken it away. What it did not count is a gap."""
        for number in self.numbers():
            kept = self.kept(number)
            self.keep(number, replace(kept, gaps=kept.gaps + 1))
        kernel.attach(self._group, self._loaded)
        self._standing = kernel.describe(self._loaded)

    def set(self, number: DeviceNumber, open_to: Collection[int] | None, *, refuse: bool) -> None:
        """Let these control groups open a device, and what is below them; None: everybody.

        Others are counted, and refused if ``refuse``.
        """
        key, now = program.key(number), self._open_to.setdefault(program.key(number), set())
        if self._counters.get(key) is None:
            self._counters.put(key, program.COUNTS.pack(0, 0))
        wanted = set(open_to or ())
        for group in now - wanted:
            self._members.remove(key + _TIME.pack(group))
        for group in wanted - now:
            self._members.put(key + _TIME.pack(group), _PRESENT)
        self._open_to[key] = wanted
        self._rules.put(key, program.RULE.pack(open_to is None, refuse))

    def numbers(self) -> frozenset[DeviceNumber]:
        """The devices that are fenced, also those of an earlier life of the service."""
        return frozenset(map(program.number, self._rules))

    def forget(self, numbers: Iterable[DeviceNumber]) -> None:
        """Fence these devices no longer. Their counts stay, and what is not counted from now on is a gap."""
        for number in numbers:
            kept = self.kept(number)
            self.keep(number, replace(kept, gaps=kept.gaps + 1))
            self._rules.remove(program.key(number))
            for group in self._open_to.pop(program.key(number), set()):
                self._members.remove(program.key(number) + _TIME.pack(group))

    def counts(self, number: DeviceNumber) -> Counts | None:
        """What was counted of a device while it was fenced; None if it never was."""
        value = self._counters.get(program.key(number))
        return None if value is None else _counts(value)

    def kept(self, number: DeviceNumber) -> Kept:
        """What was kept of a device since the fence was built; nothing if nothing was."""
        value = self._kept.get(program.key(number))
        return Kept() if value is None else Kept(*program.PROOF.unpack(value))

    def keep(self, number: DeviceNumber, kept: Kept) -> None:
        """Keep this of a device. It is lost with the fence, so at the latest with a reboot."""
        self._kept.put(program.key(number), program.PROOF.pack(kept.excused, kept.gaps, kept.proof, kept.uses))

    def refuse_for(self, seconds: float) -> None:
        """Renew the lease: refuse from now on for so long, unless it is renewed again."""
        until = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)
        self._lease.put(_FIRST_INDEX, _TIME.pack(max(until, 0)))

    def close(self) -> None:
        """Let go of the fence. It stands on."""
        self._closing.close()


@contextmanager
def _explained() -> Iterator[None]:
    """An error of the kernel says what is missing."""
    try:
        yield
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
class Rule:
    """What the fence does with a device."""

    device: DeviceNumber
    open_to: frozenset[int] | None  # control groups; None: all
    refuse: bool
    counts: Counts


@dataclass(frozen=True, slots=True)
class Inspected:
    """What stands in the kernel."""

    rules: tuple[Rule, ...]
    lease: float  # seconds for which others are refused if nobody renews it


def inspect(group: Path) -> Inspected | None:
    """The fence below a control group, None if none stands. FenceError says why it cannot tell."""
    with ExitStack() as closing, _explained():
        opened = _opened(group)
        closing.callback(os.close, opened)
        standing = _ours(kernel.attached(opened))
        if standing is None:
            return None
        descriptors = _maps_of(standing)
        for descriptor in descriptors.values():
            closing.callback(os.close, descriptor)
        if program.MAPS.keys() - descriptors.keys():
            raise FenceError("the fence that stands is of another version of autoclave")
        maps = _shaped(descriptors)
        members = [*maps[program.MEMBERSHIP]]
        (until,) = _TIME.unpack(maps[program.LEASE].get(_FIRST_INDEX) or bytes(8))
        left = (until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return Inspected(tuple(_rule(key, maps, members) for key in maps[program.RULES]), max(left, 0.0))


def _rule(key: bytes, maps: Mapping[str, Map], members: Iterable[bytes]) -> Rule:
    to_all, refuse = program.RULE.unpack(maps[program.RULES].get(key) or bytes(program.RULE.size))
    groups = frozenset(_TIME.unpack(member[8:])[0] for member in members if member[:8] == key)
    counts = _counts(maps[program.COUNTERS].get(key) or bytes(program.COUNTS.size))
    return Rule(program.number(key), None if to_all else groups, bool(refuse), counts)


def _counts(value: bytes) -> Counts:
    passed, refused = program.COUNTS.unpack(value)
    return Counts(passed + refused, refused)


def take_down(group: Path) -> bool:
    """Remove the fence below a control group. Returns whether one stood there. FenceError says why it cannot tell."""
    with ExitStack() as closing, _explained():
        opened = _opened(group)
        closing.callback(os.close, opened)
        standing = _ours(kernel.attached(opened))
        if standing is None:
            return False
        descriptor = kernel.open_program(standing.id)
        closing.callback(os.close, descriptor)
        kernel.detach(opened, descriptor)
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


def _opened(group: Path) -> int:
    try:
        return os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot open the control group {group}: {error.strerror}") from error


def _ours(programs: Iterable[Attached]) -> Attached | None:
    return next((it for it in programs if it.name == NAME), None)


def _shaped(descriptors: Mapping[str, int]) -> dict[str, Map]:
    return {name: Map(descriptors[name], shape.key, shape.value) for name, shape in program.MAPS.items()}


def _maps_of(standing: Attached) -> dict[str, int]:
    """The maps of the program that stands, by their names. A layout of another version has other names."""
    found = {}
    for number in standing.maps:
        descriptor = kernel.open_map(number)
        found[kernel.map_name(descriptor)] = descriptor
    for name in found.keys() - program.MAPS.keys():
        os.close(found.pop(name))
    return found
