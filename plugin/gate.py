"""The one question: may these devices go out, may a container start on them? The scrub service answers, nobody else.

Every failure is one of ``scrubber.ground.errors``, and each one means no. An answer is not asked for again: the
kubelet waits, and the service has used up the time that the policy allows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from plugin.devices import Device
from plugin.listing import Listing
from scrubber.api import client
from scrubber.ground.errors import AutoclaveError, InvalidRequest, Reason, Unreachable

ACQUIRE_WITHIN = 6.0  # seconds: the policy's budget is at most 5 s, and the service keeps it
RESTARTING = frozenset({Reason.UNREACHABLE, Reason.SHUTTING_DOWN})
PAUSE = 0.05  # seconds between two questions to a service that is on its way down
SECOND_CHANCE = 1.0  # seconds in which a service that restarts is waited for: more, and the node stands still for it
START_WITHIN = 29.0  # seconds: the kubelet gives up after 30 s
SHOWN_WITHIN = 0.3  # seconds that a refusal waits for the unhealthy list to be sent
SETTLING = 0.1  # seconds that the kubelet has to take that list in
MOST_DEVICES = 256
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}")


class Gate:
    """Asks the scrub service for the devices of the kubelet's requests."""

    def __init__(self, scrubber: client.ScrubberClient, listing: Listing) -> None:
        """Ask the one, tell the other."""
        self._scrubber = scrubber
        self._listing = listing

    def named(self, resource: str, groups: Sequence[Sequence[str]]) -> list[list[Device]]:
        """The devices of a request, container by container; what no kubelet would ask is refused, untouched."""
        ids = [name for group in groups for name in group]
        if not groups or not all(groups):
            raise InvalidRequest("no device was named")
        if len(ids) > MOST_DEVICES:
            raise InvalidRequest(f"{len(ids)} devices were named, at most {MOST_DEVICES} are allowed")
        if any(DEVICE.fullmatch(name) is None for name in ids):
            raise InvalidRequest("a device name is empty, longer than 63 characters, or holds a character of no name")
        if len(set(ids)) != len(ids):
            raise InvalidRequest("a device was named twice")
        known = {device.uuid: device for device in self._listing.shown(resource)}
        if unknown := sorted(set(ids) - known.keys()):
            raise InvalidRequest(f"{unknown[0]} is no device of {resource}", Reason.UNKNOWN_DEVICE)
        return [[known[name] for name in group] for group in groups]

    async def acquire(self, resource: str, devices: Sequence[Device], op: str = "") -> str:
        """All of these devices may go to a new tenant, or an error; the list shows a refusal before the error does.

        Gives the receipt of the first one: what leads from a figure to a proof. ``op``: by which id our log calls this.
        """
        ids = [device.uuid for device in devices]
        try:
            return await self._acquire(ids, op)
        except AutoclaveError as error:
            if isinstance(error, Unreachable) or error.reason is Reason.TIMED_OUT:
                self._listing.unanswered()
            # An error for a device that looks healthy is asked for again ten times a second, each time by another pod.
            await self._listing.until_unhealthy(resource, ids, SHOWN_WITHIN)
            await asyncio.sleep(SETTLING)
            raise

    async def _acquire(self, ids: Sequence[str], op: str) -> str:
        """Ask, and once more when the service is back in a moment: it restarts sometimes, and a no is the pod's end."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                left = ACQUIRE_WITHIN - (clock() - began)
                granted = await self._scrubber.acquire(ids, announced=True, op=op, timeout=left)
            except AutoclaveError as error:
                left = SECOND_CHANCE - (clock() - began)
                if error.reason not in RESTARTING or left <= 0:
                    raise
                await asyncio.sleep(PAUSE)
                await self._scrubber.reachable(left)
            else:
                return granted[0].receipt if granted else ""

    async def start(self, devices: Sequence[Device], left: float | None, op: str = "") -> None:
        """A container may start on these devices, or an error; the kubelet waits for ``left`` seconds, or for ever.

        A service that does not answer changes nothing in the list here: the container waits and is tried again.
        """
        within = START_WITHIN if left is None else min(left, START_WITHIN)
        await self._scrubber.start([device.uuid for device in devices], op=op, timeout=within)
