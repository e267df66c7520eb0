"""Which devices a container gets, and the calls to the plugin for them.

Copies ``DM/manager.go`` (allocateContainerResources, devicesToAllocate, UpdateAllocatedDevices) under topology policy
"none". The faults R5, R6 and R8 are consequences of that order of steps, and so they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from plugin.testing.clients import Clients
from plugin.testing.endpoint import PluginError
from plugin.testing.holdings import DeviceHolding, Holdings
from plugin.testing.inventory import ShownDevices
from plugin.testing.pods import Container, ContainerKind, Pod
from plugin.testing.quirks import Quirks

Reusable = dict[str, set[str]]


class KubeletPanic(Exception):
    """The kubelet process died of a fault of its own."""


class AllocationFailed(Exception):
    """No devices for this container, in the kubelet's words."""


class Allocation:
    """One for each life of the kubelet."""

    def __init__(
        self,
        holdings: Holdings,
        inventory: ShownDevices,
        clients: Clients,
        save: Callable[[], None],
        active: Callable[[], set[str]],
        *,
        ran_before: set[tuple[str, str]],
        quirks: Quirks,
    ) -> None:
        """``ran_before``: the (pod UID, container) that the runtime showed as running when the kubelet started."""
        self.ready = False  # whether all pod sources have been seen, so that absent pods are known to be gone
        self._holdings, self._inventory, self._clients = holdings, inventory, clients
        self._save, self._active = save, active
        self._ran_before, self._quirks = ran_before, quirks
        self._taken = holdings.taken()
        self._allocating: dict[str, set[str]] = {}
        self._pending = ""  # UID of the pod whose admission was begun last

    async def pod(self, pod: Pod) -> None:
        """Devices for all containers in the order of the specification; an error leaves the earlier ones allocated."""
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
        """One Allocate for each resource; the checkpoint is written once, at the end."""
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
        """Whether this is, or was, a device plugin's resource; of others the kubelet asks nobody."""
        return resource in self._inventory.healthy or resource in self._taken

    def clean(self) -> None:
        """``UpdateAllocatedDevices``: free what pods that are gone have held."""
        if not self.ready:
            return
        gone = self._holdings.pods() - self._active() - {self._pending}
        if gone:
            self._holdings.drop(gone)
            self._regenerate()

    def _regenerate(self) -> None:
        """R8: what an Allocate under way has taken is in no finished allocation, so it is forgotten."""
        self._taken = self._holdings.taken()
        if not self._quirks.list_forgets_allocating:
            for resource, ids in self._allocating.items():
                self._taken.setdefault(resource, set()).update(ids)

    async def _choose(self, pod: Pod, container: Container, resource: str, count: int, reusable: set[str]) -> list[str]:
        """The devices to ask Allocate for; none when the container has them already."""
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
        """Up to so many of them, each once, marked as taken."""
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
        self._allocating = {resource: set(chosen)}
        try:
            response = await self._clients.endpoints[resource].allocate(sorted(chosen))
        except PluginError as error:
            self._taken = self._holdings.taken()
            raise AllocationFailed(str(error)) from error
        finally:
            self._allocating = {}
        if not response.container_responses:
            raise AllocationFailed("no containers return in allocation response")
        nodes: dict[int, tuple[str, ...]] = {}
        for device in sorted(chosen):
            for node in self._nodes(resource, device):
                nodes[node] = (*nodes.get(node, ()), device)
        answer = response.container_responses[0].SerializeToString(deterministic=True)
        self._holdings.put((pod.uid, container.name, resource), DeviceHolding(nodes, answer))

    def _nodes(self, resource: str, device: str) -> list[int]:
        """R6: a device that has left the list since it was chosen is a nil pointer."""
        try:
            return self._inventory.nodes(resource, device)
        except KeyError:
            if self._quirks.vanished_device_panics:
                raise KubeletPanic(f"nil pointer: {device} left the list while its Allocate was under way") from None
            return [-1]
