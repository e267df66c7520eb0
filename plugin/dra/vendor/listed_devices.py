"""The devices that a vendor's driver lists in its ResourceSlices, and which of them can be proven clean. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from plugin.devices import Device, pci_bus_id
from plugin.dra.resource_slices import PCI_BUS_ID, device_name

Key: TypeAlias = tuple[str, str]  # pool and name
SCRUBBED = frozenset({"gpu", "mig", ""})  # the types of a vendor's devices that the scrub service knows


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device of the vendor's driver. A text is empty if the slice does not have it."""

    name: str
    uuid: str
    kind: str
    pci_bus_id: str


def listed(resource_slices: Iterable[Mapping[str, Any]]) -> dict[Key, ListedDevice]:
    """The devices of these ResourceSlices. Only the newest generation of each pool counts.

    A device that is listed twice, as different GPUs, has no UUID.
    """
    pools: dict[str, list[Mapping[str, Any]]] = {}
    for resource_slice in resource_slices:
        pools.setdefault(resource_slice["spec"]["pool"]["name"], []).append(resource_slice["spec"])
    devices: dict[Key, ListedDevice] = {}
    for pool, specs in pools.items():
        newest = max(spec["pool"]["generation"] for spec in specs)
        for spec in specs:
            if spec["pool"]["generation"] == newest:
                for entry in spec.get("devices") or ():
                    device = _listed_device(entry, spec["driver"])
                    before = devices.get((pool, device.name), device)
                    devices[pool, device.name] = device if device == before else replace(device, uuid="")
    return devices


def refusal(device: ListedDevice) -> str:
    """Why this device cannot be proven clean; empty if it can."""
    if device.kind not in SCRUBBED:
        return f"{device.name} is of the type {device.kind!r}: only GPUs and MIG slices can be proven clean"
    if not device.uuid:
        return (
            f"{device.name} has no UUID in its ResourceSlice, like MIG slices that are created on demand:"
            " it cannot be proven clean before it exists"
        )
    return ""


def disagreement(listed_device: ListedDevice, device: Device) -> str:
    """Why the slice and the scrub service cannot mean the same GPU; empty if they can."""
    name, ours, theirs = listed_device.name, pci_bus_id(device), listed_device.pci_bus_id.lower()
    if device_name(listed_device.uuid) != device_name(device.uuid):
        return f"the ResourceSlice has changed: {name} was {device.uuid}"
    if ours and theirs and ours != theirs:
        return f"{name} is {device.uuid}: its ResourceSlice says at {theirs}, the scrub service at {ours}"
    return ""


def _listed_device(entry: Mapping[str, Any], driver: str) -> ListedDevice:
    attributes = entry.get("attributes") or {}

    def text(name: str) -> str:
        value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
        return str(value.get("string", ""))

    return ListedDevice(entry["name"], text("uuid"), text("type"), text(PCI_BUS_ID))
