"""Releases the driver while the service resets a device, and reacquires the driver afterwards."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from scrubber.devices.base import Backend, DeviceError, ShortageError
from scrubber.devices.calls import Caller
from scrubber.ground import log

logger = log.get("observer")

REOPENS_WITHIN = 60.0  # seconds that the driver may take after a reset: without persistence mode it sets up all GPUs
TOOL_ENDS_WITHIN = 60.0  # seconds to wait for a reset tool that has outlived its worker
TOOL_CHECK_EVERY = 0.25  # seconds between two checks whether the tool still runs
SHORTAGE_PAUSE = 1.0  # seconds before the next try, while the service or its node lacks what the driver needs


class DriverRelease:
    """The releases of one driver."""

    def __init__(self, backend: Backend, caller: Caller, patience: float) -> None:
        self.resetting: set[str] = set()  # the devices that the service resets itself, and their siblings
        self._backend = backend
        self._caller = caller
        self._patience = patience
        self._releases: set[_Release] = set()
        self._reacquiring: set[asyncio.Task[None]] = set()

    def in_force(self) -> bool:
        """Whether the driver is released, or not reacquired yet."""
        return bool(self._releases)

    @asynccontextmanager
    async def during_reset(self, *uuids: str) -> AsyncIterator[None]:
        """Release the driver while these devices are reset; DeviceError when an earlier call does not return."""
        await self.reacquired()
        release = _Release(self._backend)
        self._releases.add(release)
        try:
            await self._caller.ask(f"release driver {release.number}", release.begin, 2 * self._patience)
            self.resetting.update(uuids)
            yield
        finally:
            self.resetting.difference_update(uuids)
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
            self._releases.discard(release)

    async def _open_again(self, release: _Release) -> None:
        """Try until no shortage prevents it: a driver that stays released looks like a driver that does not answer."""
        while True:
            try:
                return await self._caller.ask(f"reacquire driver {release.number}", release.end, REOPENS_WITHIN)
            except ShortageError as error:
                logger.warning("the driver cannot be opened again after a reset yet", error=str(error))
                await asyncio.sleep(SHORTAGE_PAUSE)

    async def _tool_ends(self, release: _Release, uuids: Collection[str]) -> None:
        """Wait for the reset tool of a worker that was killed: the tool still needs a driver without users."""
        key = f"tool {release.number}"
        try:
            async with asyncio.timeout(TOOL_ENDS_WITHIN):
                while await self._caller.ask(key, lambda: any(map(self._backend.in_reset, uuids)), self._patience):  # noqa: ASYNC110 - a file lock sends no event when it is free
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

    def __init__(self, backend: Backend) -> None:
        self.number = next(self._numbers)
        self._backend = backend
        self._lock = threading.Lock()
        self._released = False
        self._over = False

    def begin(self) -> None:
        self._backend.release_driver()
        with self._lock:
            self._released = True
            if not self._over:
                return
        self._backend.reacquire_driver()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if not self._released:
                return
            self._released = False
        self._backend.reacquire_driver()
