"""The id of the control group that holds a pod, for the fence: the kernel knows groups by their ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scrubber.node import group_names
from scrubber.node.group_places import is_populated, unusual, usual

_REMEMBERED = 4096  # pods; a node runs some hundred at a time


class GroupIds:
    """The ids of the groups of version 2 that hold pods or containers.

    Whoever may write to control groups can make one with the name of any pod. So the group of a pod is the one that the
    runtime says it was told to use, or the only one that holds a process or container; once found, it stays the pod's.
    """

    def __init__(self, root: Path, made_for: Callable[[str], str | None] = lambda _pod: None) -> None:
        """``root``: where the root of version 2 is mounted.

        ``made_for``: the path of the group that the container runtime was told to use for a pod, if the runtime says
        that.
        """
        self._root = root
        self._made_for = made_for
        self.rivals: dict[str, frozenset[Path]] = {}  # by pod: groups with its name that hold somebody and are not its
        self._chosen: dict[str, Path] = {}  # the group of each pod or container that was asked for

    def of(self, name: str) -> frozenset[int]:
        """The id of the group that holds a pod or container. Empty where that cannot be said."""
        group = self._chosen.get(name)
        holding = {other for other in usual(self._root, name) if other != group and _holds(other)}
        if group is None:
            made = self._made_for(name)
            holding.update(filter(_holds, unusual(self._root, name)))
            candidates = holding if made is None else set(filter(_holds, [self._root / made.lstrip("/")]))
            if len(candidates) == 1:
                self._chosen[name] = group = candidates.pop()
                if len(self._chosen) > _REMEMBERED:
                    del self._chosen[next(iter(self._chosen))]
        self.rivals.pop(name, None)
        if rivals := frozenset(holding - {group}):
            self.rivals[name] = rivals
        try:
            return frozenset({group.stat().st_ino}) if group is not None else frozenset()
        except FileNotFoundError:
            return frozenset()


def _holds(group: Path) -> bool:
    """Whether a process is in a group of version 2 or below it, or a runtime has made a container's group there.

    Another driver of the kubelet than of the runtime leaves a group that holds neither.
    """
    if not group.is_dir():
        return False
    if is_populated(group):
        return True
    with suppress(OSError), os.scandir(group) as entries:
        return any(group_names.is_container(entry.name) and entry.is_dir() for entry in entries)
    return False
