"""What people call a pod: namespace and name, by the directories that the kubelet makes for its logs.

They are called NAMESPACE_NAME_UID and are there from before the first container of a pod until the pod is deleted. To
read their names takes no socket and no token and changes nothing, whereas the kubelet must be told namespace and name
before it tells about a pod, and to ask it for all of them frees devices that are in use. For people only: whoever acts
goes by UIDs. So what cannot be read is no name, and never an error.
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

STANDS = 5.0  # seconds: two changes of a directory within a tick of its file system show as one
MOST = 100_000  # entries that are looked at: a node has some hundred pods

_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DIRECTORY = re.compile(rf"({_WORD})_({_WORD}(?:[.]{_WORD})*)_(.+)", re.DOTALL)  # neither of the first two holds a _


@dataclass(frozen=True, slots=True)
class Tenants:
    """Whom the kubelet has written devices down for, and what pods are called."""

    entries: tuple[checkpoint.CheckpointEntry, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # NAMESPACE/NAME by UID

    def of(self, device: str) -> dict[str, frozenset[str]]:
        """The pods that a device is written down for, by UID, and their containers that have it."""
        found: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            if entry.device == device:
                found[entry.pod] = found.get(entry.pod, frozenset()) | ({entry.container} - {""})
        return found


class Pods:
    """Sight of the pods of this node. To be asked by one at a time."""

    def __init__(self, kubelet_dir: Path, logs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is looked at yet. ``logs``: where the kubelet makes the directories."""
        self._kubelet_dir = kubelet_dir
        self._logs = logs
        self._clock = clock
        self._names: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()
        self._until = 0.0

    def look(self) -> Tenants:
        """What can be told just now."""
        try:
            entries = checkpoint.entries(self._kubelet_dir)
        except checkpoint.CheckpointError:  # the kubelet's hooks, which need it, say why
            entries = ()
        return Tenants(entries, self.names())

    def names(self) -> Mapping[str, str]:
        """NAMESPACE/NAME of every pod by its UID. Read anew when the directory changes, and now and then."""
        now = self._clock()
        try:
            about = self._logs.stat()  # before the names: what changes meanwhile is seen the next time
            seen = (about.st_dev, about.st_ino, about.st_mtime_ns)
            if seen != self._seen or now >= self._until:
                self._names, self._seen, self._until = _names(self._logs), seen, now + STANDS
        except OSError:
            return {}
        return self._names


def _names(directory: Path) -> dict[str, str]:
    """A UID of two names has none: nobody could say which."""
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
