"""Helpers for cancellation and signals in asyncio.

Work that began under a lock must end under it: a task that is cancelled meanwhile waits for the end of that work.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")


def on_hangup(handler: Callable[[], object]) -> None:
    """Call the handler after each SIGHUP, also after one that has come since the process began, and was blocked."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


async def finish(step: Coroutine[Any, Any, R]) -> R:
    """Return the result of the step. A cancelled caller waits for the end of the step first."""
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        raise


async def gather(steps: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Return the results of all steps. After an error or a cancellation, cancel the other steps and wait for them."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await finish(_ended(tasks))


async def _ended(tasks: list[asyncio.Task[R]]) -> None:
    await asyncio.wait(tasks)
