"""Opens a ledger for its one writer: locks, creates or loads it, and sets a damaged one aside.

It creates a ledger if it is missing, and takes over one of the format before. A damaged one is set aside unchanged, and
a new one is created; it is never deleted or repaired. One of a newer format, or of an older one than that, is refused.
A new ledger knows no device, so each is UNKNOWN until the service observes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ground import calendar_time, private_files
from ground.errors import LedgerUnavailable, joined
from scrubber.core.model import Moment
from scrubber.ledger import database
from scrubber.ledger.ledger_files import HeadFiles, LedgerPaths, lock
from scrubber.ledger.ledger_rows import BEGUN, CorruptLedgerError, LedgerRow, new_note
from scrubber.ledger.sqlite_errors import SETS_ASIDE, translated
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.receipts.merkle import Frontier, Head


@dataclass(frozen=True, slots=True)
class SetAside:
    """A damaged ledger: where it is now, and what is damaged."""

    path: Path
    why: str


Load = Callable[[SqliteStore], object]
"""Loads the ledger; raises CorruptLedgerError also when the transition table does not allow its rows."""


def open_or_set_aside(
    path: Path, at: Moment, load: Load = SqliteStore.load, run_head: Path | None = None
) -> tuple[SqliteStore, SetAside | None]:
    """A store that was loaded once without an error, and the damaged ledger that was set aside, if any.

    LedgerUnavailable (disk full, read-only, locked): call again later. FatalError (another writer, a newer format):
    a person has to act. Neither changes the stored data. ``run_head``: where the head is stored a second time.
    """
    paths = LedgerPaths(path, run_head)
    with translated("open the ledger", path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        locked = lock(paths)
        try:
            paths.check(private_files.demand_own)
            return _open(paths, locked, at, load)
        except BaseException:  # any error, a cancellation too: release the lock and raise it again
            os.close(locked)
            raise


def _open(paths: LedgerPaths, locked: int, at: Moment, load: Load) -> tuple[SqliteStore, SetAside | None]:
    try:
        if not paths.database.exists():
            paths.check_not_lost()
            _create(paths, new_note(1, BEGUN, at, {}))
        return _loaded(paths, locked, at, load), None
    except CorruptLedgerError as error:
        still_to_do = [remedy for remedy in error.remedies if SETS_ASIDE not in remedy]
        aside = SetAside(_move(paths, at), joined(error.message, *still_to_do))
    try:
        with translated("create a new ledger at", paths.database):
            _create(paths, new_note(1, BEGUN, at, {"set_aside": aside.path.name, "why": aside.why}))
        return _loaded(paths, locked, at, load), aside
    except LedgerUnavailable as error:
        why = f"{error.message}; the damaged ledger was set aside as {aside.path}: {aside.why}"
        raise LedgerUnavailable(why, *error.remedies) from error


def _loaded(paths: LedgerPaths, locked: int, at: Moment, load: Load) -> SqliteStore:
    opened = SqliteStore(paths, locked)
    try:
        load(opened)
        opened.take_over(at)
    except BaseException:  # any error, a cancellation too: disconnect and raise it again
        opened.disconnect()
        raise
    return opened


def _move(paths: LedgerPaths, at: Moment) -> Path:
    """Rename every file of a ledger. After a crash in between, the next start finds the rest damaged too."""
    stamp = calendar_time.utc(at.wall).strftime("%4Y%m%dT%H%M%SZ")
    name, number = f"{paths.database.name}.corrupt-{stamp}", 0
    taken, free = paths.set_aside(), name
    while any(other in {free, f"{free}-wal", f"{free}-shm", f"{free}.head"} for other in taken):
        number += 1
        free = f"{name}-{number}"
    aside = LedgerPaths(paths.database.with_name(free))
    # The log before the database, so that a new database never reads an old log. The head last: it shows the damage.
    for old, new in (
        (paths.wal, aside.wal),
        (paths.shm, aside.shm),
        (paths.database, aside.database),
        (paths.head, aside.head),
    ):
        if old.exists():
            old.rename(new)
    private_files.sync_directory(paths.database.parent)
    return aside.database


def _create(paths: LedgerPaths, first: LedgerRow) -> None:
    """Create a ledger with its first row under another name, then rename it: it exists completely or not at all."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        paths.fresh.with_name(paths.fresh.name + suffix).unlink(missing_ok=True)
    os.close(os.open(paths.fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # -wal and -shm inherit the mode
    with closing(database.connect(paths.fresh)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # SQLite accepts this for an empty file only
        database.make_durable(connection)
        with database.transaction(connection):
            for statement in database.SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {database.VERSION}")
            connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
            frontier = database.insert(connection, Frontier(), [first])
        database.empty_log(connection)  # closing does it too, but does not report an error
    paths.fresh.rename(paths.database)
    with closing(HeadFiles(paths)) as headfiles:
        headfiles.write(Head.of(frontier), vouch=False)
        headfiles.sync()
    private_files.sync_directory(paths.database.parent)
