"""Pending restores: what an interrupted reset still has to give back to a device."""

from __future__ import annotations

import asyncio

from scrubber.core.model import Outcome
from scrubber.ground import log
from scrubber.service.context import ServiceContext

logger = log.get("service")

RETRY_AFTER = 60.0  # seconds from the start of a restore that failed to the next try


class PendingRestores:
    """Starts one worker for each pending restore.

    A scrub would restore the device too. But slices that a reset has removed are gone, so no scrub runs on them.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._retry_at: dict[str, float] = {}  # uptime

    async def start(self) -> None:
        """Start each pending restore that is due."""
        for device in await self._context.observer.driver.pending_restores():
            waits = self._context.now().uptime < self._retry_at.get(device, 0.0)
            if not (self._context.stopping or waits or device in self._tasks):
                self._tasks[device] = asyncio.create_task(self._restore(device))

    async def stop(self) -> None:
        """Cancel all restores; the next service starts them again."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restore(self, device: str) -> None:
        self._retry_at[device] = self._context.now().uptime + RETRY_AFTER
        try:
            result = await self._context.jobs.restore(device)
            if result is not None and result.outcome is not Outcome.PASSED:
                logger.warning("pending restore failed", device=device, error=result.detail)
                return
            del self._retry_at[device]
            if result is not None:
                logger.info("pending restore complete", device=device)
        except Exception:  # no worker could be started, or a fault of ours: log it and try again
            logger.exception("pending restore failed", device=device)
        finally:
            del self._tasks[device]
