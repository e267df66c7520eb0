"""What whole GPUs measure of themselves, asked for once in a while and kept for whoever shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from scrubber.devices.base import Readings
from scrubber.observe.observer import Observer

EVERY = 15.0  # seconds: figures are seldom fetched more often


class BoardSampler:
    """Looks for as long as it runs. Nothing is judged by what it reads."""

    def __init__(self, observer: Observer, every: float = EVERY) -> None:
        self._observer = observer
        self._every = every
        self.latest: Mapping[str, Readings] = {}  # by UUID, of the last look alone: what it could not read is not there

    async def run(self) -> None:
        """Read, again and again; what was read is forgotten with the end."""
        try:
            while True:
                self.latest = await self._observer.health.readings()
                await asyncio.sleep(self._every)
        finally:
            self.latest = {}
