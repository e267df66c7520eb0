"""The kubelet's DRA calls: prepares and unprepares claims, each under its lock, with devices proven clean and CDI ids.

An error of one claim is in the answer for that claim; the other claims continue.

The kubelet shows the text of an error in an event of the pod. It repeats a failed Prepare after 60 to 90 seconds, so it
is better to wait than to fail. A failed Unprepare keeps the devices of the claim for it, in the whole cluster.
"""

# ruff: noqa: ARG002, N802 - the proto names the methods and their parameters

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from ground import log, logged_calls
from ground.errors import AutoclaveError, InvalidRequest, plain
from ground.logged_calls import CallOutcome, LoggedCall
from plugin.cluster.retry_loop import Failure
from plugin.devices import Device
from plugin.dra import claims, resource_slices
from plugin.dra.claim_devices import ClaimDevices
from plugin.dra.claim_pods import ClaimPods
from plugin.dra.claims import AllocatedDevice, NamedDevice
from plugin.dra.config import DraConfig
from plugin.dra.metrics import API_SERVER, VENDOR, Call, DraCounters
from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import drahealth_pb2 as health_wire
from plugin.listing import Listing
from plugin.stopping import InFlight
from scrub_api.request_limits import is_subdomain

logger = log.get("dra")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
A = TypeVar("A", wire.NodePrepareResourceResponse, wire.NodeUnprepareResourceResponse)
Work: TypeAlias = Callable[[wire.Claim, float, str], Coroutine[Any, Any, A]]

CALL_WITHIN = 45.0  # seconds that the kubelet waits
MARGIN = 2.0  # seconds for the answer itself
READ_WITHIN = 10.0  # seconds: a new claim, a new right or a restarted API server may be a moment late
READ_PAUSES = wait_exponential(multiplier=0.05, max=1.0)
HEALTH_EVERY = 10.0  # seconds between two messages without a change; the kubelet forgets a health after 30
HEALTHS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # the same messages; the first one since 1.37
FAULT = "a fault inside the DRA driver"


class Devices(Protocol):
    """What differs between a driver of our own and one in front of another vendor's driver."""

    seconds: float  # that ``prepare`` must have after the devices are taken

    async def uuids(self, allocated: Collection[AllocatedDevice], until: float) -> Mapping[AllocatedDevice, str]:
        """The UUID, in lower case, of each device that the cluster has allocated to a claim."""

    async def prepare(
        self, claim: wire.Claim, devices: Mapping[AllocatedDevice, Device], until: float
    ) -> wire.NodePrepareResourceResponse:
        """The answer for a claim that has these devices."""

    async def unprepare(self, claim: wire.Claim, until: float) -> wire.NodeUnprepareResourceResponse:
        """Undo ``prepare``. An error in the answer keeps the devices for the claim."""

    async def named(self, shown: Sequence[Device]) -> Iterable[NamedDevice]:
        """The devices under the names that the cluster has for them."""


class DraDriver:
    """Prepares the devices of claims, and takes them back."""

    def __init__(
        self,
        chosen: DraConfig,
        listing: Listing,
        claim_devices: ClaimDevices,
        pods: ClaimPods,
        in_flight: InFlight,
        devices: Devices,
        counters: DraCounters,
    ) -> None:
        """``in_flight`` counts the calls that are being answered."""
        self._chosen = chosen
        self._devices = devices
        self._listing = listing
        self._claim_devices = claim_devices
        self._pods = pods
        self._in_flight = in_flight
        self._counters = counters

    async def NodePrepareResources(
        self, request: wire.NodePrepareResourcesRequest, context: Context
    ) -> wire.NodePrepareResourcesResponse:
        """Take clean devices for each claim."""
        kind = wire.NodePrepareResourceResponse
        answers = await self._answers(Call.PREPARE, request.claims, context, self._prepare, kind)
        return wire.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(
        self, request: wire.NodeUnprepareResourcesRequest, context: Context
    ) -> wire.NodeUnprepareResourcesResponse:
        """Give back the devices of each claim, and wait until they are clean."""
        kind = wire.NodeUnprepareResourceResponse
        answers = await self._answers(Call.UNPREPARE, request.claims, context, self._unprepare, kind)
        return wire.NodeUnprepareResourcesResponse(claims=answers)

    async def NodeWatchResources(self, request: health_wire.NodeWatchResourcesRequest, context: Context) -> None:
        """The health of all devices, until the kubelet ends the stream.

        There is no message while the health is not known.
        """
        while True:
            shown = self._listing.current()
            if shown is not None:
                named = await self._devices.named(shown)
                await context.write(health_wire.NodeWatchResourcesResponse(devices=map(_health, named)))
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY):
                    await self._listing.until_differs(shown)

    async def _prepare(self, claim: wire.Claim, until: float, op: str) -> wire.NodePrepareResourceResponse:
        resource_claim = await self._read(claim, until)
        if claims.uid(resource_claim) != claim.uid:
            raise InvalidRequest(
                f"the claim {claim.namespace}/{claim.name} was replaced by a claim of this name with another UID"
            )
        if why := claims.refusal(resource_claim, self._chosen.driver):
            raise InvalidRequest(why)
        uuids = await self._devices.uuids(list(claims.allocated(resource_claim, self._chosen.driver)), until)
        # Admin access takes nothing: the device may belong to another claim.
        wanted = {uuid for asked, uuid in uuids.items() if not asked.admin}
        pods, before = claims.pods(resource_claim), until - self._devices.seconds
        devices = await self._claim_devices.take(claim.uid, wanted, pods, before, op)
        devices |= self._claim_devices.known({uuid for asked, uuid in uuids.items() if asked.admin})
        return await self._devices.prepare(claim, {asked: devices[uuid] for asked, uuid in uuids.items()}, until)

    async def _read(self, claim: wire.Claim, until: float) -> Mapping[str, Any]:
        """The ResourceClaim.

        The kubelet has just read it, so the driver asks again if the API server does not show it.
        """
        clock = asyncio.get_running_loop().time
        last = min(until, clock() + READ_WITHIN)
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Failure), wait=READ_PAUSES, stop=lambda _: clock() >= last, reraise=True
        )
        try:
            return await attempts(self._pods.read, claim.namespace, claim.name)
        except Failure as failure:
            text = (
                f"the DRA driver could not read the ResourceClaim {claim.namespace}/{claim.name}, and the kubelet asks"
                f" again after 60 to 90 s: {failure.message}"
            )
            raise Failure(failure.kind, text) from failure

    async def _unprepare(self, claim: wire.Claim, until: float, op: str) -> wire.NodeUnprepareResourceResponse:
        answer = await self._devices.unprepare(claim, until)
        if answer.error:
            return answer
        uuids = await self._claim_devices.give_back(claim.uid, until, op)
        left = max(until - asyncio.get_running_loop().time(), 0)
        if not await self._claim_devices.until_clean(claim.uid, uuids, min(self._chosen.clean_within, left)):
            logger.warning("not clean yet: the next claim waits for it", op=op, claim=claim.uid, devices=sorted(uuids))
        return answer

    def _lock(self, claim: wire.Claim) -> asyncio.Lock:
        # To the service, a free device has no owner. The names become parts of a path of the API server.
        if not all(map(is_subdomain, (claim.uid.lower(), claim.namespace, claim.name))):
            raise InvalidRequest("the kubelet named a claim with a UID, namespace or name that no claim can have")
        return self._pods.lock(claim.uid)

    async def _answers(
        self, call: Call, asked: Sequence[wire.Claim], context: Context, work: Work[A], answer: type[A]
    ) -> dict[str, A]:
        """The answers for all claims of a call, by UID."""
        until = _until(context.time_remaining())
        answers = await asyncio.gather(*(self._answer(call, claim, until, work, answer) for claim in asked))
        return {claim.uid: each for claim, each in zip(asked, answers, strict=True)}

    async def _answer(self, call: Call, claim: wire.Claim, until: float, work: Work[A], answer: type[A]) -> A:
        """The answer to one call for one claim. Calls for one claim follow each other."""
        asked = LoggedCall()
        log = logger.bind(call=call.value, claim=claim.uid, name=f"{claim.namespace}/{claim.name}")

        def count() -> dict[str, object]:
            self._counters.answer(call, asked.outcome, asked.seconds, asked.reason)
            return {} if asked.outcome is CallOutcome.FAULT else {"seconds": asked.ending["seconds"]}

        logged = logged_calls.logged(asked, log, count, granted="claim done", refused="claim refused", fault=FAULT)
        try:
            with self._in_flight.one(), self._counters.waits(call), logged:
                try:
                    async with self._lock(claim):
                        result = await work(claim, until, asked.op)
                except Failure as failure:  # what the API server says of its objects is not secret
                    asked.refuse(API_SERVER, failure.message)
                    return answer(error=f"autoclave: {failure.message}")
                if result.error:  # the vendor's: our own errors are raised
                    result.error = plain(result.error)
                    asked.refuse(VENDOR, result.error)
                return result
        except AutoclaveError as error:
            return answer(error=f"autoclave: {error.for_tenants}")
        except Exception:  # noqa: BLE001 - logged; the kubelet gets a short message
            return answer(error=f"autoclave: {FAULT}")


def _health(named: NamedDevice) -> health_wire.DeviceHealth:
    device = named.device
    bad = device.sick or device.quarantined or device.gone or device.replaced
    return health_wire.DeviceHealth(
        device=health_wire.DeviceIdentifier(pool_name=named.pool, device_name=named.name),
        health=health_wire.UNHEALTHY if bad else health_wire.HEALTHY,
        last_updated_time=int(time.time()),
        message=device.reason if bad else "",
    )


def _until(left: float | None) -> float:
    """The time of the event loop at which the answer must be there; the kubelet waits for ``left`` seconds."""
    return asyncio.get_running_loop().time() + max(min(CALL_WITHIN if left is None else left, CALL_WITHIN) - MARGIN, 0)


def handlers(
    driver: DraDriver, health: grpc.RpcMethodHandler[Any, Any] | None = None
) -> tuple[grpc.GenericRpcHandler, ...]:
    """The handlers of a server, for all versions of the kubelet's calls.

    ``health`` replaces the driver's handler of health.
    """
    unary: Any = grpc.unary_unary_rpc_method_handler  # typed for threads
    calls = {
        "NodePrepareResources": unary(
            driver.NodePrepareResources,
            wire.NodePrepareResourcesRequest.FromString,
            wire.NodePrepareResourcesResponse.SerializeToString,
        ),
        "NodeUnprepareResources": unary(
            driver.NodeUnprepareResources,
            wire.NodeUnprepareResourcesRequest.FromString,
            wire.NodeUnprepareResourcesResponse.SerializeToString,
        ),
    }
    generic = grpc.method_handlers_generic_handler
    services = [generic(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", calls) for version in ("v1", "v1beta1")]
    stream: Any = grpc.unary_stream_rpc_method_handler  # typed for threads
    watch = stream(
        driver.NodeWatchResources,
        health_wire.NodeWatchResourcesRequest.FromString,
        health_wire.NodeWatchResourcesResponse.SerializeToString,
    )
    return *services, *(generic(name, {"NodeWatchResources": health or watch}) for name in HEALTHS)


class OwnDevices:
    """The devices of a driver of our own: named by their UUID in its slice, described by the CDI files of the node."""

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
        answer = wire.NodePrepareResourceResponse()
        for allocated, device in devices.items():
            answer.devices.add(
                request_names=[allocated.request],
                pool_name=allocated.pool,
                device_name=allocated.name,
                cdi_device_ids=[f"{self._chosen.cdi_kind}={device.uuid}"],
            )
        return answer

    async def unprepare(self, _claim: wire.Claim, _until: float) -> wire.NodeUnprepareResourceResponse:
        """Nothing was made for the claim."""
        return wire.NodeUnprepareResourceResponse()

    async def named(self, shown: Sequence[Device]) -> Iterable[NamedDevice]:
        """All devices. The pool has the name of the node."""
        return [
            NamedDevice(self._chosen.cluster.node, resource_slices.device_name(device.uuid), device) for device in shown
        ]
