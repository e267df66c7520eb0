"""Finds who made an attempt to open a device, and tells which attempts are no uses.

The attempts of two kinds of programs are ignored: of a bystander, which is recognised while its process runs and by
the same rules as a holder, and of a program that the service has started. An exempt program is let in, and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from policies.values import FenceMode
from scrubber.core.fencing import KeptOff
from scrubber.core.model import NO_CONTAINER, Holder, Opener
from scrubber.fence.kernel.attempts import Attempt
from scrubber.node import clock
from scrubber.node.cgroup_tree import GroupPlace

IsBystander = Callable[[Holder], bool]
_JUDGED_FOR = 1.0  # seconds in which a process, or a group, that asks again is not looked up again
_JUDGED = 4096  # processes, and groups
_READ_EVERY = 0.05  # seconds between two readings of the groups of the node, at least
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds: by so much a process may have started later than /proc says
_RECOGNISED_FOR = 2.0  # seconds in which a bystander that has ended is still known


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says of a device."""

    refuse: bool = False  # others, or only count them ...
    held: frozenset[int] | None = None  # ... but for who is in these control groups, those of all pods. None: nobody
    fenced: bool = True
    lease: float = 600.0  # seconds for which others are still refused without the service
    exempt: frozenset[int] = frozenset()  # the control groups that may open it at any time ...
    exempt_digest: str = ""  # ... and the digest of their names; empty: nobody may
    namespaces: frozenset[str] = frozenset()  # whose pods are exempt
    names: Callable[[str], bool] = lambda _place: False  # whether an exempt unit has the name of this place
    pods_have_groups: bool = True  # each pod has a control group of its own; not on a node with version 1

    @property
    def kept_off(self) -> KeptOff:
        """Who is kept off."""
        if self.refuse:
            return KeptOff.ALL
        return KeptOff.NONE if self.held is None else KeptOff.PODS

    @property
    def mode(self) -> FenceMode:
        """What the fence does with others."""
        return self.kept_off.mode


@dataclass(frozen=True, slots=True)
class Sources:
    """What tells about processes, control groups and the policy."""

    process: Callable[[int], tuple[Holder, ...]]  # a process by its pid; empty if it has ended
    groups: Callable[[str], frozenset[int]]  # the control groups of a pod or container
    bystanders: Callable[[str], IsBystander]  # for each device, who does not count
    terms: Callable[[str], Terms]  # for each device
    read: Callable[[], None]  # which groups there are, and the policy: what ``terms`` says until the next reading
    place: Callable[[int], GroupPlace | None]  # what a control group is; None if it is gone
    runs: Callable[[int], bool]  # whether a process is in a control group, or may be
    is_gone: Callable[[int], bool] = lambda _group: False  # whether a control group was removed
    is_ours: Callable[[int], bool] = lambda _pid: False  # whether the service has started this process
    below: str = ""  # the control group below which the fence stands; empty: the root of all
    pod_name: Callable[[str], str] = lambda _uid: ""  # NAMESPACE/POD, if it is known
    pids_are_free: Callable[[], bool] = lambda: False  # so that no pid is given twice within a tick
    group_of: Callable[[Holder], int | None] = lambda _holder: None  # the control group of a process, if it is known


@dataclass(frozen=True, slots=True)
class Judged:
    """Who made an attempt, as far as it was found."""

    until: float  # this uptime a process whose attempts count is not looked up again
    command: str
    place: str  # ``Opener.place``
    groups: frozenset[int]
    ignored: bool  # it is a bystander

    def opener(self, attempt: Attempt, pod: str, *, exempt: bool) -> Opener:
        """This process, with this attempt."""
        now = clock.now()
        at = now.wall - max(now.uptime - attempt.uptime, 0.0)  # the kernel keeps what is asked while no service runs
        return Opener(self.place, pod, self.command, attempt.pid, exempt, 1, int(attempt.refused), first=at, last=at)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Latest(Generic[_Key, _Value]):
    """The values that were put last."""

    def __init__(self) -> None:
        self._values: dict[_Key, _Value] = {}

    def get(self, key: _Key) -> _Value | None:
        return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > _JUDGED:
            del self._values[next(iter(self._values))]


class IgnoredAttempts:
    """The attempts that are ignored. An attempt whose process cannot be looked up counts. For one thread at a time."""

    def __init__(self, service: int, sources: Sources) -> None:
        """``service``: the control group of the service."""
        self._service = service
        self._sources = sources
        self._places = _Latest[int, tuple[float, GroupPlace | None]]()  # of groups, until which uptime they are known
        self._counted = _Latest[tuple[str, int, str, int], Judged]()
        self._read_again = 0.0
        self._recognised: dict[tuple[int, str, int], float] = {}  # bystanders that asked lately, until this uptime

    def judge(self, uuid: str, attempt: Attempt) -> Judged | None:
        """Who made the attempt. None: a program of the service, whose attempts are ignored."""
        key = uuid, attempt.pid, attempt.command, attempt.group
        judged = self._counted.get(key)
        if judged is not None and attempt.uptime < judged.until:  # it asks again and again
            return judged
        holder = self._holder(attempt)
        place = self.place(attempt)
        groups = place.groups if place is not None else frozenset({attempt.group, *attempt.above})
        if self._service in groups and self._sources.is_ours(attempt.pid):
            return None
        command = holder.command if holder is not None else attempt.command
        is_bystander = self._is_of_bystander(uuid, attempt, holder)
        judged = Judged(attempt.uptime + _JUDGED_FOR, command, _named(place, holder), groups, is_bystander)
        if not is_bystander:
            self._counted.put(key, judged)
        return judged

    def _holder(self, attempt: Attempt) -> Holder | None:
        """The process that has asked; None if it has ended, also if a later one has its number."""
        try:
            holder = next(iter(self._sources.process(attempt.pid)), None)
        except OSError:
            return None
        if holder is None or holder.started > attempt.uptime:
            return None
        is_sure = holder.started <= attempt.uptime - _TICK or self._sources.pids_are_free()
        return holder if is_sure else None

    def _is_of_bystander(self, uuid: str, attempt: Attempt, holder: Holder | None) -> bool:
        who = (attempt.pid, attempt.command, attempt.group)
        if holder is None:
            recognised = self._recognised.get(who, 0.0) > attempt.uptime
        else:
            recognised = self._sources.bystanders(uuid)(holder)
        if recognised:
            self._recognised = {it: until for it, until in self._recognised.items() if until > attempt.uptime}
            self._recognised[who] = attempt.uptime + _RECOGNISED_FOR
        return recognised

    def place(self, attempt: Attempt) -> GroupPlace | None:
        """Where a process ran: its group, or the nearest one above it that is still there.

        The groups of the node are read again for a group that has not asked lately: it may be new.
        """
        until, place = self._places.get(attempt.group) or (0.0, None)
        if until <= attempt.uptime:
            below = (attempt.group, *(it for it in reversed(attempt.above) if it != attempt.group))
            places = (self._sources.place(group) for group in below)
            place = next((it for it in places if it is not None), None)
            if time.monotonic() >= self._read_again:  # a user may have many groups
                self._sources.read()
                self._read_again = time.monotonic() + _READ_EVERY
            self._places.put(attempt.group, (attempt.uptime + _JUDGED_FOR, place))
        return place


def _named(place: GroupPlace | None, holder: Holder | None) -> str:
    """Printable: users who may make control groups choose their names, and may choose bytes that are not text."""
    if container := (holder and holder.container) or (place and place.container):
        return _printable(container)
    if place is not None and place.name:
        return _printable(place.name)
    return NO_CONTAINER if holder is not None else ""


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)
