"""The control groups of one stage, of version 2: its fence stands below them and sees no other process of the machine.

Nothing but the fence reads them: a pod's processes are in ``kubepods/podUID`` as with a kubelet.
"""

from __future__ import annotations

import os
import secrets
import select
import uuid
from contextlib import suppress
from pathlib import Path

from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import FenceError
from scrubber.node import own_cgroup


def make() -> Path | None:
    """A new group below that of this process; None where this user cannot make one."""
    try:
        return _make()
    except (FenceError, OSError):
        return None


def why_none() -> str:
    """Why this user cannot make one; empty: it can."""
    try:
        _make().rmdir()
    except FenceError as error:
        return str(error)
    except OSError as error:
        return f"this user cannot make a control group: {error.strerror}"
    return ""


def _make() -> Path:
    root = fence.root()
    top = (own_cgroup.find(root) or root) / f"autoclave-stage-{uuid.uuid4().hex[:8]}"
    top.mkdir()
    return top


def of_container(top: Path, pod: str) -> Path:
    """A new group of a container, in that of its pod."""
    group = top / "kubepods" / f"pod{pod}" / secrets.token_hex(32)
    group.mkdir(parents=True)
    return group


def of_process(top: Path, container: str) -> Path:
    """The group of a process that no kubelet has started: a new one of this container, or that of the host."""
    if container:
        return of_container(top, container)
    (host := top / "host").mkdir(exist_ok=True)
    return host


def inside(group: Path) -> tuple[str, ...]:
    """The words before a command that execute it in this group: there it opens what it opens."""
    return "sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")


def remove(top: Path) -> None:
    """Take the fence down, end what is left, such as workers of a killed service, and remove all groups."""
    with suppress(FenceError):
        fence.take_down(top)
    end(top)


def end(group: Path) -> None:
    """End all processes of a group, and remove it."""
    (group / "cgroup.kill").write_text("1")
    with (group / "cgroup.events").open() as events:
        ended = select.poll()
        ended.register(events, select.POLLPRI)
        while "populated 1" in events.read():
            ended.poll()
            events.seek(0)
    clear(group)


def remove_pod(top: Path, pod: str) -> None:
    """Remove those groups of a pod that have no process left."""
    clear(top / "kubepods" / f"pod{pod}")


def clear(group: Path) -> None:
    """Remove a group, and all below it, as far as no process is in them."""
    for directory, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(directory).rmdir()
