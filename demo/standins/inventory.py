"""The devices that plugins have listed: each message replaces the whole list of a resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plugin.kubelet_api import deviceplugin_pb2

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
NO_NODE = -1


class ShownDevices:
    """The devices that the kubelet knows."""

    def __init__(self, resources: Iterable[str]) -> None:
        """``resources``: those of the checkpoint, which have no devices until their plugin registers."""
        self.healthy: dict[str, set[str]] = {resource: set() for resource in resources}
        self.unhealthy: dict[str, set[str]] = {resource: set() for resource in resources}
        self.listed: dict[str, dict[str, deviceplugin_pb2.Device]] = {}
        self.forgotten: set[str] = set()  # the node's status still has them, with 0 devices

    def replace(self, resource: str, devices: Iterable[deviceplugin_pb2.Device]) -> None:
        """Apply a ListAndWatch message."""
        self.listed[resource] = {device.ID: device for device in devices}
        self.healthy[resource] = {one for one, device in self.listed[resource].items() if device.health == HEALTHY}
        self.unhealthy[resource] = set(self.listed[resource]) - self.healthy[resource]
        self.forgotten.discard(resource)

    def fail(self, resource: str) -> None:
        """Make every device unhealthy: the plugin has stopped."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        if resource in self.healthy:
            self.healthy[resource] = set()

    def forget(self, resource: str) -> None:
        """Forget the resource: its plugin has been stopped for too long."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)
        self.forgotten.add(resource)

    def health(self, resource: str) -> dict[str, str]:
        """The health of each device as the kubelet sees it."""
        result = dict.fromkeys(sorted(self.healthy.get(resource, ())), HEALTHY)
        for one in sorted(self.unhealthy.get(resource, ())):
            listed = self.listed[resource][one].health
            result[one] = listed if listed != HEALTHY else UNHEALTHY
        return result

    def nodes(self, resource: str, device: str) -> list[int]:
        """The device's NUMA nodes, or -1; KeyError if the device is not in the list."""
        return [node.ID for node in self.listed.get(resource, {})[device].topology.nodes] or [NO_NODE]

    def allocatable(self) -> dict[str, int]:
        """The allocatable devices in the node's status."""
        return {**dict.fromkeys(self.forgotten, 0), **{name: len(ids) for name, ids in self.healthy.items()}}

    def capacity(self) -> dict[str, int]:
        """The capacity in the node's status."""
        counts = {name: len(ids) + len(self.unhealthy.get(name, ())) for name, ids in self.healthy.items()}
        return {**dict.fromkeys(self.forgotten, 0), **counts}

    def registered(self) -> Mapping[str, list[str]]:
        """The checkpoint's RegisteredDevices: healthy ones only."""
        return {resource: sorted(ids) for resource, ids in self.healthy.items()}
