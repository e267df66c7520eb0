"""Many at once, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shared:
    """What many may use at once, unless somebody needs it alone. Who waits to be alone is before all who come later."""

    def __init__(self) -> None:
        """Nobody uses it."""
        self._turn = asyncio.Lock()
        self._users = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def with_others(self) -> AsyncIterator[None]:
        """Among others, when nobody is, or waits to be, alone."""
        async with self._turn:
            self._users += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """When the last of the others has gone."""
        async with self._turn:
            await self._idle.wait()
            yield
