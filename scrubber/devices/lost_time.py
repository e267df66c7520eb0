"""For how long this process could not run: it was stopped, or kept waiting for a processor.

A late answer says something about the driver only if the service could have taken it. A thread that waits in the driver
sleeps, or computes; a starved thread can run and gets no processor. The kernel tells the two apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

LOOK_EVERY = 0.25  # seconds between two looks while an answer is awaited
IN_PASSING = 0.2  # seconds that a service loses beside other programs, without being starved
_TASKS = Path("/proc/self/task")


class Thread(NamedTuple):
    """What the kernel says of a thread. ``delayed`` grows at the end of a wait only."""

    waits: bool  # it can run now, and either runs or waits for a processor
    ran: int  # ns on a processor
    delayed: int  # ns of waits for a processor


def lost(seconds: float, before: Mapping[int, Thread], now: Mapping[int, Thread]) -> float:
    """How many of the seconds between two looks at the threads of this process were lost. By thread id.

    One starved thread may hold what all others wait for, so the thread that lost most counts. A look that comes late
    shows that the whole process stood still, also where the kernel says nothing about threads.
    """
    starved = max((_waited(seconds, before[each], now[each]) for each in before.keys() & now.keys()), default=0.0)
    return min(seconds, max(0.0, seconds - 2 * LOOK_EVERY) + starved)


def _waited(seconds: float, before: Thread, now: Thread) -> float:
    if before.waits and now.waits and before.ran == now.ran:
        return seconds
    return (now.delayed - before.delayed) / 1e9


def threads() -> dict[int, Thread]:
    """The threads of this process; nothing where the kernel does not say for how long they waited."""
    found, asking = {}, threading.get_native_id()
    try:
        tasks = [*_TASKS.iterdir()]
    except OSError:
        return {}
    for task in tasks:
        try:
            ran, delayed, _ = map(int, (task / "schedstat").read_text().split())
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):  # it has ended, or the kernel keeps no such account
            continue
        if ran:  # 0 also where the kernel keeps no such account
            found[int(task.name)] = Thread(state == "R" and int(task.name) != asking, ran, delayed)
    return found


class LostTime:
    """Adds up the seconds that were lost. ``look`` at least every ``LOOK_EVERY`` seconds."""

    def __init__(self, threads: Callable[[], Mapping[int, Thread]] = threads) -> None:
        """``threads``: what the kernel says of the threads of this process."""
        self.seconds = 0.0
        self._threads = threads
        self._at = 0.0
        self._before: Mapping[int, Thread] = {}

    def begin(self, now: float) -> None:
        """Begin without a look at the threads: most answers come before the first one."""
        self._at, self._before = now, {}

    def look(self, now: float) -> None:
        """Add what was lost since the last look, or since the beginning."""
        found = self._threads()
        self.seconds += lost(now - self._at, self._before, found)
        self._at, self._before = now, found
