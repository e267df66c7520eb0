"""Ask the kernel whether any process has a file open or mapped. Reads nothing under /proc.

The kernel grants a write lease on a file only if no other open file description of that file exists on the machine. A
description lives until its last use ends: a descriptor, a mapping, a message in transit on a unix socket, a slot of an
io_uring. So the answer counts holders that do not show under /proc, and holders that fork or open and close the file
faster than anyone can read /proc. The lease belongs to the inode, so names, mounts and namespaces do not matter.

Whoever asks, and each worker that opens or closes a file, holds the lock of its directory. Otherwise they would take
each other for a holder: during open(2) and close(2), the file is open and no process shows a descriptor of it.

Where the kernel refuses to answer about another file, nothing is known: a tenant may have given away its file, whose
lease only the owner may ask for.

The kernel gives no lease on a device node. But it drops the cached pages of a block device when the last open file of
the device is closed (``blkdev_flush_mapping`` in block/bdev.c, also in Linux 6.1). So a page that outlives our own open
file shows that there is another one. A process that zeroes the device (BLKZEROOUT) at this very moment hides itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from ground import private_files
from scrubber.devices.base import DeviceError

LOCKED_WITHIN = 1.0  # seconds: a process that a signal has stopped may hold the lock of a directory for ever

_libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(DeviceError):
    """The kernel does not say whether a file is open, or another process holds the lock: the file may be open."""


def is_open(files: Iterable[str]) -> bool:
    """Whether a process has one of the files open or mapped. RefusedError if this cannot be found out."""
    return True in {_is_open(path) for path in files}


def _is_open(path: str) -> bool:
    try:
        with private_files.locked(Path(path).parent, LOCKED_WITHIN):
            return _keeps_pages(path) if Path(path).is_block_device() else _has_others(path)
    except OSError as error:
        raise RefusedError(f"cannot tell whether a process has {path} open: {error.strerror}") from error


def _has_others(path: str) -> bool:
    # O_NONBLOCK: do not wait for a process that has a lease, which is a holder. To read only: a tenant may have taken
    # away the right to write.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except BlockingIOError:
        return True
    try:
        keep_others_out(handle)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _keeps_pages(node: str) -> bool:
    """Whether a page of a block device outlives our open file."""
    with ExitStack() as closing:
        pins, into = os.pipe2(os.O_CLOEXEC)
        closing.callback(os.close, pins)
        closing.callback(os.close, into)
        device = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        try:
            page = os.lseek(device, 0, os.SEEK_END) // mmap.PAGESIZE // 2 * mmap.PAGESIZE
            # The pipe keeps the page: lack of memory does not make the kernel drop it, the last close does.
            os.splice(device, into, mmap.PAGESIZE, offset_src=page)
            if not _is_cached(device, page):
                raise OSError(errno.ENODATA, "the kernel does not cache it")
        finally:
            os.close(device)
        device = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        closing.callback(os.close, device)
        return _is_cached(device, page)


def _is_cached(device: int, page: int) -> bool:
    with mmap.mmap(device, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=page) as mapped:
        # Python gives the address of a writable mapping only, so this one is private. Nothing touches it.
        place, answer = ctypes.addressof(ctypes.c_char.from_buffer(mapped)), ctypes.c_ubyte()
        if _libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), ctypes.byref(answer)) != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
    return bool(answer.value & 1)


def keep_others_out(handle: int) -> None:
    """Let no process open this open file until it is closed; OSError if one has it open."""
    # A process that opens the file during our lease causes a signal to us: SIGIO would end us, SIGURG is ignored.
    fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
