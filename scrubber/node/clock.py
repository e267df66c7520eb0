"""The one place that reads clocks for events, and that tells this run of the kubelet from others."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from scrubber.core.model import Moment

KUBELET_SOCKET = "kubelet.sock"
NO_KUBELET = "none"


def now() -> Moment:
    """The current wall time and uptime."""
    return Moment(wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME))


def kubelet_epoch(directory: Path) -> str:
    """The id of this run of the kubelet, from the socket that the kubelet creates at each start."""
    try:
        socket = os.stat(f"{directory}/{KUBELET_SOCKET}")  # noqa: PTH116 - called at every grant, and a Path is slow
    except FileNotFoundError:
        return NO_KUBELET
    except OSError:
        return f"unreadable {uuid.uuid4().hex}"  # unique, so that no grant of another run counts
    # The change time too, because a file system reuses the inode of a removed file.
    return f"{socket.st_dev}:{socket.st_ino}:{socket.st_ctime_ns}"
