"""Control groups of the trial's own: a fence below them asks no other process of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import FenceError


@dataclass(frozen=True)
class Groups:
    """A group beside the fence, the one below which it stands, and below that those of an owner and of another."""

    beside: Path
    below: Path
    owner: Path
    other: Path


@contextmanager
def made() -> Iterator[Groups]:
    """New groups, of which nothing is left; FenceError or OSError if none can be made."""
    top = fence.root() / f"autoclave-trial-{os.getpid()}"
    below = top / "below"
    groups = Groups(top / "beside/pod/container", below, below / "owner/container", below / "other/container")
    try:
        for group in (groups.beside, groups.owner, groups.other):
            group.mkdir(parents=True)
        yield groups
    finally:
        with suppress(FenceError):
            fence.take_down(below)
        for directory, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()


@contextmanager
def made_if_possible() -> Iterator[Groups | None]:
    """None for an ordinary user, and where there is no cgroup v2: then no fence stands either."""
    try:
        fence.root().joinpath(f"autoclave-trial-{os.getpid()}").mkdir()
    except (FenceError, OSError):
        yield None
        return
    with made() as groups:
        yield groups


def entered(group: Path | None, *command: str) -> tuple[str, ...]:
    """The command, which enters this control group first."""
    if group is None:
        return command
    return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command)
