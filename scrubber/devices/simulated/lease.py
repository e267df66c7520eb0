"""Find out with one kernel call, without /proc, whether a process has a memory file open or mapped.

The kernel grants a write lease only on a file that no other process has open or mapped, in any namespace. A mapping
counts after its descriptor is closed too. The lease belongs to the inode, so names do not matter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path


def held(path: Path) -> bool | None:
    """Whether another process has the file open or mapped; None if the kernel cannot tell."""
    try:
        # Without O_NONBLOCK, open waits for the lease of another caller; with it, that caller counts as a holder.
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return _refusal(error)
    try:
        # A process that opens the file during our lease causes a signal to us: SIGIO would end us, SIGURG is ignored.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return _refusal(error)
    finally:
        os.close(handle)
    return False


def _refusal(error: OSError) -> bool | None:
    return True if error.errno == errno.EAGAIN else None
