"""A step that is carried through although whoever asked for it has left.

What was begun under a lock must end under it: a caller that is cancelled in the middle waits for the end of the step,
and leaves then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")


async def through(step: Coroutine[Any, Any, R]) -> R:
    """The result of the step; a cancellation comes after its end, however often it was asked for."""
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # looked at: nobody else will
        raise
