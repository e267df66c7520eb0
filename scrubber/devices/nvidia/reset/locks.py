"""One reset of a GPU at a time, also when the worker that began it is gone.

Every GPU has a file, and whoever resets it holds the locks of all that go down with it: so each is asked by its own
name, whoever of the others can be seen meanwhile. A lock belongs to the open file: the tool that a worker starts
inherits it, so that the kernel keeps it for as long as either of them lives, and drops it when both are gone, however
they ended. The files stay: one that was removed could be locked by two at once.

Who makes slices, of a GPU that stays up, holds that lock shared, which is no reset, and a second one beside it: shared
whoever makes his own anew, alone whoever brings back what others took.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

from scrubber.devices.base import DeviceError, NotNowError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")  # a file's name, and no path
_OF_SLICES = ".slices"  # instead of .lock, so that nobody takes it for a reset
_LOOKS_TAKE = 0.25  # seconds; whoever only looks whether a lock is held has it for a moment itself
_BLINK = 0.01


def file_of(folder: Path, name: str) -> Path:
    """The lock of a GPU, or of all that a reset of one takes down where they have a name of their own."""
    plain = name if _PLAIN.fullmatch(name) else sha256(name.encode()).hexdigest()
    return folder / f"{plain}.lock"


def of_slices(lock: Path) -> Path:
    """The second lock, of those who make slices."""
    return lock.with_suffix(_OF_SLICES)


@contextmanager
def claimed(*paths: Path, shared: bool = False) -> Iterator[tuple[int, ...]]:
    """Hold them, and give the open files, for a child to inherit. NotNowError while another holds one.

    ``shared`` is for those who keep resets away and not each other.
    """
    with ExitStack() as stack:
        yield tuple(stack.enter_context(_claimed(path, shared=shared)) for path in sorted(set(paths)))


@contextmanager
def _claimed(path: Path, *, shared: bool) -> Iterator[int]:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DeviceError(f"cannot lock {path}: {error.strerror}") from error
    try:
        if not _taken(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise NotNowError(f"a reset of it is still under way: somebody holds {path}")
        yield descriptor
    finally:
        os.close(descriptor)  # not unlocked: a tool that cannot be ended goes on holding it


def held(path: Path) -> bool:
    """Whether a reset is under way: anybody has it, and not just shared."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # nobody ever reset it
    except OSError as error:
        raise DeviceError(f"cannot tell whether it is being reset: {path}: {error.strerror}") from error
    try:
        return not _locked(descriptor, path, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def any_held(folder: Path) -> bool:
    """Whether a reset of whatever is under way."""
    return any(held(path) for path in folder.glob("*.lock"))


def wait(folder: Path, within: float) -> bool:
    """Until no reset of whatever is under way; False when that takes longer."""
    until = time.monotonic() + within
    while any_held(folder):
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOKS_TAKE)
    return True


def _taken(descriptor: int, path: Path, how: int) -> bool:
    until = time.monotonic() + _LOOKS_TAKE
    while not _locked(descriptor, path, how):
        if time.monotonic() >= until:
            return False
        time.sleep(_BLINK)
    return True


def _locked(descriptor: int, path: Path, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DeviceError(f"cannot lock {path}: {error.strerror}") from error
    return True
