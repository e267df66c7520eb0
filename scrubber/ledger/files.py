"""The files of a ledger, the lock that allows one writer, and the head file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ground import private_files
from ground.errors import FatalError
from scrubber.ledger import store

_LINE = re.compile(r"(\d{20}) ([0-9a-f]{64})\n")


class Places:
    """The files of a ledger; their names follow from that of the database."""

    def __init__(self, database: Path, run_head: Path | None = None) -> None:
        """``run_head``: a second file for the head, outside the state directory."""
        name = database.name.removesuffix(".sqlite")
        self.database = database
        self.wal = database.with_name(database.name + "-wal")  # SQLite's write-ahead log: part of the data
        self.shm = database.with_name(database.name + "-shm")  # SQLite's index of the log: rebuilt at need
        self.head = database.with_name(name + ".head")  # the newest row's number and hash
        self.run_head = run_head
        self.lock = database.with_name(name + ".lock")  # the writer holds a lock on it
        self.fresh = database.with_name(database.name + ".new")  # a new ledger, before it is renamed to ``database``

    def demand(self, kept: Callable[[Path], None]) -> None:
        """Check each file: SQLite follows links and opens any kind of file. ``kept`` raises ForeignFileError."""
        for path in (self.database, self.wal, self.shm, self.head, self.run_head):
            if path is not None:
                kept(path)

    def aside(self) -> tuple[str, ...]:
        """The names of damaged ledgers that were set aside in this directory."""
        found = (it.name for it in self.database.parent.glob(f"{self.database.name}.corrupt-*"))
        return tuple(sorted(name for name in found if not name.endswith(("-wal", "-shm", ".head"))))


class Lock:
    """The writer's lock, held until it is released or the process ends."""

    def __init__(self, places: Places) -> None:
        """Take the lock; FatalError names the process that holds it."""
        lock = private_files.try_lock(places.lock)
        if lock is None:
            holder = places.lock.read_bytes()[:10].decode("ascii", errors="replace").strip()
            raise FatalError(
                f"cannot open the ledger {places.database}: process {holder} writes to it; stop that process first"
            )
        try:
            os.pwrite(lock, f"{os.getpid():<10}\n".encode(), 0)
        except OSError:
            os.close(lock)
            raise
        self._file = lock

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)


class HeadFiles:
    """The number and hash of the newest row in a small file: a chain alone cannot show that its last rows are missing.

    A second file of this kind is in the run directory. If an older copy of the state directory was put
    back, its head differs from that file. Then no proof in the ledger counts (``may_be_old``). The same if that file
    is missing.

    The files are written in place after each commit and not forced to the disk: that costs microseconds, and the
    content survives a crash of the service. After a power loss a file may be behind the ledger, which is no error: the
    boot id has changed by then, so no proof in the ledger counts any more.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._open: dict[Path, int] = {}

    def write(self, head: store.Head, *, vouch: bool) -> None:
        """Store this head, in one write of a fixed length. ``vouch``: also in the run directory."""
        line = f"{head.seq:020d} {head.hash}\n".encode()
        # The file in the state directory last: a row that it names may not be deleted after an error.
        for path in (self._places.run_head if vouch else None, self._places.head):
            if path is None:
                continue
            if path not in self._open:
                self._open[path] = private_files.opened(path, os.O_RDWR | os.O_CREAT)
            if (written := os.pwrite(self._open[path], line, 0)) != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> None:
        """Force the file in the state directory to the disk."""
        if self._places.head in self._open:
            os.fsync(self._open[self._places.head])

    def close(self) -> None:
        """Close the files; the next write opens them again."""
        for file in self._open.values():
            os.close(file)
        self._open = {}


def read_head(path: Path) -> store.Head | None:
    """The stored head, None when there is no file; CorruptLedgerError when the file cannot be parsed."""
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if (found := _LINE.fullmatch(text)) is None:
        raise store.CorruptLedgerError(f"cannot read the head file: {path} is damaged")
    return store.Head(int(found[1]), found[2])
