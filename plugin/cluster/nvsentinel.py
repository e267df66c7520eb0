"""Reports quarantines and recoveries to NVSentinel, as health events for the platform connector of this node.

It sends the state of each device instead of the changes. The state is sent once over each connection, so that a restart
of either side loses nothing. Nothing is sent about a device that is only being scrubbed, and nothing while the scrub
service does not answer. This module is imported only if an operator names the socket of the connector.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import grpc
import grpc.aio

from ground.aio import Changed
from plugin.cluster import nvsentinel_pb2 as wire
from plugin.cluster import nvsentinel_pb2_grpc
from plugin.cluster.retry_loop import NEVER, Failure, FailureKind, Pace, RetryLoop, guarded
from plugin.listing import Listing
from scrub_api.client import CHANNEL_OPTIONS
from scrub_api.device_messages import ReportedDevice

AGENT = "autoclave"  # a rule of NVSentinel names it
CHECK = "AutoclaveQuarantine"  # the type of the Node's condition, if NVSentinel may act
CALL_WITHIN = 5.0  # seconds for a whole call
# Never closed for want of calls: so the end of a connection is a sign that the connector has gone.
OPTIONS = (*CHANNEL_OPTIONS, ("grpc.client_idle_timeout_ms", 2**31 - 1))

# What NVSentinel may do about a quarantine, by its reason. About any other reason it does nothing: the device is not at
# fault, or neither a reset nor a reboot helps.
ACTIONS = {
    **dict.fromkeys(("ecc", "remap-pending", "reset-required", "scrub-failed", "xid"), wire.COMPONENT_RESET),
    **dict.fromkeys(("lost", "reboot-required", "reset-failed", "stuck-process"), wire.RESTART_VM),
    **dict.fromkeys(("compute-fault", "flapping", "memory-fault", "remap-failed", "sram"), wire.CONTACT_SUPPORT),
}

_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def health_event(device: ReportedDevice, node: str, *, remediate: bool) -> wire.HealthEvent | None:
    """The state of a device, without the time; None for a device that is neither sick nor healthy."""
    sick = bool(device.reason) and not device.replaced  # a replaced device must not keep its node out for ever
    if not (sick or device.healthy or device.replaced):
        return None
    name = f"{device.uuid} of GPU {device.index}" if device.mig else f"GPU {device.index} ({device.uuid})"
    action = ACTIONS.get(device.reason, wire.NONE) if sick else wire.NONE
    if device.mig and action == wire.COMPONENT_RESET:
        action = wire.NONE  # NVSentinel resets a whole GPU, by its UUID
    message = f"{name} has no fault" if device.healthy else f"{name} is no longer in this node"
    if sick:
        message = f"{name} is out of service: {device.reason}; run `autoclave explain {device.uuid}` on the node"
    return wire.HealthEvent(
        version=1,
        agent=AGENT,
        componentClass="GPU",
        checkName=CHECK,
        isFatal=remediate and action != wire.NONE,
        isHealthy=not sick,
        message=message,
        recommendedAction=action,
        errorCode=[device.reason] if sick else [],
        entitiesImpacted=[wire.Entity(entityType="MIG_UUID" if device.mig else "GPU_UUID", entityValue=device.uuid)],
        nodeName=node,
        processingStrategy=wire.EXECUTE_REMEDIATION if remediate else wire.STORE_ONLY,
    )


class HealthEvents:
    """Reports the devices of one node to its platform connector."""

    def __init__(self, socket: Path, node: str, *, remediate: bool, pace: Pace) -> None:
        """Send nothing before ``run``. ``remediate``: NVSentinel may act on what it hears."""
        self._socket = socket
        self._event = partial(health_event, node=node, remediate=remediate)
        self._pace = pace
        self._changed = Changed()
        self._seen: tuple[ReportedDevice, ...] = ()
        self._states: dict[str, wire.HealthEvent] = {}
        self._sent: dict[str, wire.HealthEvent] = {}  # over the present connection

    async def run(self, listing: Listing) -> None:
        """Report until cancelled. No failure here ends it."""
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=OPTIONS) as channel:
            send = partial(self._send, nvsentinel_pb2_grpc.PlatformConnectorStub(channel))
            loop = RetryLoop("health events to NVSentinel", self._due, send, self._changed, self._pace)
            async with asyncio.TaskGroup() as tasks:
                for work in (partial(self._follow, listing), partial(self._forget, channel), loop.run):
                    tasks.create_task(guarded(work, self._pace))

    async def _follow(self, listing: Listing) -> None:
        try:
            while True:
                self._seen = _valid(listing)
                events = ((device.uuid, self._event(device)) for device in self._seen)
                self._states = {uuid: event for uuid, event in events if event is not None}
                self._changed.notify()
                await listing.until(lambda: _valid(listing) != self._seen)
        finally:
            self._states = {}

    async def _forget(self, channel: grpc.aio.Channel) -> None:
        """Send everything again after the end of a connection: the connector may have lost what it had not stored."""
        state = channel.get_state()
        while True:
            await channel.wait_for_state_change(state)
            before, state = state, channel.get_state()
            if before is grpc.ChannelConnectivity.READY or self._sent:
                self._sent = {}  # another object: a call that still runs fills the old one
                self._changed.notify()

    def _unsent(self) -> dict[str, wire.HealthEvent]:
        return {uuid: event for uuid, event in self._states.items() if self._sent.get(uuid) != event}

    def _due(self) -> float:
        return 0.0 if self._unsent() else NEVER

    async def _send(self, stub: nvsentinel_pb2_grpc.PlatformConnectorAsyncStub) -> None:
        unsent, sent = self._unsent(), self._sent
        request = wire.HealthEvents(version=1, events=unsent.values())
        for event in request.events:
            event.generatedTimestamp.GetCurrentTime()
        try:
            await stub.HealthEventOccurredV1(request, timeout=CALL_WITHIN)
        except grpc.aio.AioRpcError as error:
            kind = FailureKind.AWAY if error.code() in _AWAY else FailureKind.REFUSED
            raise Failure(kind, f"{error.code().name.lower()}: {error.details()}") from error
        sent |= unsent


def _valid(listing: Listing) -> tuple[ReportedDevice, ...]:
    """All devices of the node, offered or not; none while no list of the scrub service is valid."""
    return listing.on_node() if listing.current() is not None else ()
