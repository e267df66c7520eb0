"""Read the messages of the kernel from /dev/kmsg.

A record is ``PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,MORE];TEXT``; lines after it that begin with a space belong to it
(the kernel's Documentation/ABI/testing/dev-kmsg). A program may write any text there, but not as the kernel: its
messages have another facility in their priority, and are skipped. The kernel escapes unprintable characters, so no text
can end its record early.

The time is that of the kernel's message clock. The clock starts at boot, stops while the machine is suspended and is
never adjusted: it is near the uptime, but not equal to it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ground import log

logger = log.get("kernellog")

LARGEST = 16 * 1024  # bytes of one read: twice what the kernel makes of the longest record
_RECORD = re.compile(rb"(\d{1,10}),\d{1,20},(\d{1,20}),[^;]*;(.*)", re.DOTALL)
_FACILITY_SHIFT = 3  # the bits below are the severity
_KERNEL = 0
_KMSG = os.makedev(1, 11)  # the kernel's Documentation/admin-guide/devices.txt


class KernelLog:
    """The kernel log, from the oldest message that it still holds; for one reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._rest = b""
        self.overwritten = 0  # how often unread messages were overwritten

    def open(self) -> str:
        """Open the log; returns why it cannot be read, or "". ``fileno`` is readable when there are new messages."""
        try:
            self._descriptor = _opened(self._path)
        except OSError as error:
            return f"{self._path}: {(error.strerror or str(error)).lower()}"
        return ""

    def fileno(self) -> int:
        """The file descriptor."""
        return self._descriptor

    def messages(self) -> Iterator[tuple[int, str]]:
        """The new messages: microseconds and text. EOFError or OSError when no more messages can come."""
        while (chunk := self._read()) is not None:
            if not chunk:
                raise EOFError("the log has ended")
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest[:LARGEST]  # keep the start: it holds the facility, and no later text can begin a record
            yield from filter(None, map(of_the_kernel, lines))

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def _read(self) -> bytes | None:
        while True:
            try:
                return os.read(self._descriptor, LARGEST)
            except BlockingIOError:
                return None
            except BrokenPipeError:  # the ring buffer overwrote unread messages
                if not self.overwritten:
                    logger.warning("kernel messages were overwritten before they were read: XIDs may be missing")
                self.overwritten += 1


def of_the_kernel(line: bytes) -> tuple[int, str] | None:
    """Microseconds and text of a kernel message; None for other lines and for messages of programs."""
    record = _RECORD.fullmatch(line)
    if record is None or int(record[1]) >> _FACILITY_SHIFT != _KERNEL:
        return None
    return int(record[2]), record[3].decode(errors="replace")


def check_readable(path: Path) -> None:
    """Raise OSError if this process cannot read the log."""
    os.close(_opened(path))


def _opened(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    # A node in a container may have /dev/null or a console in its place, which would stay silent for ever.
    if (stat.S_ISCHR(status.st_mode) and status.st_rdev == _KMSG) or stat.S_ISFIFO(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a kernel log")
