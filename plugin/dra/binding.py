"""Tells the scheduler when the devices of a claim are scrubbed, so that it binds the pod of the claim only then.

The scheduler copies the binding conditions of a device from the slice into the claim that gets the device, and waits
for one of them. A claim is never reported twice: what a pod does later changes nothing here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from plugin.cluster.base import Failure, FailureKind
from plugin.cluster.retry_loop import NEVER, Pace, RetryLoop
from plugin.dra import claims
from plugin.listing import Listing
from scrubber.ground import log
from scrubber.ground.aio import Changed

logger = log.get("binding")

PACE = Pace(spacing=0.1, longest=10.0)  # the scheduler asks every 5 s, and gives up after 10 minutes
WATCH_AGAIN = 1.0  # seconds until a watch that has ended is opened again
_DROPPED = {FailureKind.MISSING, FailureKind.REFUSED}  # another attempt would not help


class ClaimServer(Protocol):
    """What the writer needs of the API server."""

    def claims(self) -> AsyncGenerator[tuple[bool, Mapping[str, Any]], None]:
        """Each claim now and after each change, and whether it exists."""

    async def apply_claim_status(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set our part of the status of a claim; returns what the API server made of the claim."""


class BindingConditions:
    """Writes the conditions of the devices of one node."""

    def __init__(self, server: ClaimServer, listing: Listing, driver: str, node: str, pace: Pace = PACE) -> None:
        self._server = server
        self._listing = listing
        self._driver = driver
        self._node = node
        self._pace = pace
        self._changed = Changed()
        self._waiting: dict[str, Mapping[str, Any]] = {}  # claims with a device that is not reported yet, by UID

    async def run(self) -> None:
        """Report the state of claimed devices to the API server, until cancelled."""
        loop = RetryLoop("binding conditions", self._due, self._write, self._changed, self._pace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run(), name="binding conditions")
            tasks.create_task(self._follow_devices(), name="devices for binding conditions")
            tasks.create_task(self._follow_claims(), name="watch of claims")

    def _due(self) -> float:
        return 0.0 if any(map(self._entries, self._waiting.values())) else NEVER

    def _entries(self, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The status to write; empty if nothing can be said yet."""
        shown = self._listing.current()
        if shown is None:
            return []
        return claims.binding_statuses(claim, self._driver, self._node, shown, time.time())

    async def _write(self) -> None:
        uid, claim = next((uid, claim) for uid, claim in self._waiting.items() if self._entries(claim))
        entries = self._entries(claim)
        try:
            found = await self._server.apply_claim_status(claims.with_status(claim, entries))
        except Failure as failure:
            if failure.kind not in _DROPPED:
                raise
            self._waiting.pop(uid, None)
            logger.warning("cannot report a claim to the scheduler", claim=uid, error=failure.message)
        else:
            logger.info("reported to the scheduler", claim=uid, devices=[entry["device"] for entry in entries])
            self._store(found)

    async def _follow_devices(self) -> None:
        while True:
            shown = self._listing.current()
            self._changed.notify()
            await self._listing.until_differs(shown)

    async def _follow_claims(self) -> None:
        warned = ""
        while True:
            self._waiting.clear()  # the list that follows is complete
            try:
                async for exists, claim in self._server.claims():
                    warned = ""
                    self._store(claim) if exists else self._waiting.pop(claims.uid(claim), None)
            except Failure as failure:
                if failure.message != warned:  # each cause once, not each attempt
                    warned = failure.message
                    logger.warning("cannot watch claims", error=warned)
            await asyncio.sleep(WATCH_AGAIN)

    def _store(self, claim: Mapping[str, Any]) -> None:
        if claims.unreported(claim, self._driver, self._node):
            self._waiting[claims.uid(claim)] = claim
            self._changed.notify()
        else:
            self._waiting.pop(claims.uid(claim), None)
