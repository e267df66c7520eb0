"""One reset of a GPU at a time, also when the worker that began it is gone.

Whatever goes down together has one file, and whoever resets it holds the lock on that file. A lock belongs to the open
file: the tool that a worker starts inherits it, so that the kernel keeps it for as long as either of them lives, and
drops it when both are gone, however they ended. The files stay: one that was removed could be locked by two at once.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from scrubber.devices.base import DeviceError, NotNowError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")  # a file's name, and no path
_LOOKS_TAKE = 0.25  # seconds; whoever only looks whether a lock is held has it for a moment itself
_BLINK = 0.01


def file_of(folder: Path, domain: str) -> Path:
    """The lock of all devices that a reset of one takes down."""
    plain = domain if _PLAIN.fullmatch(domain) else sha256(domain.encode()).hexdigest()
    return folder / f"{plain}.lock"


@contextmanager
def claimed(path: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold it, and give the open file, for a child to inherit. NotNowError while another holds it.

    ``shared`` is for those who keep resets away and not each other.
    """
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
