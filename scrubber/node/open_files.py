"""Which devices a task has open or mapped.

A file is the one that it leads to, never its name: a container has nodes of its own for a device, under names that its
tenant chooses.

Not seen here: memory of a GPU that was shared as a dma-buf. Such a file says which driver it came from, not which
device, and to blame all of them would let one tenant take the whole node out of service. Nothing is proven by that gap:
the memory stays in use, so the device shows memory without an owner, and a clear cannot cover it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from itertools import chain

from scrubber.node.proc import ENDED

# The file behind a descriptor cannot be asked: closed meanwhile, or on a mount that is dead. Ours was asked just now.
_NOT_OURS = frozenset({errno.ENOENT, errno.ESRCH, errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN})
_MAPPING = re.compile(rb"^0*(\w+)-0*(\w+) \S+ \S+ (\S+ [1-9].*)$", re.MULTILINE)  # with a file, and where that is
_FILE = re.compile(rb"^\S+ \S+ \S+ (\S+ [1-9]\d*) +(.*)$", re.MULTILINE)
_AT_ONCE = 65536  # bytes; the kernel gives less each time
_FEW = 8  # names that are sooner looked for one by one than all lines are taken apart
_READINGS = 5  # a process may map and unmap while we read

_NONE: frozenset[str] = frozenset()

Identity = tuple[str, int, int]


class Search:
    """One look for the users of some devices, by their files. Good for one walk: what it learns of files grows old."""

    def __init__(self, files: Mapping[str, Sequence[str]]) -> None:
        """``unknown``: the devices whose files cannot be identified."""
        self.unknown = frozenset(device for device, paths in files.items() if not paths)
        self._opened: dict[Identity, frozenset[str]] = {}
        self._mapped: dict[bytes, frozenset[str]] = {}  # as maps spells them: "MAJOR:MINOR INODE", or a path
        self._nodes = False  # device nodes are among them
        self._places: dict[bytes, frozenset[str]] = {}  # what a mapped file turned out to be
        for device, path in ((device, path) for device, paths in files.items() for path in paths):
            try:
                found = os.stat(path)  # noqa: PTH116 -- ports speak of paths as text
            except OSError:
                self.unknown |= {device}  # who uses a file that cannot be looked at cannot be told
                continue
            self._want(device, path, found)

    def devices(self, task: str) -> frozenset[str]:
        """What a process, or a thread, has open or mapped; PermissionError where it may not be looked into."""
        _knock(task)
        return self._open_in(task) | self._mapped_in(task) | (self._nodes_in(task) if self._nodes else _NONE)

    def _want(self, device: str, path: str, found: os.stat_result) -> None:
        name = frozenset({device})
        identity = _identity(found)
        self._opened[identity] = self._opened.get(identity, _NONE) | name
        if stat.S_ISCHR(found.st_mode):
            self._nodes = True
            return
        # By path as well: overlayfs and btrfs give a mapping another device number than stat does.
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino}".encode()
        for key in (place, os.fsencode(os.path.realpath(path))):
            self._mapped[key] = self._mapped.get(key, _NONE) | name

    def _open_in(self, task: str) -> frozenset[str]:
        devices = _NONE
        try:
            names = os.listdir(f"{task}/fd")  # noqa: PTH208 -- the hot loop of every look
        except ENDED:
            return devices
        for name in names:
            try:
                found = os.stat(f"{task}/fd/{name}")  # noqa: PTH116 -- same
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
                continue
            devices |= self._opened.get(_identity(found), _NONE)
        return devices

    def _mapped_in(self, task: str) -> frozenset[str]:
        if not self._mapped:
            return _NONE
        maps = _maps(task)
        if len(self._mapped) <= _FEW and not any(name in maps for name in self._mapped):
            return _NONE
        named = self._mapped.keys() & set(chain.from_iterable(_FILE.findall(maps)))
        return _NONE.union(*(self._mapped[name] for name in named))

    def _nodes_in(self, task: str) -> frozenset[str]:
        """A mapping shows where its node is, which is the tenant's choice: the kernel is asked what that leads to."""
        for _ in range(_READINGS):
            spans = {place: f"{start.decode()}-{end.decode()}" for start, end, place in _MAPPING.findall(_maps(task))}
            try:
                for place in spans.keys() - self._places.keys():
                    self._places[place] = self._behind(task, spans[place])
            except FileNotFoundError:
                continue
            return _NONE.union(*(self._places[place] for place in spans))
        raise PermissionError(f"cannot look into {task}: it maps and unmaps files all the time")

    def _behind(self, task: str, span: str) -> frozenset[str]:
        proc, _, number = task.partition("/task/")
        # A thread has such a directory under its own number only, and that works for a process as well.
        directory = f"{os.path.dirname(proc)}/{number}" if number else task  # noqa: PTH120 -- paths are text here
        try:
            found = os.stat(f"{directory}/map_files/{span}")  # noqa: PTH116 -- same
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            return _NONE
        return self._opened.get(_identity(found), _NONE)


def _identity(found: os.stat_result) -> Identity:
    if stat.S_ISCHR(found.st_mode):
        return ("character", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)


def _knock(task: str) -> None:
    """PermissionError at the door: no list is made of the hundreds of files of a process that is closed to us."""
    try:
        os.close(os.open(f"{task}/maps", os.O_RDONLY | os.O_CLOEXEC))
    except ENDED:
        return  # the list tells


def _maps(task: str) -> bytes:
    try:
        handle = os.open(f"{task}/maps", os.O_RDONLY | os.O_CLOEXEC)  # half the price of a Path: the hot loop again
    except ENDED:
        return b""
    try:
        return b"".join(iter(lambda: os.read(handle, _AT_ONCE), b""))
    except ENDED:
        return b""
    finally:
        os.close(handle)
