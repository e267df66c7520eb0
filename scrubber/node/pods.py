"""Find the namespace and name of a pod by the kubelet's log directories.

A directory NAMESPACE_NAME_UID exists from before the first container of a pod starts until the pod is deleted. Reading
the names needs no socket and no token. The kubelet's API needs namespace and name to describe a pod, and listing all
pods there frees devices that are in use. A name that cannot be read is missing, never an error.

These names are for messages: whoever may write to the directories can rename them. Where a namespace decides what a pod
may do, ``PodNames`` asks the container runtime.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scrubber.node import assignments
from scrubber.node.sandboxes import Sandboxes

_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DIRECTORY = re.compile(rf"({_WORD})_({_WORD}(?:[.]{_WORD})*)_(.+)", re.DOTALL)  # namespace and name hold no _
_REMEMBERED = 4096  # pods; a node runs some hundred at a time


@dataclass(frozen=True, slots=True)
class Tenants:
    """The device owners in the kubelet's checkpoint, and the names of pods."""

    entries: tuple[assignments.AssignmentEntry, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # NAMESPACE/NAME by UID

    def of(self, device: str) -> dict[str, frozenset[str]]:
        """The UIDs of the pods that own a device, and their containers that have the device."""
        containers: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            if entry.device == device:
                containers[entry.pod] = containers.get(entry.pod, frozenset()) | ({entry.container} - {""})
        return containers


def look(kubelet_dir: Path, logs: Path) -> Tenants:
    """The owners and names that can be read now. ``logs``: where the kubelet creates the log directories."""
    try:
        entries = assignments.entries(kubelet_dir)
    except assignments.AssignmentsError:  # the calls that need the checkpoint report the error
        entries = ()
    try:
        return Tenants(entries, read_names(logs))
    except OSError:
        return Tenants(entries)


class PodNames:
    """The names of pods, where a namespace decides: as the runtime says them.

    Where no runtime says them, the first name of a log directory counts, and a pod with a second one has none.
    """

    def __init__(self, sandboxes: Sandboxes, logs: Path) -> None:
        """``logs``: where the kubelet creates the log directories."""
        self._sandboxes = sandboxes
        self._logs = logs
        self._first: dict[str, str] = {}  # by UID: the first name of its log directory
        self.renamed: frozenset[str] = frozenset()  # the UIDs whose log directory had another name, at the last reading

    def read(self) -> dict[str, str]:
        """NAMESPACE/NAME of each pod by its UID. OSError where neither the runtime nor the kubelet names pods."""
        started = self._sandboxes.read()
        if started is not None:
            names = {uid: pod.name for uid, pod in started.items()}
            with suppress(OSError):
                claims = read_names(self._logs)
                self.renamed = frozenset(uid for uid, name in names.items() if claims.get(uid, name) != name)
            return names
        claims = read_names(self._logs)
        if len(self._first) > _REMEMBERED:
            self._first = {uid: name for uid, name in self._first.items() if uid in claims}
        self.renamed = frozenset(uid for uid, name in claims.items() if self._first.setdefault(uid, name) != name)
        return {uid: name for uid, name in claims.items() if uid not in self.renamed}

    def of(self, pod: str, pid: int) -> str | None:
        """NAMESPACE/NAME of a process's pod. None if it has none, or the process is in another group with its UID."""
        name = self.read().get(pod)
        return name if name is not None and self._sandboxes.holds(pod, pid) else None


def read_names(directory: Path) -> dict[str, str]:
    """NAMESPACE/NAME of each pod by its UID. A UID with two names is left out: either name may be wrong."""
    names: dict[str, str] = {}
    unclear: set[str] = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            parts = _DIRECTORY.fullmatch(entry.name)
            if parts is None or not entry.is_dir(follow_symlinks=False):
                continue
            namespace, name, uid = parts.groups()
            if names.setdefault(uid, f"{namespace}/{name}") != f"{namespace}/{name}":
                unclear.add(uid)
    return {uid: name for uid, name in names.items() if uid not in unclear}
