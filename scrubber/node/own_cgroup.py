"""The control group of this process itself, and how it moves into a group of its own."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from scrubber.node import group_names
from scrubber.node.group_places import GROUPS
from scrubber.node.proc import cgroup_text


def find(root: Path, proc: Path = Path("/proc")) -> Path | None:
    """The control group of version 2 that this process is in. None: it cannot be told.

    ``root``: where the root of that version is mounted. In a container, paths begin at the container's own group, which
    is mounted at the usual place.
    """
    inside = group_names.unified(cgroup_text(f"{proc}/self"))
    if inside is None:
        return None
    for mount in (root, GROUPS):
        group = mount / inside.lstrip("/")
        with suppress(OSError):
            if str(os.getpid()) in (group / "cgroup.procs").read_text().split():
                return group
    return None


def move_below(group: Path, name: str) -> Path:
    """Move this process into a group of its own of this name. Raises OSError.

    A container that sees its groups read-only has its group for itself already, and stays there.
    """
    own = group / name
    if not (group / "cgroup.procs").exists():
        raise FileNotFoundError(errno.ENOENT, f"{group} is not a control group of version 2")
    try:
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return group
    return own
