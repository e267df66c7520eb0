"""Read files that may be missing or of any kind: the result is a CheckFault, never an exception and never a wait."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from autoclave.doctor.node_facts import CheckFault, Directory, Socket
from ground import unix_sockets

# Any other error does not say that no process listens: SELinux, a file mode or a full backlog may refuse us.
DEAD = (ConnectionRefusedError, FileNotFoundError, NotADirectoryError)
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


def directory(path: Path, *, links: bool) -> Directory:
    """A directory. ``links``: whether a link to one counts."""
    try:
        status = path.stat(follow_symlinks=links)
    except OSError as error:
        return Directory(str(path), fault(error))
    if not stat.S_ISDIR(status.st_mode):
        return Directory(str(path), CheckFault("it is not a directory"))
    private = stat.S_IMODE(status.st_mode) & 0o077 == 0
    return Directory(str(path), private=private, ours=status.st_uid == os.geteuid())


def socket(path: Path) -> Socket:
    """A socket, and whether a process listens there."""
    refused = unix_sockets.connect_error(path)
    if refused is None:
        return Socket(str(path))
    return Socket(str(path), replace(fault(refused), dead=isinstance(refused, DEAD)))


def fault(error: OSError) -> CheckFault:
    """The CheckFault of an OSError."""
    why = (error.strerror or str(error)).lower()
    denied = isinstance(error, PermissionError)
    return CheckFault(why, isinstance(error, FileNotFoundError), denied, denied and os.geteuid() == 0)
