"""The devices of a driver of our own: named by their UUID in our slice, and described by the CDI files of the node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from plugin.devices import Device
from plugin.dra import slices
from plugin.dra.claims import AllocatedDevice, NamedDevice
from plugin.dra.config import DraConfig
from plugin.kubelet_api import dra_pb2 as wire


class OwnDevices:
    """Implements ``driver.Devices``."""

    seconds = 0.0  # nothing follows after the devices are taken

    def __init__(self, chosen: DraConfig) -> None:
        self._chosen = chosen

    async def uuids(self, allocated: Collection[AllocatedDevice], _until: float) -> Mapping[AllocatedDevice, str]:
        """The name of a device is its UUID in lower case."""
        return {device: device.name for device in allocated}

    async def prepare(
        self, _claim: wire.Claim, devices: Mapping[AllocatedDevice, Device], _until: float
    ) -> wire.NodePrepareResourceResponse:
        """Each device under its CDI name."""
        return wire.NodePrepareResourceResponse(devices=[self._device(*each) for each in devices.items()])

    async def unprepare(self, _claim: wire.Claim, _until: float) -> wire.NodeUnprepareResourceResponse:
        """Nothing was made for the claim."""
        return wire.NodeUnprepareResourceResponse()

    async def named(self, shown: Sequence[Device]) -> Iterable[NamedDevice]:
        """All devices. The pool has the name of the node."""
        return [NamedDevice(self._chosen.cluster.node, slices.device_name(device.uuid), device) for device in shown]

    def _device(self, device: AllocatedDevice, ours: Device) -> wire.Device:
        return wire.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.name,
            cdi_device_ids=[f"{self._chosen.cdi_kind}={ours.uuid}"],
        )
