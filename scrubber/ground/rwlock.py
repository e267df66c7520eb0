"""Many at once, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class RWLock:
    """What many may use at once, unless somebody needs it alone.

    Who waits to be alone is before all who come later, but for those who are brief: they pass him for a while, or one
    who stays for long would keep them waiting as well.
    """

    def __init__(self, patience: float) -> None:
        """Nobody uses it. ``patience`` is how long one who waits to be alone is passed by those who are brief."""
        self._patience = patience
        self._users = 0
        self._waiting: list[float] = []  # since when, those who are alone or want to be
        self._alone = False
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def with_others(self, *, brief: bool = False) -> AsyncIterator[None]:
        """Among others, when nobody is, or waits to be, alone."""
        await self._until(lambda: self._open(brief=brief))
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._move()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """When the last of the others has gone."""
        since = asyncio.get_running_loop().time()
        self._waiting.append(since)
        mine = False
        try:
            await self._until(lambda: not self._alone and self._users == 0)
            self._alone = mine = True
            yield
        finally:
            self._waiting.remove(since)
            if mine:
                self._alone = False
            self._move()

    def _open(self, *, brief: bool) -> bool:
        if self._alone:
            return False
        return not self._waiting or (brief and asyncio.get_running_loop().time() - self._waiting[0] < self._patience)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """There is no await between a look and the wait for the next move."""
        while not holds():
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
