"""Open a ledger: create it if it is missing; if it is damaged, set it aside unchanged and create a new one.

A damaged ledger is never deleted or repaired. A new ledger knows no device, so each device is UNKNOWN until the
service observes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from scrubber.core.model import Moment
from scrubber.ground import calendar_time, private_files
from scrubber.ground.errors import LedgerUnavailable
from scrubber.ledger import chain, database, files, sqlite, store

Accept = Callable[[store.Loaded], object]
"""Checks the loaded rows; raises CorruptLedgerError when the transition table does not allow them."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A damaged ledger: where it is now, and what is damaged."""

    path: Path
    why: str


def open_or_set_aside(
    path: Path, at: Moment, accept: Accept = lambda _: None, run_head: Path | None = None
) -> tuple[sqlite.SqliteStore, SetAside | None]:
    """A store that was loaded once without an error, and the damaged ledger that was set aside, if any.

    LedgerUnavailable (disk full, read-only, locked): call again later. FatalError (another writer, a newer schema):
    a person has to act. Neither changes the stored data. ``run_head``: where the head is stored a second time.
    """
    where = files.Places(path, run_head)
    with database.translated("open the ledger", path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = files.Lock(where)
        try:
            where.demand(private_files.demand_own)
            return _open(where, lock, at, accept)
        except BaseException:  # any error, a cancellation too: release the lock and raise it again
            lock.release()
            raise


def _open(
    where: files.Places, lock: files.Lock, at: Moment, accept: Accept
) -> tuple[sqlite.SqliteStore, SetAside | None]:
    try:
        if not where.database.exists():
            _check_nothing_left(where)
            _create(where, chain.note(chain.BEGUN, at, {}))
        return _loaded(where, lock, accept), None
    except store.CorruptLedgerError as error:
        aside = SetAside(_move(where, at), error.message)
    try:
        with database.translated("create a new ledger at", where.database):
            _create(where, chain.note(chain.BEGUN, at, {"set_aside": aside.path.name, "why": aside.why}))
        return _loaded(where, lock, accept), aside
    except LedgerUnavailable as error:
        raise LedgerUnavailable(f"{error}; the damaged ledger was set aside as {aside.path}: {aside.why}") from error


def _loaded(where: files.Places, lock: files.Lock, accept: Accept) -> sqlite.SqliteStore:
    opened = sqlite.SqliteStore(where, lock)
    try:
        accept(opened.load())
    except BaseException:  # any error, a cancellation too: disconnect and raise it again
        opened.disconnect()
        raise
    return opened


def _check_nothing_left(where: files.Places) -> None:
    left = [it.name for it in (where.wal, where.shm, where.head) if it.exists()]
    if left:
        raise store.CorruptLedgerError(f"the ledger {where.database} is missing, although {', '.join(left)} exists")


def _move(where: files.Places, at: Moment) -> Path:
    """Rename every file of a ledger. After a crash in between, the next start finds the rest damaged too."""
    stamp = calendar_time.utc(at.wall).strftime("%4Y%m%dT%H%M%SZ")
    base = f"{where.database.name}.corrupt-{stamp}"
    taken = where.aside()
    name = next(it for n in range(len(taken) + 1) if not _in_use(it := base + (f"-{n}" if n else ""), taken))
    to = files.Places(where.database.with_name(name))
    # The log before the database, so that a new database never reads an old log. The head last: it shows the damage.
    for old, new in (
        (where.wal, to.wal),
        (where.shm, to.shm),
        (where.database, to.database),
        (where.head, to.head),
    ):
        if old.exists():
            old.rename(new)
    _sync_directory(where)
    return to.database


def _in_use(name: str, taken: tuple[str, ...]) -> bool:
    return any(it in {name, f"{name}-wal", f"{name}-shm", f"{name}.head"} for it in taken)


def _create(where: files.Places, first: chain.ChainRow) -> None:
    """Create a ledger with its first row under another name, then rename it: it exists completely or not at all."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        where.fresh.with_name(where.fresh.name + suffix).unlink(missing_ok=True)
    os.close(os.open(where.fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # -wal and -shm inherit the mode
    [row] = chain.seal(chain.START, [first])
    database.create(where.fresh, row)
    where.fresh.rename(where.database)
    with closing(files.HeadFile(where.head)) as kept:
        kept.write(row.head)
        kept.sync()
    _sync_directory(where)


def _sync_directory(where: files.Places) -> None:
    directory = os.open(where.database.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
