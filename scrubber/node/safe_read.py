"""Reads files that may be anything, or nothing: what cannot be read is a fault, never an error and never a wait."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scrubber.core.diagnosis.base import CheckFault

LARGEST = 16 * 2**20  # bytes: whatever is looked at here is some kilobytes


def text(file: Path) -> str | CheckFault:
    """What a file says."""
    try:
        content = _content(file)
    except OSError as error:
        return fault(error)
    if content is None:
        return CheckFault("it is no file")
    return CheckFault("it is too large to be true") if len(content) > LARGEST else content.decode(errors="replace")


def _content(file: Path) -> bytes | None:
    # A pipe in the place of a file would hold us for ever without O_NONBLOCK.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(LARGEST + 1)
    finally:
        os.close(descriptor)


def names(directory: Path) -> list[str] | CheckFault:
    """What is in a directory, in order. Not by ``glob``: that says of one that may not be read that it is empty."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths
    except OSError as error:
        return fault(error)


def there(path: Path) -> bool | CheckFault:
    """Whether something is at a path; a link that leads nowhere from here is something."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return fault(error)
    return True


def fault(error: OSError) -> CheckFault:
    """An error as it is told."""
    said = (error.strerror or str(error)).lower()
    return CheckFault(said, isinstance(error, FileNotFoundError), isinstance(error, PermissionError))
