"""Chooses devices for a container and calls the plugin for them.

Copies ``DM/manager.go`` (allocateContainerResources, devicesToAllocate, UpdateAllocatedDevices) under topology policy
"none". The faults R5, R6 and R8 result from that order of steps, so this module has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from demo.standins.clients import Clients
from demo.standins.endpoint import PluginError
from demo.standins.holdings import DeviceHolding, Holdings
from demo.standins.inventory import ShownDevices
from demo.standins.pods import Container, ContainerKind, Pod

Reusable = dict[str, set[str]]


class KubeletPanic(Exception):
    """The kubelet process died of its own fault."""


class AllocationFailed(Exception):
    """No devices for this container; the message is the kubelet's."""


class Allocation:
    """The allocations of one kubelet process."""

    def __init__(
        self,
        holdings: Holdings,
        inventory: ShownDevices,
        clients: Clients,
        save: Callable[[], None],
        active: Callable[[], set[str]],
        *,
        ran_before: set[tuple[str, str]],
    ) -> None:
        """``ran_before``: the (pod UID, container) that the runtime showed as running when the kubelet started."""
        self.ready = False  # all pod sources were read, so that an absent pod is a deleted pod
        self._holdings, self._inventory, self._clients = holdings, inventory, clients
        self._save, self._active = save, active
        self._ran_before = ran_before
        self._taken = holdings.taken()
        self._pending = ""  # UID of the pod whose admission began last

    async def pod(self, pod: Pod) -> None:
        """Allocate for all containers in their order; after an error the earlier ones stay allocated."""
        self._pending = pod.uid
        reusable: Reusable = {}
        for container in pod.containers:
            await self.container(pod, container, reusable)
            mine = self._holdings.of_container(pod.uid, container.name)
            for resource, held in mine.items():
                if container.kind is ContainerKind.INIT:
                    reusable.setdefault(resource, set()).update(held.ids)
                else:
                    reusable.setdefault(resource, set()).difference_update(held.ids)

    async def container(self, pod: Pod, container: Container, reusable: Mapping[str, set[str]]) -> None:
        """Call Allocate for each resource; write the checkpoint once, at the end."""
        cleaned = allocated = False
        for resource, count in container.resources.items():
            if not self.concerns(resource):
                continue
            if not cleaned:
                self.clean()
                cleaned = True
            chosen = await self._choose(pod, container, resource, count, reusable.get(resource, set()))
            if chosen:
                await self._allocate(pod, container, resource, chosen)
                allocated = True
        if allocated:
            self._save()

    def concerns(self, resource: str) -> bool:
        """Whether a device plugin offers, or offered, this resource; for others the kubelet calls no plugin."""
        return resource in self._inventory.healthy or resource in self._taken

    def clean(self) -> None:
        """``UpdateAllocatedDevices``: free the devices of deleted pods."""
        if not self.ready:
            return
        gone = self._holdings.pods() - self._active() - {self._pending}
        if gone:
            self._holdings.drop(gone)
            self._regenerate()

    def _regenerate(self) -> None:
        """R8: devices of a running Allocate are in no finished allocation, so the kubelet forgets them."""
        self._taken = self._holdings.taken()

    async def _choose(self, pod: Pod, container: Container, resource: str, count: int, reusable: set[str]) -> list[str]:
        """The devices for Allocate; empty if the container has its devices already."""
        held = self._holdings.get(pod.uid, container.name, resource)
        if held is not None and len(held.ids) != count:
            raise AllocationFailed(
                f"pod {pod.uid} container {container.name} changed request for resource {resource}"
                f" from {len(held.ids)} to {count}"
            )
        if not self.ready and (pod.uid, container.name) in self._ran_before:
            return []
        self._demand_healthy(resource, set(held.ids) if held else set())
        if held is not None or count == 0:
            return []
        chosen = self._take(resource, sorted(reusable), count)
        free = self._inventory.healthy[resource] - self._taken.get(resource, set())
        missing = count - len(chosen)
        if len(free) < missing:
            raise AllocationFailed(
                f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
            )
        if missing:
            preferred = await self._prefer(resource, free | set(chosen), chosen, count)
            chosen += self._take(resource, [one for one in preferred if one in free], missing)
            chosen += self._take(resource, sorted(free - set(chosen)), count - len(chosen))
        return chosen

    def _demand_healthy(self, resource: str, held: set[str]) -> None:
        healthy = self._inventory.healthy.get(resource)
        if healthy is None:
            raise AllocationFailed(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationFailed(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not held <= healthy:
            raise AllocationFailed(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )

    def _take(self, resource: str, candidates: Iterable[str], most: int) -> list[str]:
        """Mark at most ``most`` of the candidates as taken, each once, and return them."""
        taken = list(dict.fromkeys(candidates))[: max(0, most)]
        self._taken.setdefault(resource, set()).update(taken)
        return taken

    async def _prefer(self, resource: str, available: set[str], must: Sequence[str], size: int) -> Sequence[str]:
        endpoint = self._clients.endpoints[resource]
        if endpoint.options is None or not endpoint.options.get_preferred_allocation_available:
            return ()
        try:
            return await endpoint.prefer(sorted(available), sorted(must), size)
        except PluginError as error:
            raise AllocationFailed(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error

    async def _allocate(self, pod: Pod, container: Container, resource: str, chosen: Sequence[str]) -> None:
        try:
            response = await self._clients.endpoints[resource].allocate(sorted(chosen))
        except PluginError as error:
            self._taken = self._holdings.taken()
            raise AllocationFailed(str(error)) from error
        if not response.container_responses:
            raise AllocationFailed("no containers return in allocation response")
        nodes: dict[int, tuple[str, ...]] = {}
        for device in sorted(chosen):
            for node in self._nodes(resource, device):
                nodes[node] = (*nodes.get(node, ()), device)
        answer = response.container_responses[0].SerializeToString(deterministic=True)
        self._holdings.put((pod.uid, container.name, resource), DeviceHolding(nodes, answer))

    def _nodes(self, resource: str, device: str) -> list[int]:
        """R6: a device that has left the list since the choice is a nil pointer."""
        try:
            return self._inventory.nodes(resource, device)
        except KeyError:
            raise KubeletPanic(f"nil pointer: {device} left the list during its Allocate") from None
