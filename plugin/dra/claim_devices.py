"""Takes a claim's devices from the scrub service, gives them back, and waits until the listing shows it.

Rule 1: a claim gets all of its devices or none.
Rule 2: a device of another claim is not taken, even if that claim was deleted, because its pod may still be running.
Rule 3: a repeated call has the same result after a restart of this process or of the service, because each call asks
the service.
        The list that the service sends may be older than its ledger, so it never says that a claim has a device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from ground import log
from ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason, Unreachable
from plugin.devices import Device
from plugin.dra.resource_slices import device_name
from plugin.listing import Listing
from scrub_api import client

logger = log.get("claims")

HELD_WITHIN = 10.0  # seconds: the claim before may end about two seconds after its pod was deleted by force
SHOWN_WITHIN = 1.0  # seconds until the list shows that a device was taken or given back: it takes some milliseconds
PAUSE = 1.0  # seconds between two requests, unless a device changes
ACQUIRE_AT_LEAST, ACQUIRE_WITHIN = 1.0, 10.0  # seconds for one request to the service; its policy allows less
_IN_USE = frozenset({Reason.IN_USE, Reason.NOT_PROVEN_FREE})
_FINAL = frozenset(
    {Reason.QUARANTINED, Reason.SICK, Reason.SCRUB_FAILED, Reason.UNKNOWN_DEVICE, Reason.INVALID_REQUEST}
)


class ClaimDevices:
    """Asks the scrub service for the devices of claims."""

    def __init__(self, scrubber: client.ScrubberClient, listing: Listing) -> None:
        self._scrubber = scrubber
        self._listing = listing

    async def take(
        self, claim: str, names: Collection[str], pods: Collection[str], deadline: float, op: str
    ) -> dict[str, Device]:
        """The devices with these names, proven clean and taken for this claim.

        Only these pods of the claim can open them. A claim that already has the devices keeps its grants. After an
        error, no device is taken. ``deadline``: the time of the event loop at which the answer must be there.
        """
        clock = asyncio.get_running_loop().time
        held_deadline = min(deadline, clock() + HELD_WITHIN)
        logged: Reason | None = None
        while True:
            before = self._listing.current()
            try:
                devices = self.known(names)
                uuids = _not_of_another(devices.values(), claim)
                within = min(max(deadline - clock(), ACQUIRE_AT_LEAST), ACQUIRE_WITHIN)
                if uuids:
                    await self._scrubber.acquire(uuids, exclusive=True, owner=claim, pods=pods, op=op, timeout=within)
            except AutoclaveError as error:
                last = held_deadline if error.reason in _IN_USE else deadline
                if error.reason in _FINAL or clock() >= last:
                    raise
                if error.reason is not logged:  # each cause once, not each attempt
                    logged = error.reason
                    logger.info("claim waits", op=op, claim=claim, reason=logged.value, error=str(error))
                await self._change(before, min(PAUSE, last - clock()))
            else:
                return devices

    async def give_back(self, claim: str, deadline: float, op: str) -> frozenset[str]:
        """Give back all devices of a claim, and return their UUIDs. An error says why one of them is not free."""
        clock = asyncio.get_running_loop().time
        while True:
            before = self._listing.current()
            try:
                released = await self._scrubber.release(owner=claim, op=op)
            except AutoclaveError as error:
                if clock() >= deadline:
                    raise
                logger.info("not free yet", op=op, claim=claim, reason=error.reason.value, error=str(error))
                await self._change(before, min(PAUSE, deadline - clock()))
            else:
                await self._until_shown(claim, released, min(SHOWN_WITHIN, max(deadline - clock(), 0)))
                return released

    async def until_clean(self, claim: str, uuids: Collection[str], within: float) -> bool:
        """Wait until each of these devices is clean or out of service. False if one is not after ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._listing.until(lambda: self._settled(claim, uuids))
        except TimeoutError:
            return False
        return True

    def known(self, names: Collection[str]) -> dict[str, Device]:
        """The devices with these names, or an error."""
        devices = self._listing.current()
        if devices is None:
            raise Unreachable(f"the scrub service of this node does not answer: {self._listing.silence_reason()}")
        shown = {device_name(device.uuid): device for device in devices}
        if unknown := sorted(set(names) - shown.keys()):
            raise InvalidRequest(f"{unknown[0]} is not a device of this node", reason=Reason.UNKNOWN_DEVICE)
        return {name: shown[name] for name in names}

    async def _until_shown(self, claim: str, uuids: Collection[str], within: float) -> None:
        """Wait until the list is newer than the grants of these devices. An older list may show them as clean."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._listing.until(
                    lambda: (
                        not any(
                            device.uuid in uuids and device.owner != claim and device.clean
                            for device in self._listing.current() or ()
                        )
                    )
                )

    def _settled(self, claim: str, uuids: Collection[str]) -> bool:
        """Whether no device of the claim is about to become clean; the list may still show the claim."""
        devices = self._listing.current()
        return devices is not None and all(
            device.clean or device.quarantined or device.gone or device.replaced or device.owner not in ("", claim)
            for device in devices
            if device.uuid in uuids
        )

    async def _change(self, before: Sequence[Device] | None, within: float) -> None:
        """Return when a device changes, or after ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._listing.until_differs(tuple(before) if before is not None else None)


def _not_of_another(devices: Iterable[Device], claim: str) -> list[str]:
    """The UUIDs. Raises NotReady if another claim has one of the devices; the text does not name that claim."""
    listed = list(devices)
    if taken := [device.uuid for device in listed if device.owner not in ("", claim)]:
        raise NotReady(Reason.IN_USE, f"{taken[0]} still belongs to another claim", "the kubelet tries again")
    return [device.uuid for device in listed]
