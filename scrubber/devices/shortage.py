"""What this process or its node lacks: open files, memory, processes, processors, space.

A shortage says nothing about a device.

An error is judged where it leaves the room of the devices: in ``blocking_calls.Caller`` for the service, in
``steps.step_functions`` for a worker, and in ``nvidia.nvml``, before a failed call counts as the answer of a device.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from ground.private_files import ForeignFileError
from scrubber.devices.base import ShortageError

NO_PROCESSOR = "the scrub service was stopped, or gets too little processor time: give it, or its node, more"
_NO_START = "can't start new thread"  # Python does not keep the errno
_LACKS = {
    errno.EMFILE: "the scrub service has too many files open: raise its limit of open files (LimitNOFILE)",
    errno.ENFILE: "the node has too many files open: raise its limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "the scrub service gets no more memory: give it, or its node, more",
    errno.EAGAIN: "the scrub service can start no process or thread: raise its limit of tasks (TasksMax, pids.max)",
    errno.ENOSPC: "a disk of the node is full: make room",
    errno.EDQUOT: "the disk quota of the scrub service is used up: raise it",
}


def of(error: BaseException) -> str | None:
    """The shortage that caused an error, and what to do; None if the error has another cause.

    The errors that led to the error tell, whatever they were turned into. Libraries do not say why they fail, so a
    shortage that this process has just now counts as well.
    """
    for cause in _causes(error):
        lack = _lack_behind(cause)
        if lack is not None:
            return lack
    try:
        os.close(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as present:
        return _lack_behind(present)
    return None


def judged(error: BaseException) -> BaseException:
    """The error, or a ShortageError in its place if a shortage caused it."""
    lack = None if isinstance(error, ShortageError) else of(error)
    if lack is None:
        return error
    shortage = ShortageError(lack)
    shortage.__cause__ = error
    return shortage


def demand_none(error: BaseException) -> None:
    """Raise ShortageError if a shortage caused the error."""
    lack = of(error)
    if lack is not None:
        raise ShortageError(lack) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all errors that it was raised for."""
    seen: list[BaseException] = []
    unread = [error]
    while unread:
        each = unread.pop()
        if any(each is other for other in seen):
            continue
        seen.append(each)
        yield each
        several = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        unread += [cause for cause in (each.__cause__, each.__context__, *several) if cause is not None]


def _lack_behind(error: BaseException) -> str | None:
    match error:
        case ShortageError():
            return str(error)
        case MemoryError():
            return _LACKS[errno.ENOMEM]
        case RuntimeError() if _NO_START in str(error):
            return _LACKS[errno.EAGAIN]
        case ForeignFileError():
            return f"a file of the scrub service is not its own: {error.filename}: {error.strerror}"
        case OSError():
            return _LACKS.get(error.errno or 0)
    return None
