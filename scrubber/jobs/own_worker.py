"""A worker that the observer does not take for an unexpected holder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from scrubber.observe.observer import Observer
from scrubber.workers.worker import Worker

StartingWorker = asyncio.Task[Worker]  # the worker may still be starting while its device is observed


@asynccontextmanager
async def own_worker(
    observer: Observer, spawn: Callable[[], Awaitable[Worker]], pids: list[int]
) -> AsyncIterator[StartingWorker]:
    """Start a worker, and add its pid to ``pids``. It is gone when the block ends."""

    async def start() -> Worker:
        worker = await spawn()
        pids.append(worker.pid)
        observer.holders.own(worker.pid)
        return worker

    starting = asyncio.create_task(start())
    try:
        yield starting
    finally:
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            worker = starting.result()
            try:
                await worker.kill()
            finally:
                observer.disown(worker.pid, has_ended=worker.has_ended)
