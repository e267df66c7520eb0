"""Directories, files and locks of a program, which no other user may change, and which are never links.

The service runs as root and writes into its directories by fixed names. A link in the place of such a name would make
it overwrite another file, and a directory of another user could be replaced by one with other files.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ground.errors import FatalError, joined

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
READABLE_DIRECTORY = 0o755
READABLE_FILE = 0o644  # a CDI specification, for container runtimes of other users, as nvidia-ctk writes it
NOT_TO_ENTER = 0o077  # the mode bits that a directory may not have whose files other users may not even reach
NOT_TO_CHANGE = 0o022  # the same for a directory whose files are private themselves
MAKE_PRIVATE = "make it a directory of this user with mode 0700, no link"
_LOCK_TRIED_EVERY = 0.001  # seconds: a worker holds the lock of a directory for less
_WRITING = os.O_WRONLY | os.O_RDWR


class ForeignFileError(OSError):
    """A file or directory is not this program's own. ``strerror`` says why, and what to do."""

    remedy = "if it is our file that was put back, put the file itself there and chown it to this user; else remove it"

    def __init__(self, path: Path, why: str) -> None:
        """``why`` completes the sentence "cannot use PATH: ..."."""
        super().__init__(errno.EPERM, joined(why, self.remedy), os.fspath(path))
        self.why = why


def is_private(directory: Path, forbidden: int) -> bool:
    """Whether it is a directory of this user without the forbidden mode bits. A link to one is not."""
    return directory_fault(directory, forbidden) is None


def directory_fault(directory: Path, forbidden: int) -> str | None:
    """Why it is not a directory of this user without the forbidden mode bits; None if it is one.

    Users who may write to the directory could replace our files and sockets with their own.
    """
    status = directory.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return _of_another(status)
    if status.st_mode & forbidden:
        return "other users may enter it" if forbidden == NOT_TO_ENTER else "other users may write to it"
    return None


def make_directory(directory: Path, kind: str, forbidden: int) -> None:
    """Make the "run" or the "state" directory, which a flag names; FatalError if it is not this user's alone."""
    what, elsewhere = f"cannot use {kind} directory {directory}", f"give another with --{kind}-dir"
    try:
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        fault = directory_fault(directory, forbidden)
    except OSError as error:
        raise FatalError(f"{what}: {error.strerror}", elsewhere) from error
    if fault is not None:
        raise FatalError(f"{what}: {fault}", f"{MAKE_PRIVATE}, or {elsewhere}")


def make_folder(folder: Path) -> None:
    """Make a folder in the state directory; ForeignFileError if another user may change it."""
    folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    demand_folder(folder)


def demand_folder(folder: Path) -> None:
    """ForeignFileError if another user may change the folder, or if it is a link."""
    if (fault := directory_fault(folder, NOT_TO_CHANGE)) is not None:
        raise ForeignFileError(folder, fault)


def opened(path: Path, flags: int) -> int:
    """Open a file by its own name, and create it with O_CREAT; ForeignFileError if it is not this user's own file."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a pipe or socket, a directory
            why = _fault(path.lstat(), writing=False) or str(error.strerror)
            raise ForeignFileError(path, why) from error
        raise
    fault = _fault(os.fstat(descriptor), writing=bool(flags & _WRITING))
    if fault is None:
        return descriptor
    os.close(descriptor)
    raise ForeignFileError(path, fault)


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock of a file until it is closed; None if another process holds the lock."""
    lock = opened(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def await_lock(path: Path, *, shared: bool = False) -> int:
    """The same as soon as no other process holds the lock. The kernel wakes the caller, who should be a thread.

    ``shared``: several processes may hold it at once, and nobody holds it alone meanwhile.
    """
    while True:
        lock = opened(path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.lstat()):
                return lock
        os.close(lock)  # the file was removed meanwhile: its lock keeps nobody out


def lock_holder(path: Path, kind: str = "FLOCK") -> int | None:
    """The process that holds a lock to write of a file; None if /proc shows none. SQLite's locks are ``POSIX``."""
    try:
        status, locks = path.stat(), Path("/proc/locks").read_text()
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks.splitlines():
        _, *lock, pid, file, _, _ = line.split()
        if (lock, file) == ([kind, "ADVISORY", "WRITE"], wanted):
            return int(pid)
    return None


@contextmanager
def locked(directory: Path, within: float = math.inf) -> Iterator[None]:
    """Hold the lock of a directory, which only one block on this machine holds at a time. It must not be a link.

    TimeoutError if another block holds the lock for longer than ``within`` seconds.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        if within == math.inf:
            fcntl.flock(handle, fcntl.LOCK_EX)
        else:
            _lock(handle, time.monotonic() + within)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, until: float) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() >= until:  # raised apart from that error, whose EAGAIN would read as a lack of tasks
            raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock of its directory")
        time.sleep(_LOCK_TRIED_EVERY)


def content(path: Path) -> bytes:
    """All that a file of our own holds."""
    with os.fdopen(opened(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace(path: Path, content: bytes, mode: int = PRIVATE_FILE, *, durable: bool = True) -> None:
    """Replace a file, or create it. A reader gets the old content or the new one, never a part. Raises OSError.

    The same holds after a power loss, unless ``durable`` is false: for files that nobody needs after one.
    """
    with replacing(path, content, mode, durable=durable):
        pass


def write_for_others(folder: Path, files: Mapping[str, str]) -> None:
    """Write files that a person hands on, and make their folder. What others have put into their place is replaced.

    ForeignFileError if another user may change the folder, or if it is a link. Raises OSError.
    """
    folder.mkdir(mode=READABLE_DIRECTORY, parents=True, exist_ok=True)
    demand_folder(folder)
    for name, text in files.items():
        replace(folder / name, text.encode(), READABLE_FILE)


@contextmanager
def replacing(path: Path, content: bytes, mode: int = PRIVATE_FILE, *, durable: bool = True) -> Iterator[Path]:
    """As ``replace``, at the end of the block. The block gets the new file next to ``path``; an error keeps the old."""
    with beside(path, content, mode, durable=durable) as aside:
        yield aside
        aside.replace(path)
    if durable:
        sync_directory(path.parent)


@contextmanager
def beside(path: Path, content: bytes, mode: int = PRIVATE_FILE, *, durable: bool = True) -> Iterator[Path]:
    """Write the content to a new file next to ``path``, and remove that at the end. The folder must be there.

    The folder of a private file must be ours; that of a readable one may be a link, or belong to others. The name of
    the new file begins with a dot: a container runtime reads no such file.
    """
    if mode & NOT_TO_ENTER == 0:
        demand_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of a file have left next to it. The caller is the only one who writes it."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make new, replaced and removed names in a directory survive a power loss. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def demand_own(path: Path) -> None:
    """ForeignFileError if the file exists and is not this user's own, for a file that a library opens."""
    _demand(path, lambda status: _fault(status, writing=True))


def demand_regular(path: Path) -> None:
    """ForeignFileError if the file exists and is a link or no regular file. Another user's copy may be read."""
    _demand(path, _irregular)


def _demand(path: Path, fault_of: Callable[[os.stat_result], str | None]) -> None:
    with suppress(FileNotFoundError):
        if (fault := fault_of(path.lstat())) is not None:
            raise ForeignFileError(path, fault)


def _fault(status: os.stat_result, *, writing: bool) -> str | None:
    irregular = _irregular(status)
    if irregular is not None:
        return irregular
    if status.st_uid != os.geteuid():
        return _of_another(status)
    if status.st_mode & NOT_TO_CHANGE:
        return "other users may write to it"
    if writing and status.st_nlink > 1:
        return "it has another name (a hard link)"
    return None


def _of_another(status: os.stat_result) -> str:
    return f"it belongs to another user (uid {status.st_uid})"


def _irregular(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    return None if stat.S_ISREG(status.st_mode) else "it is not a regular file"
