"""Ask the kernel whether any process has a file open or mapped. Reads nothing under /proc if the answer is no.

The kernel grants a write lease on a file only if no other open file description of that file exists on the machine. A
description lives until its last use ends: a descriptor, a mapping, a message in transit on a unix socket, a slot of an
io_uring. So the answer counts holders that do not show under /proc, and holders that fork or open and close the file
faster than anyone can read /proc. The lease belongs to the inode, so names, mounts and namespaces do not matter.

Whoever asks, and each worker that opens or closes a file, holds the lock of its directory. Otherwise they would take
each other for a holder: during open(2) and close(2), the file is open and no process shows a descriptor of it.

Device nodes have no leases: for them the answer is always None. Where the kernel refuses to answer about another file,
nothing is known: a tenant may have given away its file, whose lease only the owner may ask for.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from ground import private_files
from scrubber.node.proc import ENDED, status

LOCKED_WITHIN = 1.0  # seconds: a process that a signal has stopped may hold the lock of a directory for ever

_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILE = 0
_PIDFD_GETFD = 438  # the same number on every architecture
_libc = ctypes.CDLL(None)

Beside = Mapping[int, float | None]


class RefusedError(Exception):
    """The kernel does not say whether a file is open, or another process holds the lock: the file may be open."""


def is_open(files: Iterable[str], beside: Beside = MappingProxyType({})) -> bool | None:
    """Whether a process has one of the files open or mapped. RefusedError if this cannot be found out.

    None: no lease can tell it, because a file is a device node, or the processes in ``beside`` have it open twice.

    ``beside``: processes that do not count, by pid, with their start times. Without a start time (None), any process
    with that pid does not count.
    """
    answers = {_is_open(path, beside) for path in files}
    if True in answers:
        return True
    return None if None in answers or not answers else False


def _is_open(path: str, beside: Beside) -> bool | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - text; never open a device node only to ask
            return None
        with private_files.locked(Path(path).parent, LOCKED_WITHIN):
            # O_NONBLOCK: do not wait for a process that has a lease, which is a holder. To read only: a tenant may
            # have taken away the right to write.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                held = _others_have(handle)
                if held is not True or not beside:
                    return held
                identity = os.fstat(handle)
            finally:
                os.close(handle)
            return _held_besides(identity, beside)
    except OSError as error:
        return _refused(error)


def _others_have(handle: int) -> bool:
    """Whether there is another open file description of this open file."""
    try:
        keep_others_out(handle)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return _refused(error)
    return False


def keep_others_out(handle: int) -> None:
    """Let no process open this open file until it is closed; OSError if one has it open."""
    # A process that opens the file during our lease causes a signal to us: SIGIO would end us, SIGURG is ignored.
    fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def _held_besides(file: os.stat_result, beside: Beside) -> bool | None:
    """Whether there is another description than the one that these processes have. None if they have several."""
    us = os.getpid()
    with ExitStack() as closing:
        own: list[int] = []
        for handle in _borrowed(file, beside):
            closing.callback(os.close, handle)
            own.append(handle)
        if not own:
            return True
        return _others_have(own[0]) if all(same(us, us, _KCMP_FILE, own[0], other) for other in own[1:]) else None


def _borrowed(file: os.stat_result, processes: Beside) -> Iterator[int]:
    """Duplicates of the descriptors with which these processes have the file open. The caller closes them."""
    for pid, started in processes.items():
        try:
            process = os.pidfd_open(pid)
        except OSError:
            continue  # it has ended
        try:
            # Compare after the pidfd was opened: a holder may have got the pid of the process before, but not since.
            if started is None or status(f"/proc/{pid}").started == started:
                yield from _duplicates(process, pid, file)
        except ENDED:
            continue
        finally:
            os.close(process)


def _duplicates(process: int, pid: int, file: os.stat_result) -> Iterator[int]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 -- text
    except OSError:
        return  # it has ended, or may not be read: then its file counts like that of any other process
    for name in names:
        if not _leads_to(f"/proc/{pid}/fd/{name}", file):
            continue
        handle = _libc.syscall(_PIDFD_GETFD, process, int(name), 0)
        if handle < 0:
            continue
        if os.path.samestat(os.fstat(handle), file):
            yield handle
        else:  # the process has opened another file under this number meanwhile
            os.close(handle)


def _leads_to(link: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(link), file)  # noqa: PTH116 -- text
    except OSError:
        return False  # closed meanwhile


def same(pid: int, other: int, kind: int, descriptor: int = 0, others: int = 0) -> bool:
    """Whether two tasks share what ``kind`` says (kcmp(2)). False where the kernel refuses to compare them."""
    return _KCMP is not None and _libc.syscall(_KCMP, pid, other, kind, descriptor, others) == 0


def _refused(error: OSError) -> bool:
    if error.errno == errno.EAGAIN:
        return True
    raise RefusedError(error.strerror) from error
