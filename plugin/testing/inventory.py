"""The devices that plugins have shown: each message replaces a resource's whole list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plugin.kubelet_api import deviceplugin_pb2

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
NO_NODE = -1


class ShownDevices:
    """What the kubelet believes to exist."""

    def __init__(self, resources: Iterable[str]) -> None:
        """After a start, resources of the checkpoint are known but empty until their plugin registers."""
        self.healthy: dict[str, set[str]] = {resource: set() for resource in resources}
        self.unhealthy: dict[str, set[str]] = {resource: set() for resource in resources}
        self.listed: dict[str, dict[str, deviceplugin_pb2.Device]] = {}
        self.forgotten: set[str] = set()  # their keys stay in the node's status, at zero

    def replace(self, resource: str, devices: Iterable[deviceplugin_pb2.Device]) -> None:
        """A ListAndWatch message came."""
        self.listed[resource] = {device.ID: device for device in devices}
        self.healthy[resource] = {one for one, device in self.listed[resource].items() if device.health == HEALTHY}
        self.unhealthy[resource] = set(self.listed[resource]) - self.healthy[resource]
        self.forgotten.discard(resource)

    def fail(self, resource: str) -> None:
        """Its plugin is gone: every device counts as unhealthy, none is dropped."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        if resource in self.healthy:
            self.healthy[resource] = set()

    def forget(self, resource: str) -> None:
        """Its plugin has been gone for too long."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)
        self.forgotten.add(resource)

    def health(self, resource: str) -> dict[str, str]:
        """Each device's health as the kubelet sees it."""
        result = dict.fromkeys(sorted(self.healthy.get(resource, ())), HEALTHY)
        for one in sorted(self.unhealthy.get(resource, ())):
            told = self.listed[resource][one].health
            result[one] = told if told != HEALTHY else UNHEALTHY
        return result

    def nodes(self, resource: str, device: str) -> list[int]:
        """The device's NUMA nodes, or -1; KeyError if the list lacks it."""
        return [node.ID for node in self.listed.get(resource, {})[device].topology.nodes] or [NO_NODE]

    def allocatable(self) -> dict[str, int]:
        """What the node's status offers."""
        return {**dict.fromkeys(self.forgotten, 0), **{name: len(ids) for name, ids in self.healthy.items()}}

    def capacity(self) -> dict[str, int]:
        """What the node's status says exists."""
        counts = {name: len(ids) + len(self.unhealthy.get(name, ())) for name, ids in self.healthy.items()}
        return {**dict.fromkeys(self.forgotten, 0), **counts}

    def registered(self) -> Mapping[str, list[str]]:
        """The checkpoint's RegisteredDevices: healthy ones only."""
        return {resource: sorted(ids) for resource, ids in self.healthy.items()}
