"""Wait for a condition that other tasks change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changed:
    """Wakes every waiting task after a change.

    A notification carries no data: each waiting task checks its condition again, so no change can be missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Let every waiting task check its condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return as soon as ``holds()`` is true."""
        while not holds():  # no await between this check and the wait: no notification falls between
            await self._event.wait()
