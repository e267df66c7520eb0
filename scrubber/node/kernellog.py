"""What the kernel itself has said since it booted, as /dev/kmsg gives it.

A record is ``PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,MORE];TEXT``; lines after it that begin with a space belong to it
(the kernel's Documentation/ABI/testing/dev-kmsg). Whoever may write there can say any text, but not as the kernel: what
programs write bears another facility in its priority, and is passed over here. The kernel escapes what is not
printable, so that no text, whoever has a part in it, can break out of its record.

The time is that of the kernel's own clock for messages. It begins with the boot, stands still while the machine is
suspended, and nobody sets it right: it is near the time since boot, and not equal to it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from scrubber.core.diagnosis.base import CheckFault
from scrubber.ground import log
from scrubber.node import safe_read

logger = log.get("kernellog")

LARGEST = 16 * 1024  # bytes of one read: twice what the kernel makes of the longest record
_RECORD = re.compile(rb"(\d{1,10}),\d{1,20},(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_FACILITY_SHIFT = 3  # below it is how grave the message is
_KERNEL = 0


class KernelLog:
    """The log, from its oldest message that is left; for one reader."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path
        self._descriptor = -1
        self._rest = b""
        self._missed = False

    def open(self) -> str:
        """Why it cannot be read; nothing where it can, and then ``fileno`` is readable when there is more to say."""
        opened = _opened(self._path)
        if isinstance(opened, CheckFault):
            return f"{self._path}: {opened.text}"
        self._descriptor = opened
        return ""

    def fileno(self) -> int:
        """The open file."""
        return self._descriptor

    def messages(self) -> Iterator[tuple[int, str]]:
        """All that is new: when, in microseconds, and the text. EOFError or OSError when there will be no more."""
        while (chunk := self._read()) is not None:
            if not chunk:
                raise EOFError("it has come to its end")
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[:LARGEST]  # its head, which says whose it is: no text in it can begin a record
            yield from filter(None, map(of_the_kernel, lines))

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)

    def _read(self) -> bytes | None:
        while True:
            try:
                return os.read(self._descriptor, LARGEST)
            except BlockingIOError:
                return None
            except BrokenPipeError:  # it went round before we had read what was overwritten
                self._miss()

    def _miss(self) -> None:
        if not self._missed:
            logger.warning("messages of the kernel were overwritten unread: an XID among them was not seen")
        self._missed = True


def of_the_kernel(line: bytes) -> tuple[int, str] | None:
    """When it was said, in microseconds, and the text; None of what is no record, or not the kernel's."""
    found = _RECORD.fullmatch(line)
    if found is None or int(found[1]) >> _FACILITY_SHIFT != _KERNEL:
        return None
    return int(found[2]), found[3].decode(errors="replace")


def unreadable(path: Path) -> CheckFault | None:
    """Why the log cannot be read from here."""
    opened = _opened(path)
    if isinstance(opened, CheckFault):
        return opened
    os.close(opened)
    return None


def _opened(path: Path) -> int | CheckFault:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return safe_read.fault(error)
    if stat.S_ISCHR(mode := os.fstat(descriptor).st_mode) or stat.S_ISFIFO(mode):
        return descriptor
    os.close(descriptor)
    return CheckFault("it is no log of a kernel")
