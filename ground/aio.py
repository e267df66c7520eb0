"""Helpers for asyncio: cancellation, signals, waiting for a change, a lock that is shared or exclusive.

Work that began under a lock must end under it: a task that is cancelled meanwhile waits for the end of that work.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
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
        await finish(asyncio.wait(tasks))


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, R]) -> AsyncIterator[asyncio.Task[R]]:
    """Run the work beside the block. If it has not ended when the block ends, it is cancelled, and has ended by then.

    An error of the work is lost unless the block asks for the result.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def merged(streams: Sequence[AsyncIterator[R]]) -> AsyncIterator[R]:
    """The items of all streams, in the order in which they come."""
    queue: asyncio.Queue[R | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    left = len(pumps)
    try:
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            else:
                yield item
        for pump in pumps:
            pump.result()
    finally:
        for pump in pumps:
            pump.cancel()


async def _pump(stream: AsyncIterator[R], queue: asyncio.Queue[R | None]) -> None:
    try:
        async for item in stream:
            queue.put_nowait(item)
    finally:
        queue.put_nowait(None)


class Changed:
    """Wakes every waiting task after a change.

    A notification carries no data: each waiting task checks its condition again, so no change can be missed.
    """

    def __init__(self, *sources: Changed) -> None:
        """Each notification of a source is one of this object, too."""
        self.notifications = 0  # how many there were so far
        self._event = asyncio.Event()
        self.listeners: list[Changed] = []
        for source in sources:
            source.listeners.append(self)

    def notify(self) -> None:
        """Let every waiting task check its condition again."""
        self.notifications += 1
        self._event.set()
        self._event = asyncio.Event()
        for listener in self.listeners:
            listener.notify()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return as soon as ``holds()`` is true."""
        while not holds():  # no await between this check and the wait: no notification falls between
            await self._event.wait()

    async def after(self, count: int, within: float | None = None) -> bool:
        """Wait until there are more notifications than ``count``. False: none came within these seconds."""
        try:
            async with asyncio.timeout(within):  # wait_for can lose a cancellation that comes with the event
                await self.until(lambda: self.notifications != count)
        except TimeoutError:
            return False
        return True


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
        await self._changed.until(lambda: self.is_open(brief=brief))
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

    def is_open(self, *, brief: bool) -> bool:
        """Whether a shared use begins at once."""
        if self._exclusive:
            return False
        return not self._waiting or (brief and asyncio.get_running_loop().time() - self._waiting[0] < self._patience)
