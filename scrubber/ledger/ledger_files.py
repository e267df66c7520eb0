"""The files of a ledger: their names, the lock of its writer, and the files that hold its head."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ground import private_files
from ground.errors import FatalError
from scrubber.ledger.ledger_rows import CorruptLedgerError
from scrubber.receipts.merkle import Head

_HEAD = re.compile(r"(\d{20}) ([0-9a-f]{64})\n")


class LedgerPaths:
    """The files of a ledger; their names follow from that of the database."""

    def __init__(self, database: Path, run_head: Path | None = None) -> None:
        """``run_head``: a second file for the head, outside the state directory."""
        name = database.name.removesuffix(".sqlite")
        self.database = database
        self.wal = database.with_name(database.name + "-wal")  # SQLite's write-ahead log: part of the data
        self.shm = database.with_name(database.name + "-shm")  # SQLite's index of the log: rebuilt at need
        self.head = database.with_name(name + ".head")  # how many rows there are, and the root of their tree
        self.run_head = run_head
        self.lock = database.with_name(name + ".lock")  # the writer holds a lock on it
        self.fresh = database.with_name(database.name + ".new")  # a new ledger, before it is renamed to ``database``

    def check(self, demand: Callable[[Path], None]) -> None:
        """Check each file: SQLite follows links and opens any kind of file. ``demand`` raises ForeignFileError."""
        for path in (self.database, self.wal, self.shm, self.head, self.run_head):
            if path is not None:
                demand(path)

    def check_not_lost(self, *remedies: str) -> None:
        """CorruptLedgerError with these remedies if there is no database, but other files of the ledger are there."""
        left = [path.name for path in (self.wal, self.shm, self.head) if path.exists()]
        if left and not self.database.exists():
            exist = f"{left[0]} exists" if len(left) == 1 else f"{', '.join(left[:-1])} and {left[-1]} exist"
            why = f"it is missing, although {exist}"
            raise CorruptLedgerError(f"cannot read the ledger {self.database}: {why}", None, *remedies, unreadable=why)

    def set_aside(self) -> tuple[str, ...]:
        """The names of damaged ledgers that were set aside in this directory."""
        names = (path.name for path in self.database.parent.glob(f"{self.database.name}.corrupt-*"))
        return tuple(sorted(name for name in names if not name.endswith(("-wal", "-shm", ".head"))))


def lock(paths: LedgerPaths) -> int:
    """The file that holds the writer's lock until it is closed; FatalError names the process that holds it now."""
    file = private_files.try_lock(paths.lock)
    if file is None:
        holder = paths.lock.read_bytes()[:10].decode("ascii", errors="replace").strip()
        raise FatalError(
            f"cannot open the ledger {paths.database}: process {holder} writes to it", "stop that process first"
        )
    try:
        os.pwrite(file, f"{os.getpid():<10}\n".encode(), 0)
    except OSError:
        os.close(file)
        raise
    return file


class HeadFiles:
    """The number of rows and the root of their tree in a small file: the tree alone cannot show that rows are missing.

    A second file of this kind is in the run directory. If an older copy of the state directory was put back, it has not
    the rows of this file. Then no proof in the ledger counts (``may_be_old``). The same if this file is missing.

    The files are written in place after each commit and not forced to the disk: that costs microseconds, and the
    content survives a crash of the service. After a power loss a file may be behind the ledger, not an error: the
    boot id has changed by then, so no proof in the ledger counts any more.
    """

    def __init__(self, paths: LedgerPaths) -> None:
        self._paths = paths
        self._open: dict[Path, int] = {}

    def write(self, head: Head, *, vouch: bool) -> None:
        """Store this head, in one write of a fixed length. ``vouch``: also in the run directory."""
        line = f"{head.size:020d} {head.root}\n".encode()
        # The file in the state directory last: a row that it names may not be deleted after an error.
        for path in (self._paths.run_head if vouch else None, self._paths.head):
            if path is None:
                continue
            if path not in self._open:
                self._open[path] = private_files.opened(path, os.O_RDWR | os.O_CREAT)
            if (written := os.pwrite(self._open[path], line, 0)) != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> None:
        """Force the file in the state directory to the disk."""
        if self._paths.head in self._open:
            os.fsync(self._open[self._paths.head])

    def close(self) -> None:
        """Close the files; the next write opens them again."""
        for file in self._open.values():
            os.close(file)
        self._open = {}


def read_head(path: Path) -> Head | None:
    """The stored head, None when there is no file; CorruptLedgerError when the file cannot be parsed."""
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if (head := _HEAD.fullmatch(text)) is None:
        raise CorruptLedgerError(f"cannot read the head file: {path} is damaged")
    return Head(int(head[1]), head[2])
