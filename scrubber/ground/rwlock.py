"""A lock that many tasks share or one task holds alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scrubber.ground.changed import Changed


class RWLock:
    """A lock with shared and exclusive use.

    A task that waits for exclusive use comes before every later task. Only brief shared uses still pass it, and only
    for a while: otherwise one long shared use would keep all brief ones waiting.
    """

    def __init__(self, patience: float) -> None:
        """``patience``: for how many seconds brief shared uses pass a task that waits for exclusive use."""
        self._patience = patience
        self._users = 0
        self._waiting: list[float] = []  # since when each exclusive use waits or lasts
        self._exclusive = False
        self._changed = Changed()

    @asynccontextmanager
    async def shared(self, *, brief: bool = False) -> AsyncIterator[None]:
        """Shared use, as soon as no task has or waits for exclusive use."""
        await self._changed.until(lambda: self._open(brief=brief))
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._changed.notify()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Exclusive use, as soon as the last other use has ended."""
        since = asyncio.get_running_loop().time()
        self._waiting.append(since)
        mine = False
        try:
            await self._changed.until(lambda: not self._exclusive and self._users == 0)
            self._exclusive = mine = True
            yield
        finally:
            self._waiting.remove(since)
            if mine:
                self._exclusive = False
            self._changed.notify()

    def _open(self, *, brief: bool) -> bool:
        if self._exclusive:
            return False
        return not self._waiting or (brief and asyncio.get_running_loop().time() - self._waiting[0] < self._patience)
