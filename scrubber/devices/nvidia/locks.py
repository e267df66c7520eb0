"""Locks that allow one reset of a GPU at a time, also after the worker that began the reset has ended.

Every GPU has a lock file. A worker that resets a GPU holds the locks of all GPUs that the reset takes down, so that
each GPU can be checked by its own name. A lock belongs to the open file, and the worker's tool inherits that file.
So the kernel keeps the lock until both have ended, however they end. The files are never removed: two processes could
lock a removed file and its successor at once.

A worker that applies the pending restore of an interrupted reset creates slices, but does not reset the GPU. It holds
the GPU's lock shared, and a second lock exclusively.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ground import private_files
from scrubber.devices.base import DeviceError, NotNowError

FOLDER = "resets"  # of the locks, in the state directory
_OF_SLICES = ".slices"  # not .lock, because this lock is not of a reset
_CHECK_SECONDS = 0.25  # seconds to retry, because a check whether a lock is held takes it for a moment
_POLL_SECONDS = 0.01


def file_of(folder: Path, name: str) -> Path:
    """The lock file of a GPU, or of a reset domain that has a name of its own."""
    return folder / f"{name}.lock"


def of_slices(lock: Path) -> Path:
    """The second lock, for workers that create slices."""
    return lock.with_suffix(_OF_SLICES)


@contextmanager
def claimed(*paths: Path, shared: bool = False) -> Iterator[tuple[int, ...]]:
    """Hold the locks; yields the open files, for a child to inherit. NotNowError if another process holds one.

    ``shared``: exclude resets, but not other shared holders.
    """
    with ExitStack() as stack:
        yield tuple(stack.enter_context(_claimed(path, shared=shared)) for path in sorted(set(paths)))


@contextmanager
def _claimed(path: Path, *, shared: bool) -> Iterator[int]:
    try:
        private_files.make_folder(path.parent)
        descriptor = private_files.opened(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise DeviceError(f"cannot lock {path}: {error.strerror}") from error
    try:
        until = time.monotonic() + _CHECK_SECONDS
        while not _locked(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if time.monotonic() >= until:
                raise NotNowError(f"a reset of it is still under way: another process holds {path}")
            time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)  # not unlocked: a tool that cannot be killed keeps the lock


def held(path: Path) -> bool:
    """Whether a reset is under way: a process holds the lock exclusively."""
    try:
        descriptor = private_files.opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return False  # the GPU was never reset
    except OSError as error:
        raise DeviceError(f"cannot tell whether it is being reset: {path}: {error.strerror}") from error
    try:
        return not _locked(descriptor, path, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def any_held(folder: Path) -> bool:
    """Whether a reset of any GPU is under way."""
    return any(held(path) for path in folder.glob("*.lock"))


def wait(folder: Path, within: float) -> bool:
    """Wait until no reset is under way, because its tool needs an unused driver. False if that takes too long."""
    until = time.monotonic() + within
    try:
        while any_held(folder):
            if time.monotonic() >= until:
                return False
            time.sleep(_CHECK_SECONDS)
    except DeviceError:
        return False
    return True


def _locked(descriptor: int, path: Path, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DeviceError(f"cannot lock {path}: {error.strerror}") from error
    return True
