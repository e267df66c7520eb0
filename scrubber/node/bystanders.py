"""Who may have every device open and is no user of it: the driver's own daemons, and what an operator runs to watch.

A process is known by the program that it runs and by where it runs, never by its name, which it chooses itself. On the
host it must be one that nobody but root could have started from a file that nobody but root could have written. In a
pod it is known by the pod's namespace: a tenant names its program as it likes, its namespace it does not choose. So
name no namespace here that tenants may make or run pods in.

A reset bears no bystanders: it asks for everybody.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scrubber.core.model import Holder
from scrubber.node import cgroups
from scrubber.node.proc import BlindError, pids, status

_PARTS = 3  # the kubelet makes a directory for each pod: NAMESPACE_NAME_UID; none of them holds a _
_REAL_USER = re.compile(r"^Uid:\t(\d+)\t", re.MULTILINE)
_ROOT = "0"
_WAY_UP = re.compile(r"^(?:/[.][.])+(?=/)")  # shown before paths where our own control group is not the root


@dataclass(frozen=True, slots=True)
class Bystander:
    """A program, where its own mounts show it, and the namespace of its pods; on the host without one."""

    exe: str
    namespace: str | None = None

    @classmethod
    def said(cls, text: str) -> Self:
        """As a policy says it: [NAMESPACE:]PATH."""
        namespace, colon, exe = text.partition(":/")
        return cls(f"/{exe}", namespace) if colon else cls(text)


class Bystanders:
    """Knows some programs again."""

    def __init__(self, known: Sequence[Bystander], proc: Path, logs: Path) -> None:
        """``logs``: where the kubelet makes the directories of pods, as seen from here."""
        self._known = known
        self._proc = proc
        self._logs = logs

    def knows(self, holder: Holder) -> bool:
        """Whether this process is one of them. Whoever cannot be looked into is none."""
        process = f"{self._proc}/{holder.pid}"
        try:
            exe = os.readlink(f"{process}/exe")  # noqa: PTH115 -- as it stands, " (deleted)" included
            where = [known.namespace for known in self._known if known.exe == exe]
            met = any(self._is_at(namespace, holder, process) for namespace in where)
            # Asked last: then all of it was about the process that holds the device.
            return met and status(process).started == holder.started
        except OSError:
            return False

    def runs(self, name: str, container_of: Callable[[int], str | None]) -> bool:
        """Whether the program of that name runs, and is one of them: the name alone could be anybody's."""
        for pid in pids(self._proc):
            process = f"{self._proc}/{pid}"
            try:
                if Path(os.readlink(f"{process}/exe")).name != name:  # noqa: PTH115 -- see above
                    continue
                holder = Holder(pid, status(process).started, name, container_of(pid))
            except (OSError, BlindError):
                continue
            if self.knows(holder):
                return True
        return False

    def _is_at(self, namespace: str | None, holder: Holder, process: str) -> bool:
        if namespace is not None:
            return holder.container is not None and self._namespaces(holder.container) == {namespace}
        return holder.container is None and self._of_the_host(process)

    def _namespaces(self, pod: str) -> set[str]:
        """Of a pod: one, if the kubelet knows it."""
        with os.scandir(self._logs) as entries:
            names = [entry.name.split("_") for entry in entries if entry.is_dir(follow_symlinks=False)]
        return {name[0] for name in names if len(name) == _PARTS and name[2] == pod}

    def _of_the_host(self, process: str) -> bool:
        """Started by root, from root's file, among the mounts that the host itself sees."""
        file, mounts = Path(f"{process}/exe").stat(), Path(f"{process}/ns/mnt").stat()
        roots = file.st_uid == 0 and not file.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return roots and os.path.samestat(mounts, (self._proc / "1/ns/mnt").stat()) and _started_by_root(process)


def _started_by_root(process: str) -> bool:
    """Root's own, or one that runs as somebody else in the system service that bears its name, as persistenced does."""
    user = _REAL_USER.search(Path(f"{process}/status").read_text(errors="replace"))
    if user is not None and user[1] == _ROOT:
        return True
    service = f"/system.slice/{os.readlink(f'{process}/exe').rpartition('/')[2]}.service"  # noqa: PTH115 -- see above
    groups = cgroups.paths(Path(f"{process}/cgroup").read_text(errors="replace"))
    return service in {_WAY_UP.sub("", group) for group in groups}
