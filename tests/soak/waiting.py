"""Waiting with a deadline that says what was waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class InVain(AssertionError):
    """What had to come about did not."""


@asynccontextmanager
async def within(seconds: float, what: Callable[[], str]) -> AsyncIterator[None]:
    """The body ends in time, or the test fails in these words."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise InVain(f"waited {seconds:g} s in vain for {what()}") from None
