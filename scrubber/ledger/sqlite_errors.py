"""Errors of SQLite and of the kernel, as messages that say why a ledger cannot be used, and what to do."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ground import private_files
from ground.errors import LedgerUnavailable
from ground.private_files import ForeignFileError
from scrubber.ledger.ledger_rows import CorruptLedgerError

SETS_ASIDE = "keep a copy: the next start of the service sets it aside, with its quarantines and owners"
_NEAR = 2**20  # bytes that SQLite may want to add at once


@contextmanager
def translated(action: str, path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the kernel into LedgerUnavailable; ``action`` as in "write to the ledger"."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a bug of this program, not a fault of the ledger
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:  # SQLite's message may name a damaged name
        if reason := _why(error, path):
            why, *remedies = reason
            raise LedgerUnavailable(f"cannot {action} {path}: {why}", *remedies) from error
        why, remedy = f"the file is damaged ({error})", SETS_ASIDE
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            why = "it is not a ledger, or its first bytes are damaged"
            remedy = f"if it is the service's own, {SETS_ASIDE}"
        raise CorruptLedgerError(f"cannot {action} {path}: {why}", None, remedy, unreadable=why) from error


def _why(error: sqlite3.Error | UnicodeDecodeError | OSError, path: Path) -> tuple[str, ...]:
    """Why the file cannot be used now, and what to do; empty if it is damaged."""
    full = "the disk is full or a size limit is reached", f"free some space under {path.parent}"
    read_only = "it is read-only", f"mount {path.parent} writable, or correct its permissions"
    if isinstance(error, OSError):
        if isinstance(error, ForeignFileError):
            return f"{error.filename}: {error.why}", error.remedy
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return full
        if error.errno in (errno.EACCES, errno.EPERM):
            return _forbidden(Path(error.filename or path))
        if error.errno == errno.EROFS:
            return read_only
        return f"{error.strerror or error}", "check the kernel log and the disk"
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:  # the low byte is the family
        case sqlite3.SQLITE_FULL:
            return full
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return read_only
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            locked = (path.with_name(f"{path.name}-shm"), path)  # while SQLite writes
            pid = next(filter(None, (private_files.lock_holder(file, "POSIX") for file in locked)), None)
            by = "another program" if pid is None else f"process {pid}"
            return f"{by} has it locked", "end that process, such as a backup or an open sqlite3 shell"
        case sqlite3.SQLITE_CANTOPEN if _lacks_index(path):
            why = (
                f"{path.name}-wal has rows that SQLite reads only with {path.name}-shm, which is missing and cannot be "
            )
            why += f"created in {path.parent}"
            return why, f"copy all files of {path.parent} to a directory that you can write to, and name that directory"
        case sqlite3.SQLITE_CANTOPEN if closed := _closed(path):
            return _forbidden(closed)
        case sqlite3.SQLITE_CANTOPEN:
            return "it cannot be opened", f"check that {path.parent} exists and that this user may write to it"
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOLFS:
            if _reaches_limit(path):
                return full
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            return f"the disk reports an I/O error ({name})", "check the kernel log and the disk"
        case _:
            return ()


def _forbidden(file: Path) -> tuple[str, str]:
    remedy = "run this as the user of the service (usually root); if that user has no permission either, give that "
    return f"uid {os.geteuid()} has no permission to open {file.name}", f"{remedy}user the file: `chown USER {file}`"


def _closed(path: Path) -> Path | None:
    """The first of SQLite's files that is there, and that this user may not read."""
    files = (path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal", "-shm"))
    return next((file for file in files if os.access(file, os.F_OK) and not os.access(file, os.R_OK)), None)


def _lacks_index(path: Path) -> bool:
    """Whether the log has rows, and its index is missing: SQLite then creates the index, also to read."""
    log, index = (path.with_name(f"{path.name}-{name}") for name in ("wal", "shm"))
    try:
        return log.stat().st_size > 0 and not index.exists()
    except OSError:
        return False


def _reaches_limit(path: Path) -> bool:
    """Whether a file of the ledger is about as large as this process may make one: SQLite calls that an I/O error."""
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most == resource.RLIM_INFINITY:
        return False
    sizes = [0]
    for file in path.parent.glob(f"{path.name}*"):
        with suppress(OSError):
            sizes.append(file.stat().st_size)
    return max(sizes) + _NEAR > most
