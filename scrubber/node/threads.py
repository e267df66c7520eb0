"""Which threads of a process must be looked at one by one.

Threads share one table of open files as a rule, and then the process's own entry shows it. Two kinds hold files that
the process's entry does not show: a thread that took a table of its own (``unshare(CLONE_FILES)``), and every thread of
a process whose first thread has ended, which is how a killed process looks while a thread of it is stuck in a driver.
"""

from __future__ import annotations

import ctypes
import os

_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine)
_KCMP_FILES = 2
_libc = ctypes.CDLL(None)


def apart(process: str) -> list[str]:
    """The /proc directories to look at: the process's own, then those of threads that do not share its files."""
    leader = process.rpartition("/")[2]
    try:
        tasks = os.listdir(f"{process}/task")  # noqa: PTH208 -- part of the hot loop of every look
    except (FileNotFoundError, ProcessLookupError):
        return []
    others = (task for task in tasks if task != leader and not _share(int(leader), int(task)))
    return [process, *(f"{process}/task/{task}" for task in others)]


def _share(pid: int, task: int) -> bool:
    # Where the kernel will not say, they do not: then every thread is looked at, which is slow and right.
    return _KCMP is not None and _libc.syscall(_KCMP, pid, task, _KCMP_FILES, 0, 0) == 0
