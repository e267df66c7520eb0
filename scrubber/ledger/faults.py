"""What SQLite and the kernel say when they cannot, told as a sentence with a remedy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger import store

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """Turn SQLite's and the kernel's errors into ours: ``doing`` says what was tried, as in "write to the ledger"."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # our own mistake: it must be seen as one
    except sqlite3.Error as error:
        raise _from_sqlite(error, doing, path) from error
    except OSError as error:
        raise LedgerUnavailable(f"cannot {doing} {path}: {_from_kernel(error, path)}") from error


def _from_sqlite(error: sqlite3.Error, doing: str, path: Path) -> LedgerUnavailable:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte is the family
        case sqlite3.SQLITE_FULL:
            why = _full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            why = _read_only(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            why = "another program keeps it locked; close it (an open sqlite3 shell, a backup)"
        case sqlite3.SQLITE_CANTOPEN:
            why = f"it cannot be opened; is {path.parent} there, and may this user write to it?"
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOLFS:
            why = f"the disk reports an I/O error ({name}); look at the kernel log and at the disk"
        case _:
            damage = f"the file is damaged ({error}); the service sets it aside when it starts again"
            return store.CorruptLedgerError(f"cannot {doing} {path}: {damage}")
    return LedgerUnavailable(f"cannot {doing} {path}: {why}")


def _from_kernel(error: OSError, path: Path) -> str:
    if error.errno in _FULL:
        return _full(path)
    if error.errno in _READ_ONLY:
        return _read_only(path)
    return f"{error.strerror or error}; look at the kernel log and at the disk"


def _full(path: Path) -> str:
    return f"the disk is full, or a size limit is reached; free some space under {path.parent}"


def _read_only(path: Path) -> str:
    return f"it is read-only; mount {path.parent} writable, or mend who may write there"
