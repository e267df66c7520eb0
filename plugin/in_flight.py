"""The calls of the kubelet that are being answered: a plugin that stops answers them first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from scrubber.ground.aio import Changed


class InFlight(Changed):
    """Counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """A call is being answered within the context."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.notify()

    async def none(self, within: float) -> bool:
        """Wait until no call is being answered. False: there still is one after ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self.until(lambda: self.calls == 0)
        except TimeoutError:
            return False
        return True
