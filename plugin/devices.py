"""A device as the plugin knows it (island, NUMA node, PCI address), and its resource name in the kubelet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import TypeAlias

from scrub_api.device_messages import ReportedDevice

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"  # in the kubelet's words


class MigStrategy(Enum):
    """How MIG devices are offered: not at all, under the name of whole GPUs, or under a name for each profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Device(ReportedDevice):
    """One device in the list for the kubelet. ``resource`` is the name that pods request."""

    gone: bool = False  # the scrub service does not list it any more
    entry: bytes = b""  # what a vendor's plugin says of it, as it was sent


_FIELDS = tuple(field.name for field in fields(ReportedDevice))


SelectDevices: TypeAlias = Callable[
    [Iterable[ReportedDevice]], Iterable[Device]
]  # what is listed of the service's devices


def own_devices(prefix: str, strategy: MigStrategy) -> SelectDevices:
    """Offer every device, each under its full resource name."""

    def offered(reported: Iterable[ReportedDevice]) -> Iterator[Device]:
        for device in reported:
            resource = resource_name(device, prefix, strategy)
            if resource is not None:
                yield listed(device, resource)

    return offered


def listed(device: ReportedDevice, resource: str, **changes: object) -> Device:
    """The device as it is listed under a resource."""
    # The kubelet reads -1 as "no node", so a negative number is an unknown node.
    numa_node = device.numa_node if device.numa_node is not None and device.numa_node >= 0 else None
    kept = {name: getattr(device, name) for name in _FIELDS}  # asdict would copy deeply, which takes long
    return Device(**kept | {"resource": resource, "numa_node": numa_node} | changes)


def pci_bus_id(device: ReportedDevice) -> str:
    """The PCI address as Kubernetes writes it; empty if it is not known."""
    domain, _, rest = device.pci_address.lower().partition(":")  # the driver gives a domain of eight digits
    return f"{int(domain, 16):04x}:{rest}" if domain else ""


def resource_name(device: ReportedDevice, prefix: str, strategy: MigStrategy) -> str | None:
    """The resource that pods request to get this device; None if the device is not offered."""
    kind = device.resource.rpartition("/")[2]
    if not device.mig:
        return f"{prefix}/{kind}"
    match strategy:
        case MigStrategy.NONE:
            return None
        case MigStrategy.SINGLE:
            return f"{prefix}/gpu"
        case MigStrategy.MIXED:
            return f"{prefix}/{kind}"
