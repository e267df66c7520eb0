"""The one place that reads clocks for events, and that tells this run of the kubelet from others."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from ground import boot, paths
from scrubber.core.model import Moment
from scrubber.core.standstills import Clocks

NO_KUBELET = "none"
TOGETHER = 0.01  # seconds: clocks that are read within this time are read at one moment


def now() -> Moment:
    """The current wall time and uptime."""
    return Moment(wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME))


def clocks() -> Clocks:
    """All clocks at one moment. They are read again if the process did not run meanwhile."""
    while True:
        began, wall, awake = boot.uptime(), time.time(), time.monotonic()
        if boot.uptime() - began < TOGETHER:
            return Clocks(Moment(wall, began), awake)


def kubelet_epoch(directory: Path) -> str:
    """The id of this run of the kubelet, from the socket that the kubelet creates at each start."""
    try:
        socket = os.stat(f"{directory}/{paths.KUBELET_SOCKET}")  # noqa: PTH116 - called at every grant, and a Path is slow
    except FileNotFoundError:
        return NO_KUBELET
    except OSError:
        return f"unreadable {uuid.uuid4().hex}"  # unique, so that no grant of another run counts
    # The change time too, because a file system reuses the inode of a removed file.
    return f"{socket.st_dev}:{socket.st_ino}:{socket.st_ctime_ns}"
