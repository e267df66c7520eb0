"""What the plugins of a vendor offer, combined with what the scrub service says.

A device is healthy if both say so. A list that calls all of several devices unhealthy says nothing about a single
device: NVIDIA's plugin sends such lists when it can no longer wait for errors, for example after the loss of one GPU.
Each device is then scrubbed again, and is healthy if the scrub service says so. The kubelet gets the vendor's entry of
a device unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from plugin.devices import HEALTHY, Device, listed
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.response import DEVICE_ID
from scrub_api.device_messages import ReportedDevice
from scrub_api.request_limits import DEVICE

MOST = 4096  # devices of a resource: the kubelet gets each device that was ever listed with each change


@dataclass(frozen=True, slots=True)
class VendorList:
    """The last list of one resource."""

    entries: Mapping[str, bytes]  # by id, in the order of the vendor
    healthy: frozenset[str]
    current: bool = True  # the vendor's plugin is there

    @property
    def unhealthy(self) -> frozenset[str]:
        """The devices that the vendor calls unhealthy."""
        return frozenset(self.entries.keys() - self.healthy)

    @property
    def doubts_all(self) -> bool:
        """Whether it calls all of several devices unhealthy."""
        return len(self.entries) > 1 and not self.healthy


def read(message: wire.ListAndWatchResponse) -> VendorList:
    """The list in a message. Raises a ValueError that says why it cannot be used."""
    if (count := len(message.devices)) > MOST:
        raise ValueError(f"it has {count} devices, and at most {MOST} can be offered")
    ids = [device.ID for device in message.devices]
    for name in ids:
        if not DEVICE.fullmatch(name):
            raise ValueError(f"it has a device with the id {name[:80]!r}, which no device can have")
    if len(set(ids)) < len(ids):
        raise ValueError("it has a device twice")
    healthy = frozenset(device.ID for device in message.devices if device.health == HEALTHY)
    return VendorList({device.ID: device.SerializeToString() for device in message.devices}, healthy)


def refusal(name: str, on_node: Collection[ReportedDevice]) -> str:
    """Why a device with this id cannot be proven clean; empty if it can, or if no device of the node is known yet."""
    if "::" in name:
        return (
            f"{name} is a share of a GPU (time slicing or MPS): the data of several pods lies in one memory, so it"
            " cannot be proven clean; turn the sharing off in the vendor's plugin"
        )
    if not DEVICE_ID.fullmatch(name):
        return f"{name} is not the UUID of a GPU or of a MIG device: it cannot be proven clean"
    if on_node and not any(device.uuid == name for device in on_node):
        return f"the scrub service does not know {name}"
    return ""


class VendorOffer:
    """The lists of all resources."""

    def __init__(self) -> None:
        self._lists: dict[str, VendorList] = {}
        self._named: dict[str, frozenset[str]] = {}  # by resource: each device that was ever listed
        self._lists_taken = 0
        self._doubts: dict[str, int] = {}  # by device: the number of the list that called it unhealthy last

    def put(self, resource: str, offered: VendorList) -> None:
        """Take a new list.

        A ValueError says why it is not taken. A device is doubted if the vendor calls it unhealthy now, and did not do
        so in the last list. They stay unhealthy until ``trust``, whatever the next list says.
        """
        named = self._named.get(resource, frozenset()) | offered.entries.keys()
        if len(named) > MOST:
            raise ValueError(f"it has {len(named)} devices with those of earlier lists, and {MOST} can be offered")
        self._named[resource] = named
        before = self._lists.get(resource)
        self._lists[resource] = offered
        self._lists_taken += 1
        doubted = offered.unhealthy - (before.unhealthy if before else frozenset())
        self._doubts |= dict.fromkeys(doubted, self._lists_taken)

    @property
    def doubts(self) -> Mapping[str, int]:
        """The doubted devices, each with the number of its last doubt."""
        return self._doubts

    def trust(self, device: str, doubt: int) -> None:
        """The device is scrubbed before it goes out again, unless it was doubted once more since this doubt."""
        if self._doubts.get(device) == doubt:
            del self._doubts[device]

    def healthy(self, resource: str, device: str) -> bool:
        """Whether the vendor's plugin is there, and neither it nor the scrub service objects to this device."""
        vendor = self._lists.get(resource)
        if vendor is None or not vendor.current or device in self._doubts:
            return False
        return device in (vendor.entries if vendor.doubts_all else vendor.healthy)

    def doubts_all(self, resource: str) -> bool:
        """Whether the last list of a resource calls all of several devices unhealthy."""
        return resource in self._lists and self._lists[resource].doubts_all

    def away(self, resource: str) -> None:
        """The vendor's plugin is gone: its devices are unhealthy until its next list."""
        if resource in self._lists:
            self._lists[resource] = replace(self._lists[resource], current=False)

    def ids(self, resource: str) -> Collection[str]:
        """The devices in the last list of a resource."""
        return self._lists[resource].entries.keys() if resource in self._lists else ()

    def __call__(self, reported: Iterable[ReportedDevice]) -> Iterator[Device]:
        """Every device that a vendor lists. One that the scrub service does not know is unhealthy."""
        by_name = {device.uuid: device for device in reported}
        for resource, vendor in self._lists.items():
            for place, (name, entry) in enumerate(vendor.entries.items()):
                if name in by_name:
                    healthy = by_name[name].healthy and self.healthy(resource, name)
                    yield listed(by_name[name], resource, healthy=healthy, entry=entry)
                else:
                    unknown = ReportedDevice(name, healthy=False, clean=False, numa_node=None, resource="", index=place)
                    yield listed(unknown, resource, entry=entry)
