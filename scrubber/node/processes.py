"""Who has a device's files open or mapped: one look through /proc for all devices at once.

What this look cannot see: a file in flight on a unix socket, or kept only by an io_uring. Both need a live process
that means to take it back, and a process that does is seen again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scrubber.core.model import Holder
from scrubber.node import threads

_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux
_TICKS = os.sysconf("SC_CLK_TCK")
# The file behind a descriptor cannot be asked: closed meanwhile, or on a mount that is dead. Ours was asked just now.
_NOT_OURS = frozenset({errno.ENOENT, errno.ESRCH, errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.EHOSTDOWN})

_STATE, _STARTED = 0, 19  # of the fields after the name: the 3rd and the 22nd of /proc/PID/stat

_Identity = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What to look for, and for which devices."""

    opened: Mapping[_Identity, frozenset[str]]
    mapped: Mapping[bytes, frozenset[str]]  # as /proc/PID/maps spells them: "MAJOR:MINOR INODE", or a path
    unknown: frozenset[str]  # devices whose files cannot be identified


class Processes:
    """Sight of the processes of this node."""

    def __init__(self, proc: Path, container_of: Callable[[int], str | None], *, full_sight: bool) -> None:
        """``full_sight``: an answer that some process was hidden from is no answer.

        Without it, processes that may not be looked into are passed over. That is right for simulated GPUs only: their
        files are readable by one user, so that whoever may not be looked into may not open them either (root may).
        """
        self._proc = proc
        self._container_of = container_of
        self._full_sight = full_sight

    def holders(
        self, files: Mapping[str, Sequence[str]], exclude: Collection[int] = ()
    ) -> dict[str, tuple[Holder, ...] | None]:
        """Who uses each device, by its files; None where that cannot be proven. This process is never a holder."""
        wanted = _wanted(files)
        blind = self._full_sight and not self._sees_all()
        found: dict[str, list[Holder]] = {device: [] for device in files}
        for pid in self._pids({os.getpid(), *exclude}):
            look = self._look(pid, wanted)
            blind = blind or (self._full_sight and look.blind)
            for device in look.devices:
                found[device].extend(look.holder)
        unknown = files.keys() if blind else wanted.unknown
        return {device: None if device in unknown else tuple(holders) for device, holders in found.items()}

    def _pids(self, skipped: Collection[int]) -> list[int]:
        with os.scandir(self._proc) as entries:
            pids = (int(entry.name) for entry in entries if entry.name.isdigit())
            return [pid for pid in pids if pid not in skipped]

    def _sees_all(self) -> bool:
        # In a container's own namespace, /proc shows that container and hides everybody else.
        try:
            return (self._proc / "self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
        except FileNotFoundError:
            return False

    def _look(self, pid: int, wanted: _Wanted) -> _Look:
        """One process, with those of its threads that hold files of their own."""
        process = f"{self._proc}/{pid}"
        devices: set[str] = set()
        holder: tuple[Holder, ...] = ()
        blind = False
        for task in threads.apart(process):
            try:
                held = _opened(task, wanted) | _mapped(task, wanted)
            except PermissionError:
                blind = True
                continue
            if held and not holder:
                holder = self._describe(pid, process, task)
            devices |= held
        return _Look(holder, frozenset(devices), blind)

    def _describe(self, pid: int, process: str, task: str) -> tuple[Holder, ...]:
        """The process as it stands; nobody if it has gone. The state is that of the thread that holds the files."""
        try:
            started = int(_status(process)[_STARTED]) / _TICKS
            state = _status(task)[_STATE]
            command = _command(process)
        except (FileNotFoundError, ProcessLookupError):
            return ()
        return (Holder(pid, started, command, self._container_of(pid), state),)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one process showed."""

    holder: tuple[Holder, ...]
    devices: frozenset[str]
    blind: bool


def _wanted(files: Mapping[str, Sequence[str]]) -> _Wanted:
    opened: dict[_Identity, frozenset[str]] = {}
    mapped: dict[bytes, frozenset[str]] = {}
    unknown = {device for device, paths in files.items() if not paths}
    for device, path in ((device, path) for device, paths in files.items() for path in paths):
        name = frozenset({device})
        try:
            found = os.stat(path)  # noqa: PTH116 -- ports speak of paths as text
        except OSError:
            unknown.add(device)  # who uses a file that cannot be looked at cannot be told
            continue
        opened[_identity(found)] = opened.get(_identity(found), frozenset()) | name
        # By path as well: overlayfs and btrfs give a mapping another device number than stat does.
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino}".encode()
        for key in (place, os.fsencode(os.path.realpath(path))):
            mapped[key] = mapped.get(key, frozenset()) | name
    return _Wanted(opened, mapped, frozenset(unknown))


def _identity(found: os.stat_result) -> _Identity:
    # A device node in a container is another file with another name: what it leads to is the same.
    if stat.S_ISCHR(found.st_mode):
        return ("character", found.st_rdev, 0)
    return ("file", found.st_dev, found.st_ino)


def _opened(task: str, wanted: _Wanted) -> frozenset[str]:
    devices: frozenset[str] = frozenset()
    try:
        names = os.listdir(f"{task}/fd")  # noqa: PTH208 -- the hot loop of every look
    except (FileNotFoundError, ProcessLookupError):
        return devices
    for name in names:
        try:
            found = os.stat(f"{task}/fd/{name}")  # noqa: PTH116 -- same
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            continue
        devices |= wanted.opened.get(_identity(found), frozenset())
    return devices


def _mapped(task: str, wanted: _Wanted) -> frozenset[str]:
    devices: frozenset[str] = frozenset()
    try:
        text = Path(f"{task}/maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return devices
    if not any(key in text for key in wanted.mapped):
        return devices
    for line in text.splitlines():
        _addresses, _mode, _offset, *place = line.split(None, 5)
        for key in (b" ".join(place[:2]), *place[2:]):
            devices |= wanted.mapped.get(key, frozenset())
    return devices


def _status(task: str) -> list[str]:
    """The fields after the name, which may hold spaces and parentheses of its own."""
    return Path(f"{task}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _command(process: str) -> str:
    """The name alone: a command line is a tenant's, may hold passwords, and would stay in the ledger for ever."""
    text = Path(f"{process}/comm").read_bytes().decode(errors="replace").strip()
    # A name is chosen by its tenant too: it must not be able to write to an operator's terminal.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
