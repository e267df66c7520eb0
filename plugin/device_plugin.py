"""Answers the kubelet's five calls for one resource, such as Allocate: it decodes the call, and asks the service.

The kubelet treats the errors of each call differently. An error of Allocate is final: the pod fails. After an error of
PreStartContainer the container waits and the kubelet tries again every few seconds, so every refusal there except an
invalid request is UNAVAILABLE. An error of GetPreferredAllocation would fail the pod because of a preference, so that
call never returns an error.
"""

# ruff: noqa: ARG002, N802 - the proto names the methods and their parameters

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio

from ground import log, logged_calls
from ground.errors import AutoclaveError, InvalidRequest, Refused
from ground.logged_calls import CallOutcome, LoggedCall
from plugin import preferred, response
from plugin.devices import HEALTHY, UNHEALTHY, Device
from plugin.hooks import Hooks
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.metrics.collector import Hook, PluginCounters
from plugin.stopping import InFlight

logger = log.get("device plugin")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
P = TypeVar("P")

FAULT = "a fault inside the device plugin"
_FINAL, _RETRIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE


class Responses(Protocol[P]):
    """How the containers get the devices that the service hands out."""

    async def prepare(self, groups: Sequence[Sequence[Device]]) -> P:
        """Do what is possible before these devices of each container are acquired.

        After an error, no device is acquired.
        """

    async def complete(
        self, prepared: P, request: wire.AllocateRequest, groups: Sequence[Sequence[Device]]
    ) -> wire.AllocateResponse:
        """The answer, after the service has handed the devices out. If this raises, it has given them back."""

    async def start(self, request: wire.PreStartContainerRequest, within: float | None) -> None:
        """Do what is necessary before a container starts, after the service has agreed."""

    async def prefer(self, shown: Sequence[Device], request: wire.ContainerPreferredAllocationRequest) -> Sequence[str]:
        """The devices that the kubelet should take; none if the kubelet should choose."""


class OwnResponses:
    """Hands out the plugin's own devices, in the form that the operator chose."""

    def __init__(self, style: response.Style) -> None:
        self._style = style

    async def prepare(self, groups: Sequence[Sequence[Device]]) -> wire.AllocateResponse:
        """The whole answer: if it cannot be made, no device is acquired."""
        shared = _shared_nodes(self._style.dev_root) if self._style.pass_device_specs else ()
        made = (response.respond(devices, self._style, shared, uuid.uuid4()) for devices in groups)
        return wire.AllocateResponse(container_responses=made)

    async def complete(
        self, prepared: wire.AllocateResponse, _request: wire.AllocateRequest, _groups: Sequence[Sequence[Device]]
    ) -> wire.AllocateResponse:
        """The prepared answer."""
        return prepared

    async def start(self, _request: wire.PreStartContainerRequest, _within: float | None) -> None:
        """Nothing is left to do."""

    async def prefer(self, shown: Sequence[Device], request: wire.ContainerPreferredAllocationRequest) -> list[str]:
        """The preferred devices by the last list."""
        available, must = list(request.available_deviceIDs), list(request.must_include_deviceIDs)
        return preferred.prefer(shown, available, must, request.allocation_size)


class DevicePlugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Answers the kubelet's calls for one resource."""

    def __init__(
        self,
        resource: str,
        listing: Listing,
        hooks: Hooks,
        in_flight: InFlight,
        counters: PluginCounters,
        responses: Responses[Any],
    ) -> None:
        """``in_flight`` counts the calls that are being answered."""
        self._resource = resource
        self._listing = listing
        self._hooks = hooks
        self._in_flight = in_flight
        self._counters = counters
        self._responses = responses

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Context) -> wire.DevicePluginOptions:
        """Ask the kubelet for both optional calls."""
        return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: wire.Empty, context: Context) -> AsyncIterator[wire.ListAndWatchResponse]:
        """The full list now and after each change, until the kubelet ends the stream."""
        async with aclosing(self._listing.changes(self._resource)) as lists:
            async for shown in lists:
                healthy = sum(device.healthy for device in shown)
                logger.info("list", resource=self._resource, devices=len(shown), healthy=healthy)
                self._counters.list_sent(self._resource)
                yield wire.ListAndWatchResponse(devices=map(_device, shown))

    async def GetPreferredAllocation(
        self, request: wire.PreferredAllocationRequest, context: Context
    ) -> wire.PreferredAllocationResponse:
        """The preferred devices by the last list. If the answer is empty, the kubelet chooses."""
        begun = time.monotonic()
        shown = self._listing.shown(self._resource)
        with self._in_flight.one():
            choices = [await self._prefer(shown, each) for each in request.container_requests]
        outcome = CallOutcome.FAULT if None in choices else CallOutcome.OK
        self._counters.answer(Hook.PREFERRED, outcome, time.monotonic() - begun)
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids or ()) for ids in choices]
        )

    async def Allocate(self, request: wire.AllocateRequest, context: Context) -> wire.AllocateResponse:
        """Devices for a new tenant: all devices of all containers, or none."""
        groups = [list(each.devices_ids) for each in request.container_requests]
        async with self._answered(Hook.ALLOCATE, groups, context, _FINAL) as operation:
            wanted = self._hooks.find(self._resource, groups)
            prepared = await self._responses.prepare(wanted)
            granted = await self._hooks.acquire(self._resource, list(chain(*wanted)), operation.op)
            operation.receipt = granted[0].receipt if granted else ""
            answer = await self._responses.complete(prepared, request, wanted)
            receipts = {device.uuid: device.receipts for device in chain(*wanted)}
            receipts |= {grant.device: grant.receipts for grant in granted}  # newer than the list
            for container, devices in zip(answer.container_responses, wanted, strict=True):
                response.add_receipts(container, [receipts[device.uuid] for device in devices])
            return answer

    async def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: Context
    ) -> wire.PreStartContainerResponse:
        """Whether the service lets a container start."""
        groups = [list(request.devices_ids)]
        async with self._answered(Hook.PRE_START, groups, context, _RETRIED) as operation:
            (devices,) = self._hooks.find(self._resource, groups)
            await self._hooks.start(devices, context.time_remaining(), operation.op)
            await self._responses.start(request, context.time_remaining())
            return wire.PreStartContainerResponse()

    async def _prefer(
        self, shown: Sequence[Device], request: wire.ContainerPreferredAllocationRequest
    ) -> Sequence[str] | None:
        try:
            return await self._responses.prefer(shown, request)
        except Exception:  # an error would fail the pod, which does not need the preference
            logger.exception(
                "no preference", hook=Hook.PREFERRED.value, resource=self._resource, outcome=CallOutcome.FAULT.value
            )
            return None

    @asynccontextmanager
    async def _answered(
        self, hook: Hook, groups: Sequence[Sequence[str]], context: Context, no: grpc.StatusCode
    ) -> AsyncIterator[LoggedCall]:
        """Log and count one call, and turn an error into a status code; ``no`` is the code for a refusal."""
        call = LoggedCall()
        log = logger.bind(hook=hook.value, resource=self._resource, devices=list(chain(*groups)))

        def count() -> dict[str, object]:
            self._counters.answer(hook, call.outcome, call.seconds, reason=call.reason, receipt=call.receipt)
            return call.ending

        try:
            with (
                self._in_flight.one(),
                logged_calls.logged(call, log, count, cancelled="the kubelet gave up", fault=FAULT),
            ):
                yield call
        except AutoclaveError as error:
            await context.abort(_code(error, no), error.for_tenants)
        except Exception:  # noqa: BLE001 - logged; the kubelet gets a short message
            await context.abort(grpc.StatusCode.INTERNAL, FAULT)


def _code(error: AutoclaveError, no: grpc.StatusCode) -> grpc.StatusCode:
    match error:
        case InvalidRequest():
            return grpc.StatusCode.INVALID_ARGUMENT
        case Refused():
            return no
        case _:
            return grpc.StatusCode.UNAVAILABLE


def _shared_nodes(root: str) -> list[str]:
    """The nodes that exist now: the driver may load after the plugin has started."""
    return [node for node in response.SHARED_NODES if Path(root, node.lstrip("/")).exists()]


def _device(device: Device) -> wire.Device:
    if device.entry:
        listed = wire.Device.FromString(device.entry)
        listed.health = HEALTHY if device.healthy else UNHEALTHY
        return listed
    topology = None if device.numa_node is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa_node)])
    return wire.Device(ID=device.uuid, health=HEALTHY if device.healthy else UNHEALTHY, topology=topology)
