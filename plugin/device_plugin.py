"""The kubelet's five questions about one resource. Each is answered in a few lines; the gate and the listing know why.

What an error means to the kubelet differs from hook to hook. From Allocate it is final: the pod fails. From
PreStartContainer the container waits and is tried again every few seconds, so whatever is not a wrong question is "not
yet" there. From GetPreferredAllocation it would fail the pod for a mere wish, so there is none.
"""

# ruff: noqa: ARG002, N802 - the proto names the methods and what they are given

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from plugin import preferred, response
from plugin.devices import Device
from plugin.gate import Gate
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.metrics.counters import Hook, HookOutcome, PluginCounters
from scrubber.ground.errors import AutoclaveError, InvalidRequest, Reason, Refused

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="device plugin")

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
SharedNodes: TypeAlias = Callable[[], Collection[str]]

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
FAULT = "a fault inside the device plugin"
OP = 8  # letters of the id of an operation
_FINAL, _TRIED_AGAIN = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE
_OWN_WORDS = {
    Reason.UNREACHABLE: "the scrub service of this node does not answer",
    Reason.INTERNAL: "the scrub service of this node failed",
    Reason.LEDGER_UNAVAILABLE: "the scrub service of this node cannot record anything",
}


@dataclass(slots=True)
class _Answer:
    """What a question has led to, and by which id it is called in both logs and in the ledger."""

    op: str
    receipt: str = ""


class DevicePlugin(deviceplugin_pb2_grpc.DevicePluginServicer):
    """One resource."""

    def __init__(
        self,
        resource: str,
        listing: Listing,
        gate: Gate,
        counters: PluginCounters,
        style: response.Style,
        shared_nodes: SharedNodes,
    ) -> None:
        """Ask the first two and tell the third, answer in this style.

        ``shared_nodes`` looks which nodes of the driver there are now.
        """
        self._resource = resource
        self._listing = listing
        self._gate = gate
        self._counters = counters
        self._style = style
        self._shared_nodes = shared_nodes

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Context) -> wire.DevicePluginOptions:
        """Both optional hooks are wanted."""
        return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: wire.Empty, context: Context) -> AsyncIterator[wire.ListAndWatchResponse]:
        """The full list at once and at every change, until the kubelet leaves."""
        async with aclosing(self._listing.changes(self._resource)) as lists:
            async for shown in lists:
                healthy = sum(device.healthy for device in shown)
                logger.info("list", resource=self._resource, devices=len(shown), healthy=healthy)
                self._counters.listed(self._resource)
                yield wire.ListAndWatchResponse(devices=map(_device, shown))

    async def GetPreferredAllocation(
        self, request: wire.PreferredAllocationRequest, context: Context
    ) -> wire.PreferredAllocationResponse:
        """A wish, from memory alone; the kubelet chooses by itself where there is none."""
        begun = time.monotonic()
        known = self._listing.shown(self._resource)
        wishes = [self._prefer(known, each) for each in request.container_requests]
        outcome = HookOutcome.FAULT if None in wishes else HookOutcome.OK
        self._counters.answered(Hook.PREFERRED, outcome, _since(begun))
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids or ()) for ids in wishes]
        )

    async def Allocate(self, request: wire.AllocateRequest, context: Context) -> wire.AllocateResponse:
        """The gate of a new tenant: all devices of all containers together, or none."""
        groups = [list(each.devices_ids) for each in request.container_requests]
        async with self._answered(Hook.ALLOCATE, groups, context, _FINAL) as reply:
            named = self._gate.named(self._resource, groups)
            # Made first: what could not be answered is not acquired.
            answer = wire.AllocateResponse(container_responses=self._responses(named))
            reply.receipt = await self._gate.acquire(self._resource, list(chain(*named)), reply.op)
            return answer

    async def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: Context
    ) -> wire.PreStartContainerResponse:
        """The gate of every container start."""
        groups = [list(request.devices_ids)]
        async with self._answered(Hook.PRE_START, groups, context, _TRIED_AGAIN) as reply:
            (devices,) = self._gate.named(self._resource, groups)
            await self._gate.start(devices, context.time_remaining(), reply.op)
            return wire.PreStartContainerResponse()

    def _prefer(self, known: Sequence[Device], asked: wire.ContainerPreferredAllocationRequest) -> Sequence[str] | None:
        try:
            available, must = list(asked.available_deviceIDs), list(asked.must_include_deviceIDs)
            return preferred.prefer(known, available, must, asked.allocation_size)
        except Exception:  # an error would fail the pod, which can do well without our wish
            logger.exception(
                "no preference", hook=Hook.PREFERRED.value, resource=self._resource, outcome=HookOutcome.FAULT.value
            )
            return None

    def _responses(self, named: Sequence[Sequence[Device]]) -> Iterator[wire.ContainerAllocateResponse]:
        shared = self._shared_nodes() if self._style.pass_device_specs else ()
        return (response.respond(devices, self._style, shared, uuid.uuid4()) for devices in named)

    @asynccontextmanager
    async def _answered(
        self, hook: Hook, groups: Sequence[Sequence[str]], context: Context, no: grpc.StatusCode
    ) -> AsyncIterator[_Answer]:
        """One line in the log, one time, and for an error the code that makes the kubelet do the right thing."""
        begun, reply = time.monotonic(), _Answer(uuid.uuid4().hex[:OP])
        log = logger.bind(op=reply.op, hook=hook.value, resource=self._resource, devices=list(chain(*groups)))

        def ended(outcome: HookOutcome, reason: Reason | None = None) -> dict[str, Any]:
            seconds = _since(begun)
            self._counters.answered(hook, outcome, seconds, reason=reason, receipt=reply.receipt)
            return {"outcome": outcome.value, "reason": reason.value if reason else "", "seconds": seconds}

        try:
            yield reply
        except AutoclaveError as error:
            log.warning("no", error=error.message, **ended(HookOutcome.REFUSED, error.reason))
            await context.abort(_code(error, no), _for_tenants(error))
        except asyncio.CancelledError:
            log.warning("the kubelet gave up", **ended(HookOutcome.CANCELLED))
            raise
        except Exception:  # the kubelet gets a no in our words, the log the rest
            log.exception(FAULT, **ended(HookOutcome.FAULT, Reason.INTERNAL))
            await context.abort(grpc.StatusCode.INTERNAL, FAULT)
        else:
            log.info("yes", **ended(HookOutcome.OK))


def _code(error: AutoclaveError, no: grpc.StatusCode) -> grpc.StatusCode:
    match error:
        case InvalidRequest():
            return grpc.StatusCode.INVALID_ARGUMENT
        case Refused():
            return no
        case _:
            return grpc.StatusCode.UNAVAILABLE


def _for_tenants(error: AutoclaveError) -> str:
    """The kubelet puts it into the pod's events: what the service says is meant for that, what gRPC says is not."""
    return _OWN_WORDS.get(error.reason, error.message)


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 4)


def _device(device: Device) -> wire.Device:
    near = None if device.numa_node is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa_node)])
    return wire.Device(ID=device.uuid, health=HEALTHY if device.healthy else UNHEALTHY, topology=near)
