"""Waiting until something holds, looking again each time it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changed:
    """Wakes all who wait. Level-triggered: a ring says "look again", never what happened, so none can be missed."""

    def __init__(self) -> None:
        """Silent at first."""
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Let everybody look again."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return as soon as a look says so. There is no await between a look and the wait for the next ring."""
        while not holds():
            await self._rung.wait()
