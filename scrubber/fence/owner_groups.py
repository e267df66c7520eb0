"""Knows the control groups of those that a device is open to.

The kubelet makes the group of a pod before it prepares a claim or starts a container of the pod. If the service does
not know the group all the same, the kernel counts the attempts of the owner as those of others, and that is a gap.

Not for several threads: the guard has a lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core.fencing import Container, Group, MayOpen, OpenTo, Pods
from scrubber.core.model import DeviceNumber
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel import program
from scrubber.fence.kernel.fence import Fence


class OwnerGroups:
    """Those of each device."""

    def __init__(self, fence: Fence, sources: Sources) -> None:
        self._fence = fence
        self._sources = sources
        self._open_to: dict[str, MayOpen] = {}  # by device, as its record wants it
        self._had: dict[str, dict[str, frozenset[int]]] = {}  # by device and name: groups of those that it is open to
        self._noted: set[str] = set()  # the devices of which that was said

    def changed(self, uuid: str, open_to: MayOpen) -> MayOpen:
        """The device is to be open to these. Returns to whom it was open."""
        before = self._open_to.get(uuid, OpenTo.SERVICE)
        if before != open_to:
            self._had.pop(uuid, None)
            self._noted.discard(uuid)
        self._open_to[uuid] = open_to
        return before

    def find(self, uuid: str, numbers: Iterable[DeviceNumber], terms: Terms) -> frozenset[int] | None:
        """The control groups to which the device is open, beside the service; None: to all.

        A pod whose group is not known has none: it is there before the first container of the pod. So has one whose
        group was removed, because it has ended.
        """
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

    def unknown(self, uuid: str, owners: frozenset[int] | None) -> bool:
        """Whether no group of an owner of the device was ever known: once for each owner."""
        open_to = self._open_to.get(uuid)
        awaited = isinstance(open_to, Container | Pods) and open_to.names and owners == frozenset()
        was_known = any(self._had.get(uuid, {}).values())  # its group was removed
        if not awaited or was_known or uuid in self._noted:
            return False
        self._noted.add(uuid)
        return True
