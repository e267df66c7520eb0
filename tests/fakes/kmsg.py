"""A kernel's log of a test's own: a pipe in the place of /dev/kmsg, which gives records in the same form."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

KERNEL, USER = 0, 1  # facilities


class Kmsg:
    """Open for writing until ``close``; what was said before somebody reads waits, as in a kernel."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        self.path = path
        self._pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._numbers = itertools.count()

    def say(self, text: str, facility: int = KERNEL, at: float | None = None) -> None:
        """A message, now or ``at`` a time by the kernel's clock. What is not printable is escaped, as it does it."""
        said = "".join(it if " " <= it <= "~" and it != "\\" else f"\\x{ord(it):02x}" for it in text)
        microseconds = int((time.clock_gettime(time.CLOCK_MONOTONIC_RAW) if at is None else at) * 1e6)
        assert microseconds >= 0, "a kernel says nothing before it runs"
        self.write(f"{facility << 3 | 3},{next(self._numbers)},{microseconds},-;{said}\n".encode())

    def write(self, record: bytes) -> None:
        os.write(self._pipe, record)

    def xid(self, pci: str, code: int, more: str = "", about: str = "", at: float | None = None) -> None:
        """As the driver says it; ``pci`` is the address with or without its function."""
        place = pci.partition(".")[0]
        self.say(f"NVRM: Xid (PCI:{place}{about}): {code}, pid=4711, name=python{more}", at=at)

    def close(self) -> None:
        """Nothing more will be said; may be said twice."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
