"""Read files that may be missing or of any kind: the result is a CheckFault, never an exception and never a wait."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from autoclave.doctor.node_facts import CheckFault

LARGEST = 16 * 2**20  # bytes: the files that are read here have some kilobytes


def text(file: Path) -> str | CheckFault:
    """The text of a file."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for ever.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return CheckFault("it is not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                content = stream.read(LARGEST + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        return fault(error)
    return (
        CheckFault(f"it is larger than {LARGEST} bytes") if len(content) > LARGEST else content.decode(errors="replace")
    )


def names(directory: Path) -> list[str] | CheckFault:
    """The sorted names in a directory. No ``glob``: it returns nothing for a directory that we may not read."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, not paths
    except OSError as error:
        return fault(error)


def there(path: Path) -> bool | CheckFault:
    """Whether a path exists; a dangling link counts as existing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return fault(error)
    return True


def fault(error: OSError) -> CheckFault:
    """The CheckFault of an OSError."""
    why = (error.strerror or str(error)).lower()
    denied = isinstance(error, PermissionError)
    return CheckFault(why, isinstance(error, FileNotFoundError), denied, denied and os.geteuid() == 0)
