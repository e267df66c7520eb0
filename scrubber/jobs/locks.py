"""The lock of each device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class DeviceLocks:
    """One lock for each device.

    A device's lock is held from the observation of the device until the decision is recorded, never while waiting.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, devices: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these devices. They are taken in sorted order, so that no two callers can deadlock."""
        async with AsyncExitStack() as stack:
            for device in sorted(set(devices)):
                await stack.enter_async_context(self._locks.setdefault(device, asyncio.Lock()))
            yield
