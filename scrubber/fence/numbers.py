"""The major and minor number of a device node, by which the fence knows it.

Workers load this module, and nothing else of the fence.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scrubber.core.model import DeviceNumber, NodeKind


def number_of(node: Path) -> DeviceNumber | None:
    """The number of a device node; None if it is something else. Raises OSError."""
    status = node.stat()
    if stat.S_ISCHR(status.st_mode):
        kind = NodeKind.CHARACTER
    elif stat.S_ISBLK(status.st_mode):
        kind = NodeKind.BLOCK
    else:
        return None
    return DeviceNumber(kind, os.major(status.st_rdev), os.minor(status.st_rdev))
