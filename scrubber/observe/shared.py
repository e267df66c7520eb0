"""One observation for all callers that ask for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One observation for all callers that ask before it begins.

    An observation that has already begun is too old for a later caller, who gets the next one.
    """

    def __init__(self, observe: Callable[[frozenset[str]], Awaitable[T]]) -> None:
        """``observe`` is given everything that was asked about."""
        self._observe = observe
        self._turn = asyncio.Lock()
        self._asked: set[str] = set()
        self._next: asyncio.Task[T] | None = None

    async def ask(self, *about: str) -> T:
        """The answer of an observation that begins after this call."""
        self._asked.update(about)
        if self._next is None:
            self._next = asyncio.create_task(self._take())
            # Its callers may be gone when it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _take(self) -> T:
        async with self._turn:
            asked, self._asked, self._next = frozenset(self._asked), set(), None
            return await self._observe(asked)
