"""Knows the control groups of those that a device is open to, and tells their attempts from those of others.

While the group of an owner is not known, the kernel counts the attempts of that owner as those of others: the device is
in doubt. Then it is noted whose each attempt was that could be read. Whose the rest were stays unknown.

Not for several threads: the guard has a lock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from scrubber.core.fencing import Container, Group, MayOpen, OpenTo, Pods
from scrubber.core.model import DeviceNumber
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel import program
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Counts, Fence
from scrubber.node.cgroup_tree import GroupPlace


class OwnerGroups:
    """Those of each device."""

    def __init__(self, fence: Fence, sources: Sources) -> None:
        self._fence = fence
        self._sources = sources
        self._open_to: dict[str, MayOpen] = {}  # by device, as its record wants it
        self._had: dict[str, dict[str, frozenset[int]]] = {}  # by device and name: groups of those that it is open to
        self._awaited: dict[str, frozenset[str]] = {}  # by device: those of them that have no known group now
        self._in_doubt: dict[str, float] = {}  # ... since this uptime, so that the kernel counts them as others

    def changed(self, uuid: str, open_to: MayOpen) -> None:
        """The device is to be open to these."""
        if self._open_to.get(uuid) != open_to:
            self._had.pop(uuid, None)
            if uuid in self._in_doubt:  # what was asked before is nobody's: another one may have been the owner
                self._in_doubt[uuid] = _uptime()
        self._open_to[uuid] = open_to

    def resume(self, uuid: str, numbers: Iterable[DeviceNumber]) -> None:
        """Go on with the notes that an earlier life has left in the kernel."""
        if any(self._fence.own(number).judged is not None for number in numbers):
            self._in_doubt[uuid] = _uptime()

    def find(self, uuid: str, numbers: Iterable[DeviceNumber], terms: Terms) -> frozenset[int] | None:
        """The control groups to which the device is open, beside the service; None: to all.

        A pod whose group is not known has none: it is there before the first container of the pod. So has one whose
        group was removed, because it has ended.
        """
        self._awaited[uuid] = frozenset()
        match self._open_to.get(uuid, OpenTo.SERVICE):
            case OpenTo.SERVICE:
                return frozenset()
            case Group(group):
                return frozenset({group})
            case Container() | Pods() as tenant:
                found = {name: groups for name in tenant.names if (groups := self._sources.groups(name))}
                if found:
                    self._had[uuid] = {name: it for name, it in self._had.get(uuid, {}).items() if name} | found
                elif uuid not in self._had:  # an earlier life may have seen it, or let in itself
                    self._had[uuid] = {"": self._in_kernel(numbers)}
                if not found and not terms.pods_have_groups:
                    return None
                self._awaited[uuid] = tenant.names - found.keys()
                return frozenset[int]().union(*found.values())
            case _:
                return None

    def _in_kernel(self, numbers: Iterable[DeviceNumber]) -> frozenset[int]:
        members = (self._fence.members(number).items() for number in numbers)
        return frozenset(group for mine in members for group, kind in mine if kind == program.OWNER)

    def left(self, uuid: str) -> bool:
        """Whether the control groups to which the device was opened for a container or for pods were all removed."""
        groups = frozenset[int]().union(*self._had.get(uuid, {}).values())
        return bool(groups) and all(map(self._sources.is_gone, groups))

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The devices of which it is noted whose attempts are counted."""
        return (*self._in_doubt,)

    @property
    def known_again(self) -> frozenset[str]:
        """Those of them of whose owners none is awaited any more."""
        return frozenset(uuid for uuid in self._in_doubt if not self._awaited.get(uuid))

    def doubt(self, uuid: str, numbers: Iterable[DeviceNumber]) -> None:
        """Begin to note whose attempts are counted, if an owner has no known group; end it with the owner."""
        if self._awaited[uuid] and uuid not in self._in_doubt:
            for number in numbers:
                if (own := self._fence.own(number)).judged is None:
                    self._fence.keep_own(number, replace(own, judged=self._asked(number)))
            self._in_doubt[uuid] = _uptime()
        elif uuid in self._in_doubt and isinstance(self._open_to.get(uuid), OpenTo):
            for number in numbers:
                self._fence.keep_own(number, replace(self._fence.own(number), judged=None))
            del self._in_doubt[uuid]

    def in_doubt_since(self, uuid: str) -> float:
        """The uptime from which on it is noted; infinity: it is not."""
        return self._in_doubt.get(uuid, math.inf)

    def is_own(self, uuid: str, attempt: Attempt, find_place: Callable[[Attempt], GroupPlace | None]) -> bool | None:
        """Whether an owner of a device in doubt made the attempt. None: that is not known.

        A name decides only that it is not known: who may make control groups can make one with any name.
        """
        if attempt.uptime < self.in_doubt_since(uuid):
            return None
        found = (groups for name, groups in self._had.get(uuid, {}).items() if name)
        if not frozenset[int]().union(*found).isdisjoint((attempt.group, *attempt.above)):
            return True
        place = find_place(attempt)
        if place is None or not place.name or place.container in self._awaited.get(uuid, ()):
            return None
        if place.container is None and attempt.group not in place.groups:  # its group is gone
            return None
        return False

    def is_noted(self, number: DeviceNumber) -> bool:
        """Whether it is noted whose attempts on this number are counted."""
        return self._fence.own(number).judged is not None

    def note(self, attempt: Attempt, *, own: bool) -> None:
        """Note whose the attempt was."""
        before = self._fence.own(attempt.device)
        judged = min((before.judged or 0) + 1, self._asked(attempt.device))
        passed, refused = before.passed + (own and not attempt.refused), before.refused + (own and attempt.refused)
        self._fence.keep_own(attempt.device, replace(before, passed=passed, refused=refused, judged=judged))

    def settle(self, uuid: str, numbers: Iterable[DeviceNumber], *, ends: bool) -> None:
        """Note of how many attempts it is not known whose they are: all have been read that could be."""
        if uuid not in self._in_doubt:
            return
        for number in numbers:
            own, asked = self._fence.own(number), self._asked(number)
            if own.judged is not None and (ends or asked > own.judged):
                unknown = own.unknown + max(asked - own.judged, 0)
                self._fence.keep_own(number, replace(own, unknown=unknown, judged=None if ends else asked))
        if ends:
            del self._in_doubt[uuid]

    def _asked(self, number: DeviceNumber) -> int:
        return (self._fence.counts(number) or Counts(0, 0)).asked


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
