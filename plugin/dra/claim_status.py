"""Writes the proofs of a claim's devices into the status of the claim. Nothing waits for it.

The API server keeps the status of a device as long as the device is allocated to the claim, and refuses a status of
other devices. A status for another claim of the same name would be wrong, so each write names the UID of the claim.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ground import log
from ground.aio import Changed
from plugin.cluster.retry_loop import NEVER, Failure, FailureKind, Pace, RetryLoop
from plugin.dra import claims
from plugin.dra.claims import AllocatedDevice
from scrub_api.device_messages import GrantedDevice

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

logger = log.get("claim status")

PACE = Pace(spacing=0.1)
MOST_WAITING = 64  # claims: the oldest one is dropped for the next
_DROPPED = {FailureKind.MISSING, FailureKind.REFUSED}  # another attempt would not help


@dataclass(frozen=True, slots=True)
class _Prepared:
    claim: Mapping[str, Any]
    devices: Mapping[AllocatedDevice, GrantedDevice]
    at: float
    failed: bool = False


class ClaimStatusWriter:
    """Writes the status of one claim after the other. An entry that waits is dropped when its claim is given back."""

    def __init__(self, server: ApiServer, driver: str, pace: Pace = PACE) -> None:
        self._server = server
        self._driver = driver
        self._pace = pace
        self._changed = Changed()
        self._waiting: dict[str, _Prepared] = {}  # by UID, the oldest first
        self._kept = True  # whether the API server keeps the status of devices

    def prepared(self, claim: Mapping[str, Any], devices: Mapping[AllocatedDevice, GrantedDevice]) -> None:
        """A claim now has these devices."""
        if not self._kept or not devices:
            return
        if len(self._waiting) >= MOST_WAITING:
            dropped = next(iter(self._waiting))
            del self._waiting[dropped]
            logger.warning("too many claims wait: the status of one is not written", claim=dropped)
        self._waiting[claims.uid(claim)] = _Prepared(claim, devices, time.time())
        self._changed.notify()

    def given_back(self, uid: str) -> None:
        """The claim no longer has its devices."""
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Write until cancelled."""
        await RetryLoop(
            "the status of claims", lambda: 0.0 if self._waiting else NEVER, self._write, self._changed, self._pace
        ).run()

    async def _write(self) -> None:
        uid, prepared = next(iter(self._waiting.items()))
        try:
            applied = await self._apply(uid, prepared)
        except Failure as failure:
            if self._waiting.get(uid) is not prepared:
                return  # it was given back meanwhile
            del self._waiting[uid]
            if failure.kind in _DROPPED:
                logger.warning("cannot write the status of a claim", claim=uid, error=failure.message)
                return
            self._waiting[uid] = replace(prepared, failed=True)  # at the end: other claims are tried before it
            if failure.kind is not FailureKind.STALE:
                raise
            return
        if self._waiting.get(uid) is prepared:
            del self._waiting[uid]
        if applied is not None and not claims.has_status(applied, self._driver):
            self._kept = False
            self._waiting.clear()
            logger.warning(
                "the API server keeps no status of devices: none is written", gate="DRAResourceClaimDeviceStatus"
            )

    async def _apply(self, uid: str, prepared: _Prepared) -> Mapping[str, Any] | None:
        """The claim with its status; None if the name is that of another claim now."""
        claim = prepared.claim
        if prepared.failed:  # it may have changed since
            claim = await self._server.claim(*claims.place(claim))
            if claims.uid(claim) != uid:
                return None
        entries = [claims.device_status(self._driver, *each, written=prepared.at) for each in prepared.devices.items()]
        return await self._server.apply_claim_status(claims.with_status(claim, entries))
