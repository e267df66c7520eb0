"""Read /proc: list the processes, read the state of a task, check that all processes are visible."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux
ENDED = (FileNotFoundError, ProcessLookupError)  # errors of /proc for a task that has ended
DEAD = frozenset("ZX")

_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _FLAGS, _STARTED = 0, 1, 6, 19  # of the fields after the name: 3rd, 4th, 9th, 22nd of /proc/PID/stat
# The parent directories: this process may be in a namespace of control groups that begins below the root.
_OF_SERVICE = re.compile(r"(?:/[.][.])*(?:/(?!user)[^/]+[.]slice)*/([\w:.@\\-]+[.]service)(?:/|$)", re.ASCII)
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000
_STARTED_IN_A_TICK = 2**14  # processes: more cannot start, since each start takes a lock of the whole kernel
_LONGEST_STAT = 4096  # bytes, several times what the kernel writes


class BlindError(Exception):
    """The processes of this node cannot be read completely. The message is for operators."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The state of a task."""

    state: str  # S sleeps, R runs, D is stuck in the kernel, Z has ended
    ending: bool  # exiting: it runs no more code of its own
    started: float  # seconds since boot
    parent: int  # pid


def status(task: str) -> ProcessStatus:
    """The state of a process or thread, by its directory."""
    fields = _fields(task)
    started, parent = int(fields[_STARTED]) / _TICKS, int(fields[_PARENT])
    return ProcessStatus(fields[_STATE].decode(), bool(int(fields[_FLAGS]) & _PF_EXITING), started, parent)


def cgroup_text(task: str) -> str:
    """The control groups of a process or thread, by its directory, as the kernel writes them."""
    with open(f"{task}/cgroup", errors="replace", newline="\n") as file:  # noqa: PTH123 -- called for every process of the node
        text = file.read()
    if not text:
        raise FileNotFoundError(f"{task}/cgroup")
    return text


def unit(process: str, started: float) -> str:
    """The system service of systemd that this very process belongs to, by its directory.

    Empty if it belongs to none, or has ended. The services of a user do not count: only their user can stop them.
    """
    try:
        text = cgroup_text(process)
        if status(process).started != started:
            return ""
    except OSError:
        return ""
    lines = (line.split(":", 2) for line in text.splitlines())
    places = (line[2] for line in lines if line[1:2] in ([""], ["name=systemd"]))
    return next((match[1] for match in map(_OF_SERVICE.match, places) if match is not None), "")


def user(pid: int) -> str:
    """The user of a process: a name, or a number where this machine has no name for it. Empty if it has ended."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_of(pid: int, started: float) -> str:
    """The user of this very process; empty if it has ended, also if its pid is used again."""
    name = user(pid)
    try:
        return name if status(f"/proc/{pid}").started == started else ""
    except ENDED:
        return ""


def of_kernel(process: str) -> bool:
    """Whether it is a kernel thread, which has no files and no memory.

    A process with an executable is not a kernel thread. Without one, it may also be a process whose first thread has
    ended; its flags tell which. On most nodes most processes are kernel threads, so the check is cheap.
    """
    try:
        os.readlink(f"{process}/exe")  # noqa: PTH115 -- the hot loop of every observation
    except FileNotFoundError:
        with suppress(*ENDED):
            return bool(int(_fields(process)[_FLAGS]) & _PF_KTHREAD)
    except OSError:
        pass  # unknown: read the process like any other
    return False


def _fields(task: str) -> list[bytes]:
    """The fields after the process name, which may hold spaces and parentheses."""
    handle = os.open(f"{task}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, _LONGEST_STAT).rpartition(b")")[2].split()
    finally:
        os.close(handle)


def descends(proc: Path, pid: int, ancestors: Collection[int]) -> bool:
    """Whether a process is one of these, or a descendant of one that still runs.

    Process 1 does not count as an ancestor: the kernel makes it the parent of each process that lost its own.
    """
    while pid > 1 and pid not in ancestors:
        try:
            pid = status(f"{proc}/{pid}").parent
        except ENDED:
            return False
    return pid > 1


def pids_are_free(proc: Path) -> bool:
    """Whether the kernel gives no pid a second time within a tick of the clock of /proc. False: it is not known.

    Linux gives all free pids in turn (its function alloc_pid), unless root asks for one. An ended process may keep its
    pid for as long as others are in its group or in its session.
    """
    try:
        pid_max = int((proc / "sys/kernel/pid_max").read_text())
        threads = int((proc / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return False
    return pid_max - 3 * threads >= _STARTED_IN_A_TICK


def own_namespace(proc: Path) -> int:
    """The pid namespace that this /proc shows."""
    return (proc / "self/ns/pid").stat().st_ino


def pids(proc: Path) -> list[int]:
    """The pids of all processes."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 -- in the hot loop


def sees_all(proc: Path, namespace: int | None = None) -> bool:
    """Whether this /proc shows all processes of the node: in a container's pid namespace it shows only that container.

    ``namespace``: the pid namespace of a node that is itself a container.
    """
    try:
        return (proc / "self/ns/pid").stat().st_ino == (namespace or INITIAL_PID_NAMESPACE)
    except FileNotFoundError:
        return False
