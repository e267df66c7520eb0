"""Whose turn it is: what jobs of several devices must not do at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext

from scrubber.core.model import Job, Path, Record, Step
from scrubber.ground.rwlock import RWLock
from scrubber.jobs import engine
from scrubber.observe.observer import Observer

USES_DRIVER = frozenset({Step.SETTINGS, Step.HEALTH})  # for as long as they take
MOST_WORKERS = 16  # at once; each is a process of its own, and whole nodes become dirty together
PASSED_FOR = 60.0  # seconds for which a reset waits behind scrubs that test nothing: a self-test keeps it as long


class Slots:
    """One a service."""

    def __init__(self, observer: Observer) -> None:
        """Nobody is at work."""
        self._observer = observer
        self.workers = asyncio.Semaphore(MOST_WORKERS)
        self.driver = RWLock(PASSED_FOR)  # where a reset bears nobody who uses it
        self._domains: dict[str, asyncio.Lock] = {}
        self._queued: set[str] = set()

    def waits(self, device: str) -> bool:
        """Whether its job waits for its turn: nothing of ours is on it yet."""
        return device in self._queued

    @asynccontextmanager
    async def at_device(self, record: Record, job: Job) -> AsyncIterator[None]:
        """When the job may touch its device.

        One job a reset domain comes to its reset at a time: two would take each other for users of it, for ever. Who
        resets nothing waits until it is over. And no more workers at once than a node has room for: each is a process
        of its own.
        """
        device, domain = record.device.uuid, record.device.reset_domain
        async with AsyncExitStack() as stack:
            self._queued.add(device)
            try:
                if domain is not None:
                    turn = self._domains.setdefault(domain, asyncio.Lock())
                    await stack.enter_async_context(turn)
                    if job.path is not Path.SLOW:
                        await stack.aclose()
                await stack.enter_async_context(self.workers)
            finally:
                self._queued.discard(device)
            yield

    def at_driver(self, step: Step) -> AbstractAsyncContextManager[None]:
        """When nobody of ours is in the way of a step there: no reset while it is used for another device."""
        if not self._observer.backend.one_driver:
            return nullcontext()
        if step is Step.RESET:
            return self._when_back(self.driver.alone())
        return self._when_back(self.driver.with_others(brief=True)) if step in USES_DRIVER else nullcontext()

    def at_memory(self, steps: tuple[Step, ...]) -> AbstractAsyncContextManager[None]:
        """When a worker may take the memory in hand; until it has ended."""
        if not (self._observer.backend.one_driver and engine.ON_MEMORY.issuperset(steps)):
            return nullcontext()
        return self._when_back(self.driver.with_others(brief=Step.SELFTEST not in steps))

    @asynccontextmanager
    async def _when_back(self, turn: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """The driver, when its turn has come and no tool of a reset that was cut off is at it any more."""
        async with turn:
            await self._observer.back()
            yield
