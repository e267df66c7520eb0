"""Keeping our own hands off a driver while it resets something."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from scrubber.devices.base import Backend, DeviceError
from scrubber.devices.calls import Caller
from scrubber.ground import log

logger = log.get("observer")

REOPENS_WITHIN = 60.0  # seconds that a driver may take after a reset: without persistence it sets every device up first
TOOL_ENDS_WITHIN = 60.0  # seconds for which a tool that has outlived its worker keeps us off the driver
LOOK_AGAIN = 0.25  # seconds between two looks whether it still runs


class DriverRelease:
    """Our absences from one driver."""

    def __init__(self, backend: Backend, caller: Caller, patience: float) -> None:
        """We are there."""
        self.resetting: set[str] = set()  # what we reset ourselves, and what goes down with it
        self._backend = backend
        self._caller = caller
        self._patience = patience
        self._absences: set[_Release] = set()
        self._returns: set[asyncio.Task[None]] = set()

    def now(self) -> bool:
        """Whether we are, or are not back yet."""
        return bool(self._absences)

    @asynccontextmanager
    async def during(self, *uuids: str) -> AsyncIterator[None]:
        """While these are reset; DeviceError when an earlier question does not come back."""
        await self.back()
        absence = _Release(self._backend)
        self._absences.add(absence)
        try:
            await self._caller.ask(f"let go {absence.number}", absence.begin, 2 * self._patience)
            self.resetting.update(uuids)
            yield
        finally:
            self.resetting.difference_update(uuids)
            # Not waited for: whoever ends a reset has better things to do, and may be on his way out.
            returning = asyncio.create_task(self._return(absence, uuids))
            self._returns.add(returning)
            returning.add_done_callback(self._returns.discard)

    async def back(self) -> None:
        """Wait until the driver can be asked again after the resets that are over; what that takes has an end."""
        if self._returns:
            await asyncio.wait(self._returns.copy())

    async def _return(self, absence: _Release, uuids: Collection[str]) -> None:
        try:
            await self._tool_ends(absence, uuids)
            await self._caller.ask(f"take up {absence.number}", absence.end, REOPENS_WITHIN)
        except DeviceError as error:
            logger.error("the driver does not open again after a reset", error=str(error))  # noqa: TRY400 - expected
        finally:
            self._absences.discard(absence)

    async def _tool_ends(self, absence: _Release, uuids: Collection[str]) -> None:
        """A worker that was killed leaves its tool at work, which bears us no more than the worker did."""
        key = f"tool {absence.number}"
        try:
            async with asyncio.timeout(TOOL_ENDS_WITHIN):
                while await self._caller.ask(key, lambda: any(map(self._backend.in_reset, uuids)), self._patience):  # noqa: ASYNC110 - a lock tells nobody when it is free
                    await asyncio.sleep(LOOK_AGAIN)
        except (DeviceError, TimeoutError) as error:
            why = str(error) or f"not within {TOOL_ENDS_WITHIN:g} s"
            logger.error("cannot tell the end of a reset; the driver is asked again", devices=uuids, error=why)  # noqa: TRY400 - expected


class _Release:
    """One time away from the driver. Whoever asked for it may have left before it began: then it ends at once."""

    _numbers = itertools.count()

    def __init__(self, backend: Backend) -> None:
        self.number = next(self._numbers)
        self._backend = backend
        self._lock = threading.Lock()
        self._away = False
        self._over = False

    def begin(self) -> None:
        self._backend.let_go()
        with self._lock:
            self._away = True
            if not self._over:
                return
        self._backend.take_up()

    def end(self) -> None:
        with self._lock:
            self._over = True
            if not self._away:
                return
        self._backend.take_up()
