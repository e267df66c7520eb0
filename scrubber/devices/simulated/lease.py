"""Whether anybody uses a memory file, asked of the kernel in one call and without /proc.

A write lease is granted only on a file that nobody else has open or mapped, in any process or namespace; a mapping
outlives its descriptor here too. The one who is asked is the file's inode, so names do not matter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path


def held(path: Path) -> bool | None:
    """Whether anybody else has the file open or mapped; None when the kernel will not say."""
    try:
        # Without O_NONBLOCK, an open would wait for another asker's lease; with it, that asker counts as a holder.
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return _refusal(error)
    try:
        # Whoever opens the file while we hold the lease sends us a signal: SIGIO would end us, SIGURG does nothing.
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
