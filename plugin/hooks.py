"""Asks the scrub service to acquire and start the kubelet's devices, and waits while it restarts or scrubs.

Every failure is one of ``ground.errors``, and each one refuses. Exception: if the fence holds the containers until the
proof, a service that is away or busy does not fail a pod. Requests are repeated only while the service restarts.
Otherwise the service has already used the time that the policy allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ground import log
from ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason, Unreachable
from plugin.devices import Device
from plugin.listing import Listing
from scrub_api import client, request_limits
from scrub_api.device_messages import GrantedDevice

A = TypeVar("A")
logger = log.get("hooks")

ALLOCATE_WITHIN = 5.0  # seconds for all of Allocate: meanwhile no pod of the node starts or stops
RESTARTING = frozenset({Reason.UNREACHABLE, Reason.SHUTTING_DOWN})
# The service is away or busy, or could not decide or record in time: no device was found in use or not clean.
AWAY = RESTARTING | {Reason.TIMED_OUT, Reason.UNRESPONSIVE, Reason.TOO_MANY_CALLS, Reason.LEDGER_UNAVAILABLE}
PAUSE = 0.05  # seconds between two requests to a service that is about to stop
SECOND_CHANCE = 3.5  # seconds that Allocate waits for a service that restarts: most of what it may take
START_WAITS = 10.0  # seconds that a start waits for it: after an error, the kubelet tries again 10 to 14 s later
RESERVED_WITHIN = 1.0  # seconds for the service to answer where the containers wait
START_WITHIN = 29.0  # seconds: the kubelet gives up after 30 s
SHOWN_WITHIN = 0.3  # seconds that a refusal waits until the unhealthy list is sent
SETTLING = 0.1  # seconds for the kubelet to process that list


class Hooks:
    """Asks the scrub service for the devices that the kubelet requests."""

    def __init__(self, scrubber: client.ScrubberClient, listing: Listing) -> None:
        """``listing`` has the known devices, and shows a refusal to the kubelet."""
        self._scrubber = scrubber
        self._listing = listing

    def find(self, resource: str, groups: Sequence[Sequence[str]]) -> list[list[Device]]:
        """The devices of a request, for each container. Raises InvalidRequest if one is not known."""
        if not groups or not all(groups):
            raise InvalidRequest("no device was named")
        # The service checks the same limits for every caller of its socket. It never sees the request of containers
        # that wait while it is away: for that request, this is the only check.
        ids = request_limits.devices([name for group in groups for name in group])
        shown = {device.uuid: device for device in self._listing.shown(resource)}
        if unknown := sorted(set(ids) - shown.keys()):
            raise InvalidRequest(f"{unknown[0]} is not a device of {resource}", reason=Reason.UNKNOWN_DEVICE)
        return [[shown[name] for name in group] for group in groups]

    async def acquire(self, resource: str, devices: Sequence[Device], op: str = "") -> tuple[GrantedDevice, ...]:
        """Hand out all of these devices to a new tenant, or raise.

        Returns no grants if the containers wait for the service.

        ``op`` is the id of the operation in the logs of plugin and service. Before a refusal is raised, the kubelet
        sees it in the list.
        """
        ids = [device.uuid for device in devices]
        clock = asyncio.get_running_loop().time
        until = clock() + ALLOCATE_WITHIN - SETTLING
        if all(device.waits for device in devices) and (granted := await self._reserve(ids, op)) is not None:
            return granted
        try:
            granted = await self._asked(
                lambda left: self._scrubber.acquire(ids, announced=True, op=op, timeout=left),
                until - SHOWN_WITHIN - clock(),
                SECOND_CHANCE,
            )
        except AutoclaveError as error:
            if isinstance(error, Unreachable):
                self._listing.distrust()
            # While a refused device still looks healthy, the kubelet tries it with other pods, ten times a second.
            await self._listing.until_unhealthy(resource, ids, min(SHOWN_WITHIN, until - clock()))
            await asyncio.sleep(SETTLING)
            raise
        # After a wait for the service or its disk, the kubelet's list may still say that it is unhealthy.
        await self._listing.until_healthy(resource, ids, min(SHOWN_WITHIN, until - clock()))
        return granted

    async def _reserve(self, ids: Sequence[str], op: str) -> tuple[GrantedDevice, ...] | None:
        """Hand out devices whose containers the fence holds until the proof.

        A service that is away or busy does not fail the pod: there are no grants, and the containers wait for it.
        Returns None if the service answers that the devices are not free now: then it no longer knows that containers
        wait.
        """
        try:
            return await self._scrubber.acquire(ids, announced=True, op=op, timeout=RESERVED_WITHIN)
        except (Unreachable, NotReady) as error:
            if error.reason not in AWAY:
                return None
            logger.warning("the containers wait for the service", op=op, devices=ids, error=str(error))
            return ()

    async def _asked(self, ask: Callable[[float], Awaitable[A]], within: float, restarts: float) -> A:
        """Ask, and ask again while the service restarts. ``ask`` gets the seconds that are left of ``within``.

        ``restarts``: how many seconds to wait for a service that restarts.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                return await ask(began + within - clock())
            except AutoclaveError as error:
                left = began + min(restarts, within) - clock()
                if error.reason not in RESTARTING or left <= 0:
                    raise
                await asyncio.sleep(PAUSE)
                await self._scrubber.reachable(left)

    async def start(self, devices: Sequence[Device], left: float | None, op: str = "") -> None:
        """Return if a container may start on these devices; raise otherwise.

        ``left``: for how many seconds the kubelet waits.

        A service that does not answer does not change the list here: the kubelet tries the start again.
        """
        within = START_WITHIN if left is None else min(left, START_WITHIN)
        ids = [device.uuid for device in devices]
        await self._asked(lambda left: self._scrubber.start(ids, op=op, timeout=left), within, START_WAITS)
