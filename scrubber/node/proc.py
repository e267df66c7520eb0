"""What every look through /proc needs: who is there, how a task stands, and whether everybody can be seen."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux
ENDED = (FileNotFoundError, ProcessLookupError)  # what /proc says of a task that is gone
DEAD = frozenset("ZX")

_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _FLAGS, _STARTED = 0, 1, 6, 19  # of the fields after the name: 3rd, 4th, 9th, 22nd of /proc/PID/stat
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000
_LONGEST_STAT = 4096  # bytes, several times what the kernel writes


class BlindError(Exception):
    """It cannot be told who is where on this node: the message is for operators."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """How a task stands."""

    state: str  # S sleeps, R runs, D is stuck in the kernel, Z has ended
    ending: bool  # on its way out: it runs no more code of its own
    started: float  # seconds since boot
    parent: int  # its pid


def status(task: str) -> ProcessStatus:
    """Of a process, or of one of its threads, by its directory."""
    fields = _fields(task)
    started, parent = int(fields[_STARTED]) / _TICKS, int(fields[_PARENT])
    return ProcessStatus(fields[_STATE].decode(), bool(int(fields[_FLAGS]) & _PF_EXITING), started, parent)


def of_kernel(process: str) -> bool:
    """Whether it is a thread of the kernel itself, which has neither files nor memory; on most nodes most are.

    Who runs a program is none. Who runs none may also have ended but for other threads of it: the kernel says which.
    """
    try:
        os.readlink(f"{process}/exe")  # noqa: PTH115 -- the hot loop of every look
    except FileNotFoundError:
        with suppress(*ENDED):
            return bool(int(_fields(process)[_FLAGS]) & _PF_KTHREAD)
    except OSError:
        pass  # who may not even ask has to look
    return False


def _fields(task: str) -> list[bytes]:
    """What follows the name, which may hold spaces and parentheses of its own."""
    handle = os.open(f"{task}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, _LONGEST_STAT).rpartition(b")")[2].split()
    finally:
        os.close(handle)


def descends(proc: Path, pid: int, ancestors: Collection[int]) -> bool:
    """Whether a process is one of these, or was started by one that still runs.

    Nobody descends from the first process of all: whoever has lost its own parent is given to that one.
    """
    while pid > 1 and pid not in ancestors:
        try:
            pid = status(f"{proc}/{pid}").parent
        except ENDED:
            return False
    return pid > 1


def own_namespace(proc: Path) -> int:
    """The pid namespace that this /proc shows."""
    return (proc / "self/ns/pid").stat().st_ino


def pids(proc: Path) -> list[int]:
    """Every process that is there now."""
    with os.scandir(proc) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def sees_all(proc: Path, namespace: int | None = None) -> bool:
    """Whether this /proc shows the whole node: in a container's own namespace it hides everybody else.

    ``namespace`` is the one that does on a node that is a container itself.
    """
    try:
        return (proc / "self/ns/pid").stat().st_ino == (namespace or INITIAL_PID_NAMESPACE)
    except FileNotFoundError:
        return False
