"""A step that is carried through although whoever asked for it has left.

What was begun under a lock must end under it: a caller that is cancelled in the middle waits for the end of the step,
and leaves then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
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


async def together(steps: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """The results of all. After an error or a cancellation none goes on: the others are cut and waited for."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await through(_ended(tasks))


async def _ended(tasks: list[asyncio.Task[R]]) -> None:
    await asyncio.wait(tasks)
