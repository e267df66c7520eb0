"""The tree of cgroups of version 2: for the kernel's number of a group, its place, unit, pod or container."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scrubber.node import cgroups

_SLICE = ".slice"
_UNITS = (".service", ".scope", _SLICE)
_PODS = "kubepods"
_HANDLE = struct.Struct("<IiQ")  # struct file_handle: the bytes of the number, the kind, and the number
_OF_KERNFS = 0xFE
_GONE = frozenset({errno.ESTALE, errno.ENODEV})  # errors of a group that was removed

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a process ran, by its control group."""

    name: str  # the unit of systemd, or the path of the group; empty: it is the root, where all may run
    container: str | None  # as ``cgroups`` names it
    groups: frozenset[int]  # this group, and those above it


class Tree:
    """The control groups of this node."""

    def __init__(self, root: Path) -> None:
        """``root``: where the root of version 2 is mounted."""
        self._root = root
        self._units: dict[str, set[int]] = {}

    def read(self) -> None:
        """Read the units of systemd again.

        Only slices are looked into. Below a service or a scope, users and containers make groups with any name. Where
        a slice cannot be read, such as with too many open files, the last reading stays.
        """
        units, slices = dict[str, set[int]](), [str(self._root)]
        while slices:
            try:
                entries = [*os.scandir(slices.pop())]
            except OSError as error:
                if error.errno in _GONE | {errno.ENOENT}:
                    continue
                return
            for entry in entries:
                if not entry.name.endswith(_UNITS) or not entry.is_dir(follow_symlinks=False):
                    continue
                if entry.name.endswith(_SLICE):
                    if _PODS in entry.name:
                        continue
                    slices.append(entry.path)
                elif _holds_pods(entry.path):
                    continue
                units.setdefault(entry.name, set()).add(entry.inode())
        self._units = units

    def units(self, names: Collection[str]) -> frozenset[int]:
        """The groups of these units, at the last reading."""
        return frozenset[int]().union(*(self._units.get(name, ()) for name in names))

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
        return GroupPlace("" if path == self._root else _name(inside), cgroups.place(f"0::{inside}"), groups)

    def runs(self, group: int) -> bool:
        """Whether a process is in a group or below it, also if that cannot be told."""
        try:
            with self._opened(group) as opened:
                return cgroups.is_populated(Path(f"/proc/self/fd/{opened}"))
        except OSError as error:
            return error.errno not in _GONE

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


def _holds_pods(unit: str) -> bool:
    """Whether a container runtime keeps pods below its own group: who is exempt must hold nobody else."""
    try:
        with os.scandir(unit) as entries:
            return any(_PODS in entry.name for entry in entries)
    except OSError:
        return True


def _name(path: str) -> str:
    parts = path.split("/")
    units = [part for part in parts if part.endswith(_UNITS)]
    name = next((unit for unit in units if not unit.endswith(_SLICE)), units[-1] if units else path)
    return "".join(letter if letter.isprintable() else "?" for letter in name)
