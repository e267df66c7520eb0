"""Tells at once that a control group was made, or that systemd or the container runtime is about to use one.

A group appears before its first process: systemd makes that of a unit, then its link, then the process; the kubelet
makes that of a pod, and the runtime writes what it starts there. So whoever reads the groups again when this tells so
knows them before a process in them opens a device.

Nothing rests on it: a tenant that runs as root can take all inotify instances of root. What is not told is found in
rounds.
"""

from __future__ import annotations

import os
from pathlib import Path

from asyncinotify import Inotify, Mask

from ground import log
from scrubber.node import cgroup_tree, sandboxes

logger = log.get("fence")

_SLICE = ".slice"
_OF_POD = "-pod"  # in the name of the slice of one pod
_ABOVE_PODS = frozenset({"kubelet", "kubepods", "burstable", "besteffort"})
_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.ONLYDIR


class NewGroups:
    """Watches the slices, the groups above those of pods, the units of systemd, and the containers of the runtime."""

    def __init__(self, root: Path, host_root: Path) -> None:
        """``root``: where the root of control groups of version 2 is mounted. ``host_root``: the node's file system."""
        self._root = root
        self._elsewhere = {host_root / place for place in (cgroup_tree.STARTED_UNITS, *sandboxes.DIRECTORIES)}
        self._warned = False
        try:
            self._inotify: Inotify | None = Inotify(sync_timeout=0)
        except OSError as error:
            self._inotify = None
            self._warn(error)
            return
        self._watch_all()

    @property
    def descriptor(self) -> int | None:
        """Readable when there is something new; None if nothing can be watched."""
        return None if self._inotify is None else self._inotify.fd

    def any(self) -> bool:
        """Whether a group may have begun since the last call. Does not wait."""
        began = False
        while self._inotify is not None and (event := self._inotify.sync_get()) is not None:
            if Mask.IGNORED in event.mask:  # the directory was removed
                continue
            began = True
            if Mask.Q_OVERFLOW in event.mask:
                self._watch_all()
            elif event.path is not None and event.path.parent not in self._elsewhere and _holds_groups(event.path.name):
                self._watch(event.path)
        if began:
            self._watch_elsewhere()  # perhaps a runtime was installed
        return began

    def _watch_all(self) -> None:
        self._watch(self._root)
        self._watch_elsewhere()

    def _watch_elsewhere(self) -> None:
        for directory in self._elsewhere:
            self._add(directory)

    def _watch(self, group: Path) -> None:
        """Watch first, then look: what is made meanwhile is in one of both."""
        if not self._add(group):
            return
        try:
            with os.scandir(group) as entries:
                below = [Path(entry.path) for entry in entries if _holds_groups(entry.name) and entry.is_dir()]
        except OSError:
            return
        for inner in below:
            self._watch(inner)

    def _add(self, directory: Path) -> bool:
        try:
            if self._inotify is not None:
                self._inotify.add_watch(directory, _MADE)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._warn(error)
            return False
        return self._inotify is not None

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            logger.warning("cannot watch for new control groups; the rounds find them", error=error.strerror)
        self._warned = True

    def close(self) -> None:
        """Watch no more."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _holds_groups(name: str) -> bool:
    """Whether units or pods have their groups in a group with this name."""
    return name in _ABOVE_PODS or (name.endswith(_SLICE) and _OF_POD not in name)
