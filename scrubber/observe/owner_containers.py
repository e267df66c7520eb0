"""Whether the containers that own devices are alive, and whose end the service waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from scrubber.core.model import Facts
from scrubber.core.record import Record
from scrubber.node.ends import Ends
from scrubber.node.proc import DEAD
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls, Shared


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

    def has_member(self, container: str) -> bool:
        """Whether a process of the container is found alive without a search. Runs in a thread."""
        return self._ask_groups(container) is True

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
        question, patience = partial(self._ask_groups, container), self._driver.patience
        return await self._driver.caller.ask(f"pod {container}", question, patience)

    def _ask_groups(self, container: str) -> bool | None:
        """Whether the container lives, by its last member or by its control groups; None if only a search can tell."""
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
