"""Find the threads of a process whose open files must be read separately.

Threads usually share one table of open files, which the entry of the process shows. Two kinds have files that this
entry does not show: a thread with its own table (``unshare(CLONE_FILES)``), and each thread of a process whose first
thread has ended. A killed process looks like that while one of its threads is stuck in a driver.
"""

from __future__ import annotations

import ctypes
import os

_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2
_libc = ctypes.CDLL(None)


def separate(process: str) -> list[str]:
    """The /proc directories to read: that of the process, then those of threads that do not share its files."""
    leader = process.rpartition("/")[2]
    try:
        tasks = os.listdir(f"{process}/task")  # noqa: PTH208 -- in the hot loop of every observation
    except (FileNotFoundError, ProcessLookupError):
        return []
    others = (task for task in tasks if task != leader and not _share(int(leader), int(task)))
    return [process, *(f"{process}/task/{task}" for task in others)]


def _share(pid: int, task: int) -> bool:
    # When the kernel refuses kcmp, each thread is read: slow but correct.
    return _KCMP is not None and _libc.syscall(_KCMP, pid, task, _KCMP_FILES, 0, 0) == 0
