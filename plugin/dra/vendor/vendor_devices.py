"""The devices of another vendor's DRA driver, which runs unchanged, behind this program.

The vendor's driver publishes the ResourceSlices and prepares the containers. Before that driver gets a claim, the scrub
service hands out the devices of the claim, proven clean. After it has answered, the answer is checked: no container may
get another device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from ground import log
from ground.errors import VENDOR_LOG, InvalidRequest, NotReady, Reason
from plugin.cluster.retry_loop import Failure
from plugin.devices import Device
from plugin.dra.claims import AllocatedDevice, NamedDevice
from plugin.dra.dra_driver import HEALTHS
from plugin.dra.resource_slices import device_name
from plugin.dra.vendor import listed_devices
from plugin.dra.vendor.listed_devices import Key, ListedDevice
from plugin.kubelet_api import dra_pb2 as wire
from plugin.listing import Listing
from plugin.vendor import cdi_edits

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

logger = log.get("vendor")
A = TypeVar("A", wire.NodePrepareResourcesResponse, wire.NodeUnprepareResourcesResponse)

SERVED = frozenset({"v1.DRAPlugin", "v1beta1.DRAPlugin"})  # versions with the same messages
LISTED_WITHIN = 10.0  # seconds: at its start the kubelet deletes the slices, and the vendor's driver writes them again
PAUSE = 1.0  # seconds between two looks at the slices


class VendorService:
    """The calls to the vendor's driver. Unknown parts of a message are kept."""

    def __init__(self, channel: grpc.aio.Channel, driver: str, versions: Sequence[str]) -> None:
        """``versions``: of the calls, as the vendor's driver names them; one of them is in ``SERVED``."""
        self._driver = driver
        self._channel = channel
        self._service = f"/k8s.io.kubelet.pkg.apis.dra.{next(version for version in versions if version in SERVED)}"

    async def prepare(self, claim: wire.Claim, until: float) -> wire.NodePrepareResourceResponse:
        """What the vendor's driver answers for this claim. Raises NotReady without an answer."""
        request = wire.NodePrepareResourcesRequest(claims=[claim])
        answer = await self._call("NodePrepareResources", request, wire.NodePrepareResourcesResponse, until)
        return answer.claims[claim.uid]

    async def unprepare(self, claim: wire.Claim, until: float) -> wire.NodeUnprepareResourceResponse:
        """What the vendor's driver answers at the end of the claim. Raises NotReady without an answer."""
        request = wire.NodeUnprepareResourcesRequest(claims=[claim])
        answer = await self._call("NodeUnprepareResources", request, wire.NodeUnprepareResourcesResponse, until)
        return answer.claims[claim.uid]

    async def _call(self, method: str, request: Any, answer: type[A], until: float) -> A:  # noqa: ANN401 - either request
        call = self._channel.unary_unary(
            f"{self._service}/{method}", type(request).SerializeToString, answer.FromString
        )
        left = max(until - asyncio.get_running_loop().time(), 0.0)
        try:
            answered = await call(request, timeout=left)
        except grpc.aio.AioRpcError as error:
            logger.warning("the vendor's driver did not answer", code=error.code().name, error=error.details())
            text = f"the driver {self._driver} did not answer: {error.code().name}"
            raise NotReady(Reason.NOT_READY, text, VENDOR_LOG) from error
        if request.claims[0].uid not in answered.claims:
            raise NotReady(Reason.NOT_READY, f"the driver {self._driver} answered without this claim", VENDOR_LOG)
        return answered


class VendorDevices:
    """Implements ``dra_driver.Devices``."""

    seconds = 5.0  # a vendor's driver whose call is cut off may prepare the claim after its Unprepare

    def __init__(
        self, service: VendorService, source: ApiServer, listing: Listing, driver: str, cdi_dirs: Collection[Path]
    ) -> None:
        self._service = service
        self._source = source
        self._listing = listing
        self._driver = driver
        self._cdi_dirs = cdi_dirs
        self._listed: Mapping[Key, ListedDevice] = {}  # as last read

    async def uuids(self, allocated: Collection[AllocatedDevice], until: float) -> Mapping[AllocatedDevice, str]:
        """What the slices of the vendor's driver say."""
        clock = asyncio.get_running_loop().time
        last = min(until, clock() + LISTED_WITHIN)
        while True:
            listed = await self._read()
            missing = [device for device in allocated if (device.pool, device.name) not in listed]
            if not missing:
                break
            if clock() >= last:
                text = f"no ResourceSlice of {self._driver} on this node has the device {missing[0].name}"
                raise InvalidRequest(f"{text} of the pool {missing[0].pool}")
            await asyncio.sleep(min(PAUSE, last - clock()))
        for device in allocated:
            if why := listed_devices.refusal(listed[device.pool, device.name]):
                raise InvalidRequest(why)
        return {device: device_name(listed[device.pool, device.name].uuid) for device in allocated}

    async def prepare(
        self, claim: wire.Claim, devices: Mapping[AllocatedDevice, Device], until: float
    ) -> wire.NodePrepareResourceResponse:
        """The vendor's answer, unchanged, if it does not give away another device."""
        for allocated, device in devices.items():
            listed = self._listed.get((allocated.pool, allocated.name))
            if listed is None or (why := listed_devices.disagreement(listed, device)):
                raise InvalidRequest(why if listed else f"no ResourceSlice has {allocated.name} any longer")
        answer = await self._service.prepare(claim, until)
        reported = self._listing.current()
        if reported is None:
            raise NotReady(Reason.UNREACHABLE, "the scrub service no longer answers", "the kubelet tries again")
        if not answer.error:
            cdi_ids = [cdi_id for device in answer.devices for cdi_id in device.cdi_device_ids]
            await asyncio.to_thread(cdi_edits.check, cdi_ids, self._cdi_dirs, list(devices.values()), reported)
        return answer

    async def unprepare(self, claim: wire.Claim, until: float) -> wire.NodeUnprepareResourceResponse:
        """The vendor's driver ends what it has started for the claim."""
        return await self._service.unprepare(claim, until)

    async def named(self, shown: Sequence[Device]) -> Iterable[NamedDevice]:
        """The devices that the slices and the scrub service know. Each Prepare reads the slices again."""
        if not self._listed:
            try:
                await self._read()
            except Failure as failure:
                logger.warning("cannot read the slices of the vendor's driver", error=failure.message)
        devices = {device_name(device.uuid): device for device in shown}
        named = ((pool, entry.name, devices.get(device_name(entry.uuid))) for (pool, _), entry in self._listed.items())
        return [NamedDevice(pool, name, device) for pool, name, device in named if device is not None]

    async def _read(self) -> Mapping[Key, ListedDevice]:
        self._listed = listed_devices.listed(await self._source.slices_of(self._driver))
        return self._listed


def health_handler(channel: grpc.aio.Channel, versions: Collection[str]) -> grpc.RpcMethodHandler[Any, Any] | None:
    """Passes on the health that the vendor's driver reports, unchanged; None if the driver reports none."""
    service = next((health for health in HEALTHS if health in versions), None)
    if service is None:
        return None
    watch = channel.unary_stream(f"/{service}/NodeWatchResources", bytes, bytes)

    async def relay(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async for message in watch(request):
            await context.write(message)

    stream: Any = grpc.unary_stream_rpc_method_handler  # typed for threads
    handler: grpc.RpcMethodHandler[Any, Any] = stream(relay, bytes, bytes)
    return handler
