"""The calls of the kubelet for claims. An error of one claim is in the answer of that claim; the others go on.

The kubelet shows the text of an error in an event of the pod. It repeats a failed Prepare after 60 to 90 seconds, so it
is better to wait than to fail. A failed Unprepare keeps the devices of the claim for it, in the whole cluster.
"""

# ruff: noqa: ARG002, N802 - the proto names the methods and their parameters

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from plugin import for_tenants
from plugin.cluster.base import Failure
from plugin.devices import Device
from plugin.dra import claims, slices
from plugin.dra.claim_gate import ClaimGate
from plugin.dra.claims import AllocatedDevice
from plugin.dra.config import DraConfig
from plugin.in_flight import InFlight
from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import drahealth_pb2 as health_wire
from plugin.listing import Listing
from scrubber.ground import log, operation_id
from scrubber.ground.errors import AutoclaveError, InvalidRequest

logger = log.get("dra")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
A = TypeVar("A")

CALL_WITHIN = 45.0  # seconds that the kubelet waits
MARGIN = 2.0  # seconds for the answer itself
HEALTH_EVERY = 10.0  # seconds between two messages without a change; the kubelet forgets a health after 30
FAULT = "a fault inside the DRA driver"


class ClaimSource(Protocol):
    """Where claims are read."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A ResourceClaim as it is now, or a Failure."""


class Driver:
    """Prepares the devices of claims, and takes them back."""

    def __init__(
        self, chosen: DraConfig, listing: Listing, gate: ClaimGate, source: ClaimSource, in_flight: InFlight
    ) -> None:
        """``in_flight`` counts the calls that are being answered."""
        self._chosen = chosen
        self._listing = listing
        self._gate = gate
        self._source = source
        self._in_flight = in_flight
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def NodePrepareResources(
        self, request: wire.NodePrepareResourcesRequest, context: Context
    ) -> wire.NodePrepareResourcesResponse:
        """Take clean devices for each claim."""
        until = _until(context.time_remaining())
        answers = await asyncio.gather(*(self._prepared(claim, until) for claim in request.claims))
        return wire.NodePrepareResourcesResponse(claims=dict(answers))

    async def NodeUnprepareResources(
        self, request: wire.NodeUnprepareResourcesRequest, context: Context
    ) -> wire.NodeUnprepareResourcesResponse:
        """Give back the devices of each claim, and wait until they are clean."""
        until = _until(context.time_remaining())
        answers = await asyncio.gather(*(self._unprepared(claim, until) for claim in request.claims))
        return wire.NodeUnprepareResourcesResponse(claims=dict(answers))

    async def NodeWatchResources(self, request: health_wire.NodeWatchResourcesRequest, context: Context) -> None:
        """The health of all devices, until the kubelet ends the stream. No message: it is not known."""
        while True:
            shown = self._listing.current()
            if shown is not None:
                await context.write(health_wire.NodeWatchResourcesResponse(devices=map(self._health, shown)))
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY):
                    await self._listing.until_differs(shown)

    async def _prepared(self, claim: wire.Claim, until: float) -> tuple[str, wire.NodePrepareResourceResponse]:
        devices, error = await self._answer("prepare", claim, until, self._prepare)
        return claim.uid, wire.NodePrepareResourceResponse(devices=devices or (), error=error)

    async def _unprepared(self, claim: wire.Claim, until: float) -> tuple[str, wire.NodeUnprepareResourceResponse]:
        _, error = await self._answer("unprepare", claim, until, self._unprepare)
        return claim.uid, wire.NodeUnprepareResourceResponse(error=error)

    async def _prepare(self, claim: wire.Claim, until: float, op: str) -> Sequence[wire.Device]:
        found = await self._source.claim(claim.namespace, claim.name)
        if claims.uid(found) != claim.uid:
            raise InvalidRequest(f"the claim {claim.namespace}/{claim.name} is another one now, with another UID")
        allocated = list(claims.allocated(found, self._chosen.driver))
        # Admin access takes nothing: the device may belong to another claim.
        devices = await self._gate.take(claim.uid, {it.name for it in allocated if not it.admin}, until, op)
        devices |= self._gate.known({it.name for it in allocated if it.admin})
        return [self._device(it, devices[it.name].uuid) for it in allocated]

    async def _unprepare(self, claim: wire.Claim, until: float, op: str) -> None:
        uuids = await self._gate.give_back(claim.uid, until, op)
        left = max(until - asyncio.get_running_loop().time(), 0)
        if not await self._gate.until_clean(claim.uid, uuids, min(self._chosen.clean_within, left)):
            logger.warning("not clean yet: the next claim waits for it", op=op, claim=claim.uid, devices=sorted(uuids))

    async def _answer(
        self,
        call: str,
        claim: wire.Claim,
        until: float,
        work: Callable[[wire.Claim, float, str], Coroutine[Any, Any, A]],
    ) -> tuple[A | None, str]:
        """The result of one call for one claim, or the text of its error. Calls for one claim follow each other."""
        begun, op = time.monotonic(), operation_id.new()
        log = logger.bind(op=op, call=call, claim=claim.uid, name=f"{claim.namespace}/{claim.name}")
        try:
            lock = self._locks.setdefault(claim.uid, asyncio.Lock())
            with self._in_flight.one():
                async with lock:
                    result = await work(claim, until, op)
        except (AutoclaveError, Failure) as error:
            log.warning("claim refused", error=error.message, seconds=round(time.monotonic() - begun, 4))
            return None, f"autoclave: {_public(error)}"
        except Exception:  # the kubelet gets a short message, the log has the traceback
            log.exception(FAULT)
            return None, f"autoclave: {FAULT}"
        log.info("claim done", seconds=round(time.monotonic() - begun, 4))
        return result, ""

    def _device(self, device: AllocatedDevice, uuid: str) -> wire.Device:
        return wire.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.name,
            cdi_device_ids=[f"{self._chosen.cdi_kind}={uuid}"],
        )

    def _health(self, device: Device) -> health_wire.DeviceHealth:
        bad = device.sick or device.quarantined or device.gone or device.replaced
        return health_wire.DeviceHealth(
            device=health_wire.DeviceIdentifier(
                pool_name=self._chosen.cluster.node, device_name=slices.device_name(device.uuid)
            ),
            health=health_wire.UNHEALTHY if bad else health_wire.HEALTHY,
            last_updated_time=int(time.time()),
            message=device.reason if bad else "",
        )


def _public(error: AutoclaveError | Failure) -> str:
    """The text for the pod's events. What the API server says of its objects is not secret."""
    return for_tenants.message(error) if isinstance(error, AutoclaveError) else error.message


def _until(left: float | None) -> float:
    """The time of the event loop at which the answer must be there; the kubelet waits for ``left`` seconds."""
    return asyncio.get_running_loop().time() + max(min(CALL_WITHIN if left is None else left, CALL_WITHIN) - MARGIN, 0)


def handlers(driver: Driver) -> Iterator[grpc.GenericRpcHandler]:
    """The handlers of a server, for both versions of the kubelet's calls."""
    unary: Any = grpc.unary_unary_rpc_method_handler  # typed for threads
    stream: Any = grpc.unary_stream_rpc_method_handler
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
    for version in ("v1", "v1beta1"):
        yield grpc.method_handlers_generic_handler(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", calls)
    health = stream(
        driver.NodeWatchResources,
        health_wire.NodeWatchResourcesRequest.FromString,
        health_wire.NodeWatchResourcesResponse.SerializeToString,
    )
    yield grpc.method_handlers_generic_handler("v1alpha1.DRAResourceHealth", {"NodeWatchResources": health})
