"""The newest row's number and hash in a small file beside the ledger, because no chain can show that its tail is gone.

Written in place after each commit and not forced to the disk: that costs microseconds, and survives whatever the kernel
survives. After a power loss it may be behind, which is no alarm; by then the boot id has changed and nothing that the
ledger says of any memory is believed anyway.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scrubber.ledger import store

_LINE = re.compile(r"(\d{20}) ([0-9a-f]{64})\n")


class HeadFile:
    """The file, open for writing."""

    def __init__(self, path: Path) -> None:
        """Open it, create it if need be."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, head: store.Head) -> None:
        """Remember this head, in one write of a fixed length."""
        line = f"{head.seq:020d} {head.hash}\n".encode()
        if (written := os.pwrite(self._file, line, 0)) != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> None:
        """What was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)


def read(path: Path) -> store.Head | None:
    """The head that was remembered, None when there is no file; a line that makes no sense is damage."""
    try:
        text = path.read_bytes().decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if (found := _LINE.fullmatch(text)) is None:
        raise store.CorruptLedgerError(f"cannot read the ledger's head: {path} is damaged")
    return store.Head(int(found[1]), found[2])
