"""This boot of the node: its id, and the time since it began."""

from __future__ import annotations

import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(file: Path = BOOT_ID) -> str:
    """The id of this boot; the kernel makes a new one at each boot."""
    return file.read_text().strip()


def uptime() -> float:
    """Seconds since the boot, on the clock of process start times. Includes suspends."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
