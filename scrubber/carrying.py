"""A step that is carried through although whoever asked for it has left.

What was begun under a lock must end under it: a caller that is cancelled in the middle waits for the end of the step,
and leaves then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


async def through(step: Coroutine[Any, Any, R]) -> R:
    """The result of the step; a cancellation comes after its end, however often it was asked for."""
    task = asyncio.create_task(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at: nobody else will
    raise cancelled
