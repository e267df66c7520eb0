"""Bystanders: programs that may have a device open, such as the driver's own daemons and monitoring agents.

A bystander is identified by its executable and by where it runs, never by its process name, which a process chooses
itself. On the host, root must have started it, from a file that only root can write: a user can load code of its own
into a program that it starts. In a pod, the namespace of the pod identifies it: a pod chooses its program, but not its
namespace. So do not name a namespace in which tenants can create pods.

A reset does not accept bystanders: it requires that no process has the device open.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scrubber.core.model import Holder
from scrubber.node import group_names
from scrubber.node.pods import PodNames
from scrubber.node.proc import ENDED, BlindError, pids, status

PROC = Path("/proc")
_REAL_USER = re.compile(r"^Uid:\t(\d+)\t", re.MULTILINE)
_ROOT = "0"
_WAY_UP = re.compile(r"^(?:/[.][.])+(?=/)")  # prefix of paths when our own control group is not the root


@dataclass(frozen=True, slots=True)
class Bystander:
    """An executable, by its path in its own mounts, and the namespace of its pods; None for the host."""

    exe: str
    namespace: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the notation of a policy: [NAMESPACE:]PATH."""
        namespace, colon, exe = text.partition(":/")
        return cls(f"/{exe}", namespace) if colon else cls(text)


class Bystanders:
    """Recognises the bystanders that the policy names."""

    def __init__(
        self,
        programs: Sequence[Bystander],
        proc: Path,
        names: PodNames,
        elsewhere: Callable[[Bystander], None] = lambda _program: None,
    ) -> None:
        """``elsewhere`` is called for a program in a pod that would be a bystander in another place."""
        self._known = frozenset(programs)
        self._programs = frozenset(program.exe for program in programs)
        self._proc = proc
        self._names = names
        self._elsewhere = elsewhere

    def knows(self, holder: Holder) -> bool:
        """Whether this process is a bystander. A process that cannot be read is not."""
        program, why = _examined(self._proc, holder, self._programs, self._namespace)
        if program is None or why:
            return False
        if program not in self._known and program.namespace is not None:
            self._elsewhere(program)
        return program in self._known

    def runs(self, name: str, container_of: Callable[[int], str | None]) -> bool:
        """Whether a bystander with that program name runs; the name alone proves nothing."""
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

    def _namespace(self, holder: Holder) -> str:
        """The namespace of its pod; empty if that is not known."""
        return (self._names.of(holder.container or "", holder.pid) or "").partition("/")[0]


def _examined(
    proc: Path, holder: Holder, programs: Collection[str], namespace: Callable[[Holder], str]
) -> tuple[Bystander | None, str]:
    """What a policy calls this process, and why it is no bystander, whatever a policy lists; empty: it may be one.

    None if it runs none of these ``programs``, has ended, cannot be read, or is in a container of no known namespace.
    """
    process = f"{proc}/{holder.pid}"
    try:
        exe = os.readlink(f"{process}/exe")  # noqa: PTH115 -- the raw text, with " (deleted)"
        if exe not in programs:
            return None, ""
        place = None if holder.container is None else namespace(holder)
        why = obstacle(proc, process) if place is None else ""
        # Check the start time last: it proves that all answers are about this process, not a later one.
        if place == "" or status(process).started != holder.started:
            return None, ""
    except OSError:
        return None, ""
    return Bystander(exe, place), why


def obstacle(proc: Path, process: str) -> str:
    """Why a process of the host is no bystander, whatever a policy lists; empty: it may be one.

    Root must have started it, from a file that only root can write, in the mount namespace of the host.
    FileNotFoundError or ProcessLookupError if it has ended.
    """
    try:
        file, mounts = Path(f"{process}/exe").stat(), Path(f"{process}/ns/mnt").stat()
        if file.st_uid != 0 or file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others than root can write its file"
        if not _started_by_root(process, proc):
            return "root did not start it"
    except ENDED:
        raise
    except OSError as error:  # this user may not look
        return f"{error.filename}: {error.strerror}"
    try:
        host = (proc / "1/ns/mnt").stat()
    except OSError as error:
        return f"nobody can tell whether it has the mounts of the host: {proc}/1/ns/mnt: {error.strerror}"
    return "" if os.path.samestat(mounts, host) else "it has mounts of its own, as with `PrivateTmp=` in its unit"


def why_not(entries: Collection[str], holder: Holder, pod: str, proc: Path = PROC) -> str:
    """Why a process is no bystander, although an entry of ``evict.bystanders`` is its program; empty if none is.

    ``pod``: NAMESPACE/NAME of its pod, if that is known.
    """
    listed = frozenset(map(Bystander.parse, entries))
    namespace = pod.partition("/")[0]
    program, why = _examined(proc, holder, {it.exe for it in listed}, lambda _holder: namespace)
    if program not in listed:
        return ""
    return "this node cannot tell that the process is in a pod of that namespace" if namespace else why


def _started_by_root(process: str, proc: Path) -> bool:
    """Whether root runs the process, or systemd runs it in its own service.

    If the parent of the process is the same program, root may run the parent instead.
    """
    if _of_root(process):
        return True
    # nvidia-persistenced runs in the system service with the program's name.
    service = f"/system.slice/{os.readlink(f'{process}/exe').rpartition('/')[2]}.service"  # noqa: PTH115 -- see above
    groups = group_names.paths(Path(f"{process}/cgroup").read_text(errors="replace"))
    if service in {_WAY_UP.sub("", group) for group in groups}:
        return True
    # nvidia-container-cli opens the devices in a child that has given up the rights of root.
    parent = f"{proc}/{status(process).parent}"
    return _of_root(parent) and Path(f"{process}/exe").samefile(f"{parent}/exe")


def _of_root(process: str) -> bool:
    """Whether its real user is root: a program with the setuid bit that a user starts is not of root."""
    user = _REAL_USER.search(Path(f"{process}/status").read_text(errors="replace"))
    return user is not None and user[1] == _ROOT
