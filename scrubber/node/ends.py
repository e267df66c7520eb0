"""Reports the end of containers (groups) and processes (pidfds) that are watched, without polling.

A container has ended when its control group holds no process any more. Version 2 of control groups tells that as an
event. Where a container has no such group, one of its processes is watched.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from ground import log
from ground.aio import Changed
from scrubber.node import group_places

logger = log.get("ends")

_EMPTY = b"populated 0\n"  # neither this group nor one below it holds a process


class Ends:
    """Watches one container or process for each name. A reported name means "observe again", not what happened.

    ``OwnerContainers.watch_for_end`` says whom to watch for a device, and ``Monitor`` waits for ``next``.
    """

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        """``root``: where the root of control groups of version 2 is mounted; None: processes are watched."""
        self._root = root
        self._proc = proc
        self._watched: dict[str, _Watched] = {}
        self._ended: set[str] = set()
        self._changed = Changed()
        self._warned = False  # that a process could not be watched

    def watch(self, name: str, pid: int, same: Callable[[], bool], container: str | None = None) -> None:
        """Report the name when this process ends; with the container of the process, when all of that has ended.

        This replaces what was watched under this name. ``same`` is called once the pidfd is open: whether the pid
        still belongs to the intended process.
        """
        watched = self._watched.get(name)
        whom = watched.whom if watched is not None else None
        if container is not None and whom == container:
            return
        group = self._group(pid, container)
        if group is None and whom == pid:
            return
        self.forget(name)
        try:
            watched = _Process(pid, same) if group is None else _Group(container, group)
        except (ProcessLookupError, FileNotFoundError):
            self._report(name)
        except OSError as error:  # not permitted, or too many open files: the monitor's rounds notice the end
            if not self._warned:  # once, not at every observation
                logger.warning("cannot wait for the end of a process; the monitor polls for it", error=error.strerror)
            self._warned = True
        else:
            self._watched[name] = watched
            asyncio.get_running_loop().add_reader(watched.handle, self._on_change, name)

    def forget(self, name: str) -> None:
        """Watch nothing under this name."""
        watched = self._watched.pop(name, None)
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched.handle)
            watched.close()

    async def next(self) -> frozenset[str]:
        """Wait for an end; returns all names whose container or process has ended since the last call."""
        await self._changed.until(lambda: bool(self._ended))
        ended, self._ended = frozenset(self._ended), set()
        return ended

    def close(self) -> None:
        """Watch nothing any more."""
        for name in tuple(self._watched):
            self.forget(name)

    def _group(self, pid: int, container: str | None) -> Path | None:
        if self._root is None or container is None:
            return None
        return group_places.unified_group(self._root, container, f"{self._proc}/{pid}")

    def _on_change(self, name: str) -> None:
        if self._watched[name].has_ended():
            self.forget(name)
            self._report(name)

    def _report(self, name: str) -> None:
        self._ended.add(name)
        self._changed.notify()


class _Watched(Protocol):
    @property
    def whom(self) -> int | str | None: ...
    @property
    def handle(self) -> int: ...  # readable when there is something new
    def has_ended(self) -> bool: ...
    def close(self) -> None: ...


class _Process:
    """A process, by its pidfd."""

    def __init__(self, pid: int, same: Callable[[], bool]) -> None:
        """ProcessLookupError if the intended process has ended."""
        self.whom = pid
        self.handle = os.pidfd_open(pid)
        try:
            if not same():
                raise ProcessLookupError(pid)
        except OSError:
            self.close()
            raise

    def has_ended(self) -> bool:
        return True  # nothing else makes a pidfd readable

    def close(self) -> None:
        os.close(self.handle)


class _Group:
    """The processes of a control group of version 2, by its file of events.

    The file can always be read; a change is urgent data, which only ``epoll`` tells apart. A watch by inotify would
    report the same, but a tenant that runs as root can take all inotify instances of root.
    """

    def __init__(self, container: str | None, group: Path) -> None:
        """FileNotFoundError if the group was removed. A file that was never read has changed: so it is read at once."""
        self.whom = container
        with ExitStack() as closing:
            self._events = closing.enter_context((group / "cgroup.events").open("rb", buffering=0))
            self._changes = closing.enter_context(select.epoll())
            self._changes.register(self._events, select.EPOLLPRI)
            self.handle = self._changes.fileno()
            self.close = closing.pop_all().close

    def has_ended(self) -> bool:
        """Whether no process is left. Changes that come after this are told of."""
        try:
            self._events.seek(0)
            return self._events.read().startswith(_EMPTY)
        except OSError:  # the group was removed
            return True
