"""Wait for a condition that other tasks change, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes every waiting task after a change."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()

    def changed(self) -> None:
        """Wake every waiting task."""
        for waiter in self._waiters:
            waiter.set()

    def check(self) -> None:
        """Raise an error instead of waiting; the base class has none."""

    async def until(self, predicate: Callable[[], object], within: float | None = 10.0) -> None:
        """Return when the predicate is true, or raise TimeoutError. It is checked after each change."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(within):
                while True:
                    waiter.clear()
                    self.check()
                    if predicate():
                        return
                    await waiter.wait()
        finally:
            self._waiters.discard(waiter)
