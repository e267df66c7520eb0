"""Who opens a file, as the kernel reports it (fanotify): also a process that has it open for a moment only.

It is for people, and proves nothing: the kernel tells root only, and a container may have a device file of its own.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Generator, Iterator, Sequence

_CLOEXEC, _NONBLOCK, _REPORT_FID = 0x1, 0x2, 0x200  # fanotify_init(2); with the last one, no event opens the file
_MARK_ADD, _OPEN = 0x1, 0x20  # fanotify_mark(2)
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # fanotify(7): length, version, -, length of this part, mask, descriptor, pid
_MOST = 2**16  # bytes that are read at once


def pids(files: Sequence[str], within: float) -> Generator[int, None, None]:
    """The process of each open of these files for so many seconds; none if the kernel does not tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.fanotify_init(_CLOEXEC | _NONBLOCK | _REPORT_FID, os.O_RDONLY)
    if queue < 0:  # no root, or an old kernel
        return
    try:
        for file in files:
            libc.fanotify_mark(queue, _MARK_ADD, ctypes.c_uint64(_OPEN), _AT_FDCWD, os.fsencode(file))
        ends = time.monotonic() + within
        while (left := ends - time.monotonic()) > 0 and select.select([queue], [], [], left)[0]:
            yield from _read(os.read(queue, _MOST))
    finally:
        os.close(queue)


def _read(events: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(events):
        length, *_, pid = _EVENT.unpack_from(events, offset)
        yield pid
        offset += length
