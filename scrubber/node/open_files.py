"""Which of the searched files one task has open or mapped, within a time; its /proc entries may be unreadable.

Files are compared by inode or device number, never by name: a container has its own device nodes, with names of its
choice.

GPU memory that is shared as a dma-buf is not found. Such a file names its driver, not its device; counting it for all
devices would let one pod take the whole node out of service. The gap does not give a false proof: the memory stays in
use, so the device shows memory without a holder, and a clear cannot cover that memory.
"""

from __future__ import annotations

import ctypes
import errno
import io
import math
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter

from scrubber.node.proc import ENDED

# The file of a descriptor cannot be read: it was closed, or its mount is dead. No device file has these errors.
_NOT_OURS = frozenset({errno.ENOENT, errno.ESRCH, errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN})
# A mapping of a file in /proc/PID/maps: its range and its place, which is "MAJOR:MINOR INODE PATH".
_MAPPING = re.compile(rb"^0*(\w+)-0*(\w+) [^ \n]+ [^ \n]+ ([^ \n]+ [1-9].*)$", re.MULTILINE)
# The end of such a line. It begins before the place, however short the addresses are, and most lines share it with
# others. It names one place: nothing before the place has a colon.
_END = slice(26, None)
_end = itemgetter(_END)
_AT_ONCE = 65536  # bytes; the kernel returns less each time
_READINGS = 5  # a process may open and close, map and unmap files while we read
_UNTIMED = 256  # entries that are read between two looks at the clock; so a process with few files is always read

_NONE: frozenset[str] = frozenset()

_OTHER_LINKS = 2  # of /proc/PID/task, which has one more link for each thread, as for a subdirectory
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2
_libc = ctypes.CDLL(None)

Identity = tuple[str, int, int]
_FILE = "file"


class TooSlowError(Exception):
    """Processes were not read within the time for it."""


class Timer:
    """Limits the time for one process. Processor time counts, so that other load on the node does not."""

    def __init__(self, seconds: float = math.inf, until: float = math.inf) -> None:
        """``seconds``: processor time of this thread; ``until``: the end in any case, on the monotonic clock."""
        self._seconds = time.thread_time() + seconds
        self._until = until
        self._entries = 0

    def count(self) -> None:
        """Count one more entry that is read; TooSlowError if the time is over."""
        self._entries += 1
        if self._entries % _UNTIMED == 0:
            self.check()

    def check(self) -> None:
        """TooSlowError if the time is over."""
        if time.thread_time() > self._seconds or time.monotonic() > self._until:
            raise TooSlowError


class Search:
    """A search for the holders of some devices. Use it for one pass over /proc: its cache of files becomes outdated."""

    def __init__(self, files: Mapping[str, Sequence[str]]) -> None:
        """``unknown``: the devices whose files cannot be identified.

        ``missing``: why, for operators, if they have files.
        """
        self.devices = frozenset(files)
        self.unknown = frozenset(device for device, paths in files.items() if not paths)
        self.missing: dict[str, str] = {}
        self._opened: dict[Identity, frozenset[str]] = {}
        self._mapped: dict[bytes, frozenset[str]] = {}  # keys as in /proc/PID/maps: "MAJOR:MINOR INODE", or a path
        self._nodes = False  # whether any of the files is a device node
        self._places: dict[bytes, frozenset[str]] = {}  # the devices of mapped files, by their places in maps
        self._ends: set[bytes] = set()  # of all lines in maps that were read so far
        self._holding: dict[bytes, frozenset[str]] = {}  # the devices of those that have one
        for device, path in ((device, path) for device, paths in files.items() for path in paths):
            try:
                status = os.stat(path)  # noqa: PTH116 -- backends return paths as text
            except OSError as error:
                self.unknown |= {device}  # holders of a file without a known identity cannot be found
                self.missing[device] = _lack(path, error)
                continue
            name = frozenset({device})
            identity = _identity(status)
            self._opened[identity] = self._opened.get(identity, _NONE) | name
            if identity[0] != _FILE:
                self._nodes = True
                continue
            # By path too: overlayfs and btrfs show another device number in maps than stat does.
            place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino}".encode()
            for key in (place, os.fsencode(os.path.realpath(path))):
                self._mapped[key] = self._mapped.get(key, _NONE) | name

    def held_by(self, task: str, timer: Timer) -> frozenset[str]:
        """The devices that a process or thread has open or mapped.

        PermissionError if we may not read it, TooSlowError if that takes too long. Its open files are read first: it
        may map a file and close it meanwhile.
        """
        devices = _NONE
        try:
            directory = os.open(f"{task}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except ENDED:
            pass  # it has no file open any more
        else:
            try:
                devices = self._open_below(directory, timer)
            finally:
                os.close(directory)
        return devices | self._mapped_in(task, timer)

    def _open_below(self, directory: int, timer: Timer) -> frozenset[str]:
        devices, seen = _NONE, frozenset[str]()
        for _ in range(_READINGS):
            try:
                names = frozenset(os.listdir(directory))
            except ENDED:
                return devices
            closed = frozenset[str]()
            for name in names - seen:
                timer.count()
                try:
                    status = os.stat(name, dir_fd=directory)
                except OSError as error:
                    if error.errno not in _NOT_OURS:
                        raise
                    closed |= {name}
                    continue
                devices |= self._opened.get(_identity(status), _NONE)
            if not closed:
                break
            seen |= names - closed  # the process may have the closed file open under another number by now
        return devices

    def _mapped_in(self, task: str, timer: Timer) -> frozenset[str]:
        for _ in range(_READINGS):
            maps = _maps(task, timer)
            ends = set(map(_end, io.BytesIO(maps)))  # not all lines at once, whose memory the service would keep
            try:
                if not ends <= self._ends:
                    self._learn(ends - self._ends, maps, task, timer)
            except FileNotFoundError:
                continue
            return _NONE.union(*(devices for end, devices in self._holding.items() if end in ends))
        raise PermissionError(f"cannot read the mappings of {task}: they change all the time")

    def _learn(self, ends: set[bytes], maps: bytes, task: str, timer: Timer) -> None:
        """Find the devices of lines whose end no process had so far. FileNotFoundError if they have changed."""
        mappings = {mapping[0][_END] + b"\n": mapping for mapping in _MAPPING.finditer(maps)}
        for end in ends & mappings.keys():
            timer.count()
            mapping = mappings[end]
            place = mapping[3]
            if place not in self._places:
                self._places[place] = self._at(place, task, f"{mapping[1].decode()}-{mapping[2].decode()}")
            if devices := self._places[place]:
                self._holding[end] = devices
        self._ends |= ends

    def _at(self, place: bytes, task: str, span: str) -> frozenset[str]:
        """The devices of a place that the task has mapped in this range."""
        number, _, file = place.partition(b" ")
        inode, _, path = file.partition(b" ")
        named = (b"%s %s" % (number, inode), path.lstrip(b" "))
        devices = _NONE.union(*(self._mapped.get(name, _NONE) for name in named))
        # The path of a node is the choice of its pod: map_files leads to the node itself.
        return devices | self._behind(task, span) if self._nodes else devices

    def _behind(self, task: str, span: str) -> frozenset[str]:
        proc, _, number = task.partition("/task/")
        # A thread has map_files only under /proc/TID, not under /proc/PID/task/TID.
        directory = f"{os.path.dirname(proc)}/{number}" if number else task  # noqa: PTH120 -- paths are text here
        try:
            status = os.stat(f"{directory}/map_files/{span}")  # noqa: PTH116 -- same
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            return _NONE
        return self._opened.get(_identity(status), _NONE)


def _lack(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} is not here; if the service runs in a container, start it again: it has the nodes of its start"
    return f"{path} cannot be read: {(error.strerror or str(error)).lower()}"


def _identity(status: os.stat_result) -> Identity:
    if stat.S_ISCHR(status.st_mode):
        return ("character", status.st_rdev, 0)
    if stat.S_ISBLK(status.st_mode):
        return ("block", status.st_rdev, 0)
    return (_FILE, status.st_dev, status.st_ino)


def _maps(task: str, timer: Timer) -> bytes:
    try:
        handle = os.open(f"{task}/maps", os.O_RDONLY | os.O_CLOEXEC)  # half the cost of a Path, in the hot loop
    except ENDED:
        return b""
    parts = []
    try:
        while part := os.read(handle, _AT_ONCE):
            parts.append(part)
            timer.count()
    except ENDED:
        return b""
    finally:
        os.close(handle)
    return b"".join(parts)


def separate_tables(process: str, timer: Timer) -> list[str]:
    """The /proc directories to read: that of the process, then those of threads that do not share its files.

    TooSlowError if no listing of the threads is complete within the time.

    Threads usually share one table of open files, which the entry of the process shows. Two kinds have files that this
    entry does not show: a thread with its own table (``unshare(CLONE_FILES)``), and each thread of a process whose
    first thread has ended. A killed process looks like that while one of its threads is stuck in a driver.
    """
    leader = process.rpartition("/")[2]
    try:
        if os.stat(f"{process}/task").st_nlink == _OTHER_LINKS + 1:  # noqa: PTH116 -- in the hot loop of every observation
            return [process]
        tasks = os.listdir(f"{process}/task")  # noqa: PTH208 -- same
        while len(tasks) < os.stat(f"{process}/task").st_nlink - _OTHER_LINKS:  # noqa: PTH116 -- same
            timer.check()  # the listing ended with a thread that ended, and lacks those after it
            tasks = os.listdir(f"{process}/task")  # noqa: PTH208 -- same
    except (FileNotFoundError, ProcessLookupError):
        return []
    # When the kernel refuses kcmp, each thread is read: slow but correct.
    others = (task for task in tasks if task != leader and not _same_files(int(leader), int(task)))
    return [process, *(f"{process}/task/{task}" for task in others)]


def _same_files(task: int, other: int) -> bool:
    """Whether two tasks share their open files (kcmp(2)). False where the kernel refuses to compare them."""
    return _KCMP is not None and _libc.syscall(_KCMP, task, other, _KCMP_FILES, 0, 0) == 0
