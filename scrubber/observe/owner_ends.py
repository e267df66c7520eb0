"""Whether the containers that own devices are alive; and the report of their end, without polling.

From a watched end to a clean device: ``Ends`` reports it, ``service.monitor`` reconciles the device, ``service.upkeep``
observes it and records what ``core.next_action`` decides. That is first ``Released``, and in the same call a scrub.

A container has ended when its control group holds no process any more. Version 2 of control groups tells that as an
event. Where a container has no such group, one of its processes is watched.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from ground import log
from ground.aio import Changed
from scrubber.core.model import Facts
from scrubber.core.record import Record
from scrubber.node import group_places
from scrubber.node.proc import DEAD
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls, Shared

logger = log.get("ends")

_EMPTY = b"populated 0\n"  # neither this group nor one below it holds a process


class OwnerContainers:
    """The containers that own devices."""

    def __init__(
        self, driver: DriverCalls, processes: Processes, ends: Ends | None, on_pass: Callable[[], None]
    ) -> None:
        """``on_pass``: called whenever all processes are searched for live containers.

        ``ends``: learns at every full observation whose end the monitor waits for: that end starts the next one.
        """
        self._driver = driver
        self._processes = processes
        self._ends = ends
        self._on_pass = on_pass
        self._members: Mapping[str, int] = {}  # one process of each container that was found alive
        self._live_containers = Shared(self._find_containers)

    def member(self, container: str | None) -> int | None:
        """A process of a container that was found alive."""
        return self._members.get(container or "")

    async def is_alive(self, container: str | None) -> bool | None:
        """Whether a process of the container lives; None if there is no container."""
        if container is None:
            return None
        alive = await self._tell_groups(container)
        return container in await self._live_containers.ask(container) if alive is None else alive

    async def has_started(self, pod: str) -> bool:
        """Whether a pod that asks to start lives. Its sandbox is one of the newest processes, so few are read."""
        alive = await self._tell_groups(pod)
        if alive is not None:
            return alive
        question, patience = partial(self._driver.backend.living, (pod,)), self._driver.patience
        newest = await self._driver.caller.ask(f"start of {pod}", question, patience)
        if pod not in newest:
            self._on_pass()
            return False
        self._members = {**self._members, pod: newest[pod]}
        return True

    async def _tell_groups(self, container: str) -> bool | None:
        question, patience = partial(self.by_groups, container), self._driver.patience
        return await self._driver.caller.ask(f"pod {container}", question, patience)

    def by_groups(self, container: str) -> bool | None:
        """Whether the container lives, by its last member or by its control groups; None if only a search can tell.

        Runs in a thread.
        """
        last_member, backend = self._members.get(container), self._driver.backend
        if last_member is not None and self._is_in(last_member, container):
            return True
        if backend.has_ended(container):
            self._members = {name: pid for name, pid in self._members.items() if name != container}
            return False
        member = backend.member(container)
        if member is None:
            return None
        self._members = {**self._members, container: member}
        return True

    async def _find_containers(self, _asked: frozenset[str]) -> Mapping[str, int]:
        self._on_pass()
        self._members = await self._driver.caller.ask("containers", self._driver.backend.living, self._driver.patience)
        return self._members

    def watch_for_end(self, record: Record, facts: Facts, starting_pod: str | None) -> None:
        """From now on, the end of the owner's container, or else of a holder, wakes ``Monitor`` (``Ends.next``)."""
        ends = self._ends
        if ends is None:
            return
        device, owner = record.device.uuid, record.tenancy.container
        lives = facts.owner_alive if owner is not None else facts.starting_pod_alive
        container = owner or starting_pod
        member = self.member(container) if lives else None
        if member is not None:
            ends.watch(device, member, lambda: self._is_in(member, container), container)
        elif facts.holders:
            holder = facts.holders[0]
            ends.watch(device, holder.pid, lambda: self._processes.lives(holder))
        else:
            ends.forget(device)

    def _is_in(self, pid: int, container: str | None) -> bool:
        """Whether a live process is in the container. False if its first thread has ended: then only a search tells."""
        try:
            threads = self._processes.process(pid)
        except OSError:  # such as too many open files
            return False
        return any(thread.container == container and thread.state not in DEAD for thread in threads)


class Ends:
    """Watches one container or process for each name. A reported name means "observe again", not what happened."""

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
