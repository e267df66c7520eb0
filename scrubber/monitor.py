"""The level-triggered loop: compares what is seen with what the ledger says, and asks the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scrubber import log
from scrubber.devices.base import DeviceError
from scrubber.errors import AutoclaveError, LedgerUnavailable
from scrubber.service import Service
from scrubber.sight import Sight

logger = log.get("monitor")

PACE = 0.004  # seconds between the beginnings of two looks: whoever asks a hook meanwhile gets in between
AT_ONCE = 8  # devices looked after at the same time: more, and whoever asks a hook waits behind all of them


class Monitor:
    """One round a second is enough: hooks look for themselves, this is for what nobody asks about."""

    def __init__(self, service: Service, sight: Sight, interval: float = 1.0) -> None:
        """``interval`` is the pause between two rounds."""
        self._service = service
        self._sight = sight
        self._interval = interval
        self._few = asyncio.Semaphore(AT_ONCE)
        self._complaint = ""

    async def run(self) -> None:
        """Rounds until cancelled. A round that fails is told once and tried again."""
        while True:
            await self.round(PACE)
            await asyncio.sleep(self._interval)

    async def round(self, pace: float = 0.0) -> None:
        """Meet every device, then tend each; what fails for one, or hangs, keeps no other waiting."""
        attempts = [await _attempt(self._service.try_ledger), await _attempt(self._meet)]
        devices = tuple(self._service.ledger.records)
        tending = (self._tend(device, number * pace) for number, device in enumerate(devices))
        results = await asyncio.gather(*tending, return_exceptions=True)
        failures = [failure for failure in (*attempts, *results) if failure is not None]
        for failure in failures:
            self._complain(failure)
        if not failures:
            self._complaint = ""

    async def _tend(self, device: str, after: float) -> None:
        await asyncio.sleep(after)
        async with self._few:
            await self._service.tend(device)

    async def _meet(self) -> None:
        incarnation = await self._sight.incarnation()
        for device in await self._sight.inventory():
            await self._service.meet(device, incarnation)

    def _complain(self, error: BaseException) -> None:
        """Say it once, not once a second."""
        text = repr(error)
        if text == self._complaint:
            return
        self._complaint = text
        if isinstance(error, LedgerUnavailable):
            logger.error("cannot record what is seen; nothing is granted until this is mended", error=error.message)
        elif isinstance(error, (AutoclaveError, DeviceError)):
            logger.warning("cannot tend the devices", error=str(error))
        else:
            logger.error("fault in a round", exc_info=error)


async def _attempt(work: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await work()
    except (AutoclaveError, DeviceError) as error:
        return error
    return None
