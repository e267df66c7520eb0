"""The number and hash of the newest row in a small file: a chain alone cannot show that its last rows are missing.

A second file of this kind is in the run directory. A copy of the state directory that is put back has another head
than that file, or the file is missing: then no proof in the ledger counts (``may_be_old``).

The file is written in place after each commit and not forced to the disk: that costs microseconds, and the content
survives a crash of the service. After a power loss the file may be behind the ledger, which is no error: the boot id
has changed by then, so no proof in the ledger counts any more.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scrubber.ground import private_files
from scrubber.ledger import store

_LINE = re.compile(r"(\d{20}) ([0-9a-f]{64})\n")


class HeadFile:
    """The file, open for writing."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it if it does not exist."""
        self._file = private_files.opened(path, os.O_RDWR | os.O_CREAT)

    def write(self, head: store.Head) -> None:
        """Store this head, in one write of a fixed length."""
        line = f"{head.seq:020d} {head.hash}\n".encode()
        if (written := os.pwrite(self._file, line, 0)) != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> None:
        """Force the file to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> store.Head | None:
    """The stored head, None when there is no file; CorruptLedgerError when the file cannot be parsed."""
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if (found := _LINE.fullmatch(text)) is None:
        raise store.CorruptLedgerError(f"cannot read the head file: {path} is damaged")
    return store.Head(int(found[1]), found[2])
