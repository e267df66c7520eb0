"""Which life of the node, and of its kubelet, this is."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KUBELET_SOCKET = "kubelet.sock"
NO_KUBELET = "none"


def boot_id(file: Path = BOOT_ID) -> str:
    """Names this boot: it is never the same again."""
    return file.read_text().strip()


def kubelet_epoch(directory: Path) -> str:
    """Names this kubelet life by the socket that it makes at each start."""
    try:
        socket = os.stat(f"{directory}/{KUBELET_SOCKET}")  # noqa: PTH116 - at every grant, and a path takes its time
    except FileNotFoundError:
        return NO_KUBELET
    except OSError:
        return f"unreadable {uuid.uuid4().hex}"  # like no other: what was granted in it is not granted again
    # The change time beside the inode, because a filesystem gives a removed file's inode to the next one.
    return f"{socket.st_dev}:{socket.st_ino}:{socket.st_ctime_ns}"
