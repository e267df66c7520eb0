"""Whose a process is, by its control groups of either version under /proc; and which containers still live.

None means a process outside any pod and container, which the service may end. So an unknown answer raises BlindError,
and is never None. ``group_names`` has the names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from scrubber.core.model import is_pod
from scrubber.node import group_names
from scrubber.node.group_places import GROUPS, below, is_populated, pod_groups, unified_group_in, usual
from scrubber.node.proc import DEAD, ENDED, BlindError, cgroup_text, pids, sees_all, status

_REMEMBERED = 4096  # pods; a node runs some hundred at a time


class Containers:
    """Finds the containers of this node."""

    def __init__(self, proc: Path, namespace: int | None = None, groups: Path = GROUPS) -> None:
        """``namespace``: the pid namespace that shows the whole node, if it is not the initial one.

        ``groups``: where the node's control groups are mounted.
        """
        self._proc = proc
        self._namespace = namespace
        self._groups = groups
        # Those that a process was found in, the latest last; with the group that holds all of the pod, if it is known.
        self._pods: dict[str, Path | None] = {}

    def of(self, pid: int) -> str | None:
        """The pod or container of a process; None if it is in neither or has ended. BlindError if it is hidden."""
        process = f"{self._proc}/{pid}"
        try:
            text = cgroup_text(process)
            name = _name(process, text)
        except ENDED:
            if os.path.lexists(process):
                raise BlindError(f"cannot find the container of process {pid}: it has no control group") from None
            return None
        except OSError as error:
            raise BlindError(f"cannot find the container of process {pid}: {error.strerror}") from error
        if name is not None and is_pod(name):
            self._pods[name] = self._pods.pop(name, None) or self._whole_group(name, text)
            if len(self._pods) > _REMEMBERED:
                del self._pods[next(iter(self._pods))]
        return name

    def _whole_group(self, pod: str, text: str) -> Path | None:
        """The group that holds all processes of a pod; None where that cannot be said."""
        if text.count("\n") > 1:  # others may be in the pod by a group of version 1 alone
            return None
        try:
            group = unified_group_in(self._groups, pod, text)
        except OSError:
            return None
        # A process of the pod runs now. A group without one is another group of the pod, which is not used.
        return group if group is not None and is_populated(group) else None

    def living(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """All pods and containers that have a live process, each with its oldest one; or BlindError.

        ``wanted``: these are enough, if all of them live. The newest processes are read first, so a pod that starts is
        found at once.
        """
        if not sees_all(self._proc, self._namespace):
            raise BlindError("cannot list the running pods: run the service in the host's pid namespace")
        running: dict[str, int] = {}
        for pid in sorted(pids(self._proc), reverse=True):
            try:
                name = self.of(pid)
            except _EndingError:
                continue
            if name is not None and runs(f"{self._proc}/{pid}"):
                running[name] = pid
                if name in wanted and running.keys() >= set(wanted):
                    break
        return running

    def member(self, pod: str) -> int | None:
        """The oldest live process of the pod, found in the pod's control group: the sandbox, which also ends last.

        None proves nothing: the kubelet may create its groups at an unusual place. ``living`` goes through all
        processes.
        """
        members: list[tuple[float, int]] = []
        for group in self._groups_of(pod):
            try:
                listed = [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]
            except OSError:
                continue  # the group was removed
            for pid in listed:
                process = f"{self._proc}/{pid}"
                try:
                    if self.of(pid) == pod and runs(process):
                        members.append((status(process).started, pid))
                except (BlindError, *ENDED):
                    continue
        return min(members)[1] if members else None

    def has_ended(self, pod: str) -> bool:
        """Whether the kernel says that no process of the pod is left. False proves nothing: ``living`` tells."""
        group, is_mounted = self._pods.get(pod), (self._groups / "cgroup.controllers").exists()
        if group is None or not is_mounted:
            return False
        return not any(map(is_populated, {group, *usual(self._groups, pod)}))

    def has_group(self, pod: str) -> bool:
        """Whether the pod has a control group at a usual place, or had one in which a process was found."""
        return pod in self._pods or any(True for _ in self._groups_of(pod))

    def _groups_of(self, pod: str) -> Iterator[str]:
        """The control group of a pod, and groups below it, such as those of its containers."""
        if not group_names.is_uid(pod):
            return
        for place in pod_groups(pod):
            yield from below(self._groups, place)


class _EndingError(BlindError):
    """The process is ending and no longer shows its control group."""


def _name(process: str, text: str) -> str | None:
    name = group_names.place(text)
    # Cgroup v1 shows an ending task at the root, also a first thread that ended before the other threads.
    if name is not None or text.startswith(group_names.UNIFIED) or not status(process).ending:
        return name
    for thread in threads(process):
        try:
            name = group_names.place(cgroup_text(thread))
            if name is not None or not status(thread).ending:
                return name
        except ENDED:
            continue
    if status(process).state in DEAD:
        return None
    raise _EndingError(f"cannot find the container of process {process.rpartition('/')[2]}: it is ending")


def runs(process: str) -> bool:
    """Whether the process has a thread that has not ended."""
    for task in (process, *threads(process)):
        try:
            if status(task).state not in DEAD:
                return True
        except ENDED:
            continue
    return False


def threads(process: str) -> list[str]:
    """The threads of a process, without the first."""
    leader = process.rpartition("/")[2]
    try:
        return [f"{process}/task/{task}" for task in os.listdir(f"{process}/task") if task != leader]  # noqa: PTH208 -- text
    except ENDED:
        return []
