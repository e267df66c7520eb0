"""Find the namespace and name of a pod by the kubelet's log directories.

A directory NAMESPACE_NAME_UID exists from before the first container of a pod starts until the pod is deleted. Reading
the names needs no socket and no token. The kubelet's API needs namespace and name to describe a pod, and listing all
pods there frees devices that are in use. The names are for messages only: decisions use UIDs. So a name that cannot be
read is missing, never an error.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from scrubber.node import checkpoint

STANDS = 5.0  # seconds: two changes of a directory within one tick of its file system have the same time
MOST = 100_000  # directory entries: a node has some hundred pods

_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DIRECTORY = re.compile(rf"({_WORD})_({_WORD}(?:[.]{_WORD})*)_(.+)", re.DOTALL)  # namespace and name hold no _


@dataclass(frozen=True, slots=True)
class Tenants:
    """The device owners in the kubelet's checkpoint, and the names of pods."""

    entries: tuple[checkpoint.CheckpointEntry, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # NAMESPACE/NAME by UID

    def of(self, device: str) -> dict[str, frozenset[str]]:
        """The UIDs of the pods that own a device, and their containers that have the device."""
        found: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            if entry.device == device:
                found[entry.pod] = found.get(entry.pod, frozenset()) | ({entry.container} - {""})
        return found


class Pods:
    """Finds the pods of this node. Not safe for concurrent calls."""

    def __init__(self, kubelet_dir: Path, logs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """``logs``: where the kubelet creates the log directories."""
        self._kubelet_dir = kubelet_dir
        self._logs = logs
        self._clock = clock
        self._names: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()
        self._until = 0.0

    def look(self) -> Tenants:
        """The owners and names that can be read now."""
        try:
            entries = checkpoint.entries(self._kubelet_dir)
        except checkpoint.CheckpointError:  # the calls that need the checkpoint report the error
            entries = ()
        return Tenants(entries, self.names())

    def names(self) -> Mapping[str, str]:
        """NAMESPACE/NAME of each pod by its UID. Read again when the directory changes, and from time to time."""
        now = self._clock()
        try:
            about = self._logs.stat()  # before reading the names: the next call sees a change in between
            seen = (about.st_dev, about.st_ino, about.st_mtime_ns)
            if seen != self._seen or now >= self._until:
                self._names, self._seen, self._until = read_names(self._logs), seen, now + STANDS
        except OSError:
            return {}
        return self._names


def read_names(directory: Path) -> dict[str, str]:
    """NAMESPACE/NAME of each pod by its UID. A UID with two names is left out: either name may be wrong."""
    found: dict[str, str] = {}
    unclear: set[str] = set()
    with os.scandir(directory) as entries:
        for entry in islice(entries, MOST):
            parts = _DIRECTORY.fullmatch(entry.name)
            if parts is None or not entry.is_dir(follow_symlinks=False):
                continue
            namespace, name, uid = parts.groups()
            if found.setdefault(uid, f"{namespace}/{name}") != f"{namespace}/{name}":
                unclear.add(uid)
    return {uid: name for uid, name in found.items() if uid not in unclear}
