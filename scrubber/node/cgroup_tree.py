"""The tree of cgroups of version 2: what the kernel's number of a group means, and the number of the group of a pod.

A number means a place, a unit, a pod or a container. The kernel numbers groups in the order in which they are made, and
never gives a number twice.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ground.pod_groups import PODS
from scrubber.node import group_names, group_places
from scrubber.node.group_places import is_populated, unusual, usual

_SLICE = ".slice"
_UNITS = (".service", ".scope", _SLICE)
_SERVICE = ".service"
STARTED_UNITS = "run/systemd/units"  # below the node's root: here systemd makes a link for each unit that it starts
_HANDLE = struct.Struct("<IiQ")  # struct file_handle: the bytes of the number, the kind, and the number
_OF_KERNFS = 0xFE
_GONE = frozenset({errno.ESTALE, errno.ENODEV})  # errors of a group that was removed

_libc = ctypes.CDLL(None, use_errno=True)

_REMEMBERED = 4096  # pods; a node runs some hundred at a time


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a process ran, by its control group."""

    name: str  # the path of its unit of systemd, or of the group; empty: it is the root, where all may run
    container: str | None  # as ``group_names`` names it
    groups: frozenset[int]  # this group, and those above it


class Tree:
    """The control groups of this node."""

    def __init__(self, root: Path, host_root: Path | None = None) -> None:
        """``root``: where the root of version 2 is mounted. ``host_root``: the node's file system, to ask systemd."""
        self._root = root
        self._started = f"{host_root}/{STARTED_UNITS}/invocation:" if host_root is not None else None
        self._units: dict[str, dict[str, int]] = {}  # by name: the paths and numbers of the groups with that name
        self.pods: frozenset[int] = frozenset()  # the groups that hold all pods
        self._known: dict[str, str] = {}  # the path of each service that systemd had started
        self.doubtful: dict[str, frozenset[str]] = {}  # the groups, by the name of the unit that they are not

    def read(self) -> None:
        """Read the units of systemd again.

        Only slices are looked into. Below a service or a scope, users and containers make groups with any name. Where
        a slice cannot be read, such as with too many open files, the last reading stays.
        """
        units, slices, pods = dict[str, dict[str, int]](), [str(self._root)], set[int]()
        while slices:
            try:
                entries = [*os.scandir(slices.pop())]
            except OSError as error:
                if error.errno in _GONE | {errno.ENOENT}:
                    continue
                return
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if not entry.name.endswith(_UNITS):
                    pods |= _group_of_pods(entry)
                    continue
                if entry.name.endswith(_SLICE):
                    if PODS in entry.name:
                        pods.add(entry.inode())
                        continue
                    slices.append(entry.path)
                units.setdefault(entry.name, {})[entry.path] = entry.inode()
        self._units, self.pods = units, frozenset(pods)

    def units(self, names: Collection[str]) -> frozenset[int]:
        """The groups of these units, at the last reading. A ``*`` stands for any letters; a path is a group's own.

        Who may write to control groups can make one with any name. So a group counts that was there before all pods,
        or if it is the only one with its name, and systemd says that it has started that unit. ``doubtful`` has the
        others. Systemd says it of no slice.
        """
        found, self.doubtful = set[int](), {}
        for name in names:
            if name.startswith("/"):
                found |= self._of_path(name)
            for unit in [name] if "*" not in name else filter(_pattern(name).fullmatch, self._units):
                found |= self._of_unit(unit)
        return frozenset(found)

    def _of_unit(self, name: str) -> set[int]:
        groups = self._units.get(name, {})
        if name.endswith(_SERVICE):
            groups = {path: number for path, number in groups.items() if not _holds_pods(path)}
        early = {number for number in groups.values() if self._is_early(number)}
        if early or not groups:
            return early
        path = self._known.get(name) if self._known.get(name) in groups else None
        if path is None and len(groups) == 1:
            path = next(iter(groups))
        if path is None or self._started is None or not os.path.lexists(f"{self._started}{name}"):
            self.doubtful[name] = frozenset(groups)
            return set()
        if name.endswith(_SERVICE):
            self._known[name] = path
        return {groups[path]}

    def _of_path(self, path: str) -> set[int]:
        try:
            number = os.stat(group := f"{self._root}{path}").st_ino  # noqa: PTH116 -- a path below the root, as text
        except OSError:
            return set()
        if self._is_early(number):
            return {number}
        self.doubtful[path] = frozenset({group})
        return set()

    def _is_early(self, group: int) -> bool:
        """Whether a group was there before all pods, so that none of them has made it."""
        return all(group < pods for pods in self.pods)

    def place(self, group: int) -> GroupPlace | None:
        """What a group is, also after its processes have ended. None: it is gone, or this user may not ask."""
        try:
            with self._opened(group) as opened:
                path = Path(os.readlink(f"/proc/self/fd/{opened}"))  # noqa: PTH115 - a link of the kernel
                above = (path, *(it for it in path.parents if it.is_relative_to(self._root) and it != self._root))
                groups = frozenset(it.stat().st_ino for it in above)
        except OSError:
            return None
        inside = f"/{path.relative_to(self._root)}" if path.is_relative_to(self._root) else str(path)
        return GroupPlace("" if path == self._root else _name(inside), group_names.place(f"0::{inside}"), groups)

    def runs(self, group: int) -> bool:
        """Whether a process is in a group or below it, also if that cannot be told."""
        try:
            with self._opened(group) as opened:
                return group_places.is_populated(Path(f"/proc/self/fd/{opened}"))
        except OSError as error:
            return error.errno not in _GONE

    def is_gone(self, group: int) -> bool:
        """Whether a group was removed. False also if that cannot be told."""
        try:
            with self._opened(group):
                return False
        except OSError as error:
            return error.errno in _GONE

    @contextmanager
    def _opened(self, group: int) -> Iterator[int]:
        """The directory of a group, open. Raises OSError."""
        mount = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            handle = ctypes.create_string_buffer(_HANDLE.pack(8, _OF_KERNFS, group))
            opened = int(_libc.open_by_handle_at(mount, handle, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        finally:
            os.close(mount)
        if opened < 0:
            raise OSError(ctypes.get_errno(), f"cannot open control group {group}")
        try:
            yield opened
        finally:
            os.close(opened)


def is_named(names: Collection[str], place: str) -> bool:
    """Whether one of these units, as ``Tree.units`` takes them, has the name of this place, or of one above it."""
    parts = place.split("/")
    above = {"/".join(parts[: at + 1]) for at in range(1, len(parts))}
    return any(
        name in above if name.startswith("/") else any(map(_pattern(name).fullmatch, parts)) for name in names
    )  # fmt: skip


@lru_cache(256)
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", ".*"), re.DOTALL)


def _group_of_pods(entry: os.DirEntry[str]) -> set[int]:
    """The number of the group in which a kubelet with the cgroupfs driver creates the pods' groups.

    That is this group, or its child.
    """
    try:
        return {entry.inode() if entry.name == PODS else os.stat(f"{entry.path}/{PODS}").st_ino}  # noqa: PTH116 -- of a path as text
    except OSError:
        return set()


def _holds_pods(unit: str) -> bool:
    """Whether a container runtime keeps pods below its own group: who is exempt must hold nobody else."""
    try:
        with os.scandir(unit) as entries:
            return any(PODS in entry.name for entry in entries)
    except OSError:
        return True


def _name(path: str) -> str:
    """The path down to a unit that is not a slice; below it, users and containers make groups with any name."""
    parts = path.split("/")
    unit = next(
        (at for at, part in enumerate(parts) if part.endswith(_UNITS) and not part.endswith(_SLICE)), len(parts)
    )
    name = "/".join(parts[: unit + 1])
    return "".join(letter if letter.isprintable() else "?" for letter in name)


class GroupIds:
    """The ids of the groups of version 2 that hold pods or containers.

    Whoever may write to control groups can make one with the name of any pod. So the group of a pod is the one that the
    runtime says it was told to use, or the only one that holds a process or container; once found, it stays the pod's.
    """

    def __init__(self, root: Path, made_for: Callable[[str], str | None] = lambda _pod: None) -> None:
        """``root``: where the root of version 2 is mounted.

        ``made_for``: the path of the group that the container runtime was told to use for a pod, if the runtime says
        that.
        """
        self._root = root
        self._made_for = made_for
        self.rivals: dict[str, frozenset[Path]] = {}  # by pod: groups with its name that hold somebody and are not its
        self._chosen: dict[str, Path] = {}  # the group of each pod or container that was asked for

    def of(self, name: str) -> frozenset[int]:
        """The id of the group that holds a pod or container. Empty where that cannot be said."""
        group = self._chosen.get(name)
        holding = {other for other in usual(self._root, name) if other != group and _holds(other)}
        if group is None:
            made = self._made_for(name)
            holding.update(filter(_holds, unusual(self._root, name)))
            candidates = holding if made is None else set(filter(_holds, [self._root / made.lstrip("/")]))
            if len(candidates) == 1:
                self._chosen[name] = group = candidates.pop()
                if len(self._chosen) > _REMEMBERED:
                    del self._chosen[next(iter(self._chosen))]
        self.rivals.pop(name, None)
        if rivals := frozenset(holding - {group}):
            self.rivals[name] = rivals
        try:
            return frozenset({group.stat().st_ino}) if group is not None else frozenset()
        except FileNotFoundError:
            return frozenset()


def _holds(group: Path) -> bool:
    """Whether a process is in a group of version 2 or below it, or a runtime has made a container's group there.

    Another driver of the kubelet than of the runtime leaves a group that holds neither.
    """
    if not group.is_dir():
        return False
    if is_populated(group):
        return True
    with suppress(OSError), os.scandir(group) as entries:
        return any(group_names.is_container(entry.name) and entry.is_dir() for entry in entries)
    return False
