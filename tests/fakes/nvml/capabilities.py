"""The files that open MIG instances: they come and go with the instances.

The library does the same for those that it makes itself: see capabilities.c.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

FIRST, A_GPU, AN_INSTANCE = 3, 135, 9
_PART = re.compile(r"gpu\.(\d+)\.mig\.\d+\.gi")
_INSTANCE = re.compile(r"gpu\.(\d+)\.gi\.(\d+)\.profile")

Opened = tuple[int, int, int | None]  # the minor of a GPU, an instance of it, and the part of that; None: all of it


def follow(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Take away what is there no more and make what is new; nothing where no host shows such files."""
    if "root" not in after:
        return
    root, old, new = Path(after["root"]), opened(before), opened(after)
    for minor, gi, ci in old - new:
        shutil.rmtree(access(root, minor, gi, ci).parent, ignore_errors=True)
    for minor, gi, ci in new - old:
        show(root, minor, gi, ci)


def opened(state: Mapping[str, str]) -> set[Opened]:
    """All that there is in this state."""
    found: set[Opened] = set()
    for key, value in state.items():
        if part := _PART.fullmatch(key):
            minor, gi = int(state[f"gpu.{part[1]}.minor"]), int(value)
            found |= {(minor, gi, None), (minor, gi, int(state[key.removesuffix("gi") + "ci"]))}
        elif instance := _INSTANCE.fullmatch(key):
            found.add((int(state[f"gpu.{instance[1]}.minor"]), int(instance[2]), None))
    return found


def access(root: Path, minor: int, gi: int, ci: int | None = None) -> Path:
    """The file under /proc that tells which node opens it."""
    instance = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
    return (instance if ci is None else instance / f"ci{ci}") / "access"


def show(root: Path, minor: int, gi: int, ci: int | None) -> None:
    """Make that file, and the node."""
    number = FIRST + minor * A_GPU + gi * AN_INSTANCE + (0 if ci is None else 1 + ci)
    file, node = access(root, minor, gi, ci), root / f"dev/nvidia-caps/nvidia-cap{number}"
    for path in (file, node):
        path.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    node.touch()
