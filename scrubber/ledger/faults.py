"""Errors of SQLite and of the kernel as messages that say what to do."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrubber.ground.errors import LedgerUnavailable
from scrubber.ground.private_files import ForeignFileError
from scrubber.ledger import store

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def translated(action: str, path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the kernel into LedgerUnavailable; ``action`` as in "write to the ledger"."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of this program, not a fault of the ledger
    except sqlite3.Error as error:
        raise _from_sqlite(error, action, path) from error
    except OSError as error:
        raise LedgerUnavailable(f"cannot {action} {path}: {_from_kernel(error, path)}") from error


def _from_sqlite(error: sqlite3.Error, action: str, path: Path) -> LedgerUnavailable:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte is the family
        case sqlite3.SQLITE_FULL:
            why = _full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            why = _read_only(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            why = "another program has it locked; close that program (an open sqlite3 shell, a backup)"
        case sqlite3.SQLITE_CANTOPEN:
            why = f"it cannot be opened; check that {path.parent} exists and that this user may write to it"
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOLFS:
            why = f"the disk reports an I/O error ({name}); check the kernel log and the disk"
        case _:
            damage = f"the file is damaged ({error}); restart the service, which sets the file aside"
            return store.CorruptLedgerError(f"cannot {action} {path}: {damage}")
    return LedgerUnavailable(f"cannot {action} {path}: {why}")


def _from_kernel(error: OSError, path: Path) -> str:
    if isinstance(error, ForeignFileError):
        return f"{error.filename}: {error.strerror}"
    if error.errno in _FULL:
        return _full(path)
    if error.errno in _READ_ONLY:
        return _read_only(path)
    return f"{error.strerror or error}; check the kernel log and the disk"


def _full(path: Path) -> str:
    return f"the disk is full or a size limit is reached; free some space under {path.parent}"


def _read_only(path: Path) -> str:
    return f"it is read-only; mount {path.parent} writable, or correct its permissions"
