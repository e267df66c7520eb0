"""Releases the driver while the service resets a device, and reacquires the driver afterwards."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from ground import log
from scrubber.devices.base import DeviceError, DriverInstance, ShortageError
from scrubber.observe.driver_calls import DriverCalls

logger = log.get("jobs")

REOPENS_WITHIN = 60.0  # seconds that the driver may take after a reset: without persistence mode it sets up all GPUs
TOOL_ENDS_WITHIN = 60.0  # seconds to wait for a reset tool that has outlived its worker
TOOL_CHECK_EVERY = 0.25  # seconds between two checks whether the tool still runs
SHORTAGE_PAUSE = 1.0  # seconds before the next try, while the service or its node lacks what the driver needs


class DriverRelease:
    """The releases of one driver. It tells the observations, which then expect no answer of the driver."""

    def __init__(self, driver: DriverCalls) -> None:
        self._driver = driver
        self._reacquiring: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def during_reset(self, *uuids: str) -> AsyncIterator[None]:
        """Release the driver while these devices are reset; DeviceError when an earlier call does not return.

        Processes are still observed. That the driver does not answer while it is released is no sign. It is a sign if
        the driver still does not answer when the release is over.
        """
        await self.reacquired()
        driver = self._driver
        release = _Release(driver.backend)
        driver.releases += 1
        try:
            await driver.caller.ask(f"release driver {release.number}", release.begin, 2 * driver.patience)
            driver.resetting.update(uuids)
            yield
        finally:
            driver.resetting.difference_update(uuids)
            # In a task of its own: the job that ends a reset does not wait for the driver, and may be cancelled.
            reacquiring = asyncio.create_task(self._reacquire(release, uuids))
            self._reacquiring.add(reacquiring)
            reacquiring.add_done_callback(self._reacquiring.discard)

    async def reacquired(self) -> None:
        """Wait until the driver is reacquired after all resets that have ended.

        The wait has a time limit, except while the service or its node lacks what the driver needs.
        """
        if self._reacquiring:
            await asyncio.wait(self._reacquiring.copy())

    async def _reacquire(self, release: _Release, uuids: Collection[str]) -> None:
        try:
            await self._tool_ends(release, uuids)
            await self._open_again(release)
        except DeviceError as error:
            logger.error("the driver does not open again after a reset", error=str(error))  # noqa: TRY400 - expected
        finally:
            self._driver.releases -= 1

    async def _open_again(self, release: _Release) -> None:
        """Try until no shortage prevents it: a driver that stays released looks like a driver that does not answer."""
        while True:
            try:
                return await self._driver.caller.ask(f"reacquire driver {release.number}", release.end, REOPENS_WITHIN)
            except ShortageError as error:
                logger.warning("the driver cannot be opened again after a reset yet", error=str(error))
                await asyncio.sleep(SHORTAGE_PAUSE)

    async def _tool_ends(self, release: _Release, uuids: Collection[str]) -> None:
        """Wait for the reset tool of a worker that was killed: the tool still needs a driver without users."""
        key, in_reset = f"tool {release.number}", self._driver.backend.in_reset
        ask, patience = self._driver.caller.ask, self._driver.patience
        try:
            async with asyncio.timeout(TOOL_ENDS_WITHIN):
                while await ask(key, lambda: any(map(in_reset, uuids)), patience):  # noqa: ASYNC110 - a file lock sends no event when it is free
                    await asyncio.sleep(TOOL_CHECK_EVERY)
        except (DeviceError, TimeoutError) as error:
            why = str(error) or f"not within {TOOL_ENDS_WITHIN:g} s"
            logger.error("cannot tell whether a reset has ended; the driver is reacquired", devices=uuids, error=why)  # noqa: TRY400 - expected


class _Release:
    """One release of the driver.

    ``begin`` may hang in the driver until its caller has given up and called ``end``. Then ``begin`` reacquires the
    driver at once. ``end`` may be called again: it reacquires the driver once.
    """

    _numbers = itertools.count()

    def __init__(self, driver: DriverInstance) -> None:
        self.number = next(self._numbers)
        self._driver = driver
        self._lock = threading.Lock()
        self._released = False
        self._over = False

    def begin(self) -> None:
        self._driver.release_driver()
        with self._lock:
            self._released = True
            if not self._over:
                return
        self._driver.reacquire_driver()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if not self._released:
                return
            self._released = False
        self._driver.reacquire_driver()
