"""Ends the proof of a device that the vendor's plugin calls unhealthy: what has happened to it is not known here.

The device is taken and given back, so that it is scrubbed before it goes out again. A device in use needs nothing: it
is scrubbed at the end of its use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from scrubber.api import client
from scrubber.ground import log, operation_id
from scrubber.ground.errors import AutoclaveError, Reason

logger = log.get("vendor")

OWNER = "vendor-unhealthy"  # of the devices that are taken only to end their proof
AGAIN = 1.0  # seconds until a service that did not answer is asked again
_ASKED_AGAIN = frozenset({Reason.UNREACHABLE, Reason.SHUTTING_DOWN, Reason.TIMED_OUT, Reason.NOT_READY})


async def end_proofs(
    scrubber: client.ScrubberClient, doubts: asyncio.Queue[frozenset[str]], trust: Callable[[str], None]
) -> None:
    """End the proof of each device in the queue, until cancelled. ``trust`` is told of each one."""
    await _until_answered(scrubber, ())  # what a killed plugin has left
    while True:
        for device in sorted(await doubts.get()):
            logger.warning("the vendor's plugin calls a device unhealthy: it is scrubbed again", device=device)
            await _until_answered(scrubber, (device,))
            trust(device)


async def _until_answered(scrubber: client.ScrubberClient, devices: Collection[str]) -> None:
    while True:
        op = operation_id.new()
        try:
            if devices:
                await scrubber.acquire(list(devices), exclusive=True, owner=OWNER, op=op)
            await scrubber.release(owner=OWNER, op=op)
        except AutoclaveError as error:
            if error.reason not in _ASKED_AGAIN:
                return  # it has an owner, or is not clean: it is scrubbed before it goes out
        else:
            return
        await asyncio.sleep(AGAIN)
