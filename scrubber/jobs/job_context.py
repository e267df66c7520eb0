"""What all jobs of the service share: locks, slots and workers.

A lock belongs to one device. A slot limits what several devices must not do at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from ground.aio import RWLock
from policies.policy_model import Policy
from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.model import Job, Moment, Receipt, ScrubPath, Step
from scrubber.core.plans import PLANS, STEPS, Driver
from scrubber.core.record import Record
from scrubber.jobs.driver_release import DriverRelease
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.workers.worker import Worker

Spawn = Callable[[str, Policy], Awaitable[Worker]]  # ``assembly`` passes ``start`` of its ``_WorkerStarter``
"""Starts a worker for a device, as its policy wants it."""

StartingWorker = asyncio.Task[Worker]  # the worker may still be starting while its device is observed

MAX_WORKERS = 16  # at once; each is a process of its own, and all devices of a node may become dirty together
OVERTAKEN_FOR = 60.0  # seconds for which scrubs without a self-test may overtake a waiting reset


class Signs(Protocol):
    """Who signs what a job has shown: ``receipts.notary``."""

    def seal(self, record: Record, receipt: Receipt, guarded: Guarded) -> Receipt:
        """The receipt with its signed document. ``record``: the device before it; ``guarded``: since the last proof."""

    def close(self, record: Record, ended: EndedTenancy, wipe: Receipt, until_wiped: Guarded) -> str:
        """The signed document about a tenancy that the wipe follows; empty: not signed."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What all jobs of the service share."""

    ledger: Ledger
    observer: Observer
    slots: Slots
    locks: DeviceLocks
    spawn: Spawn
    now: Callable[[], Moment]
    token: Callable[[int], str]  # returns that many random bytes as hex
    watch_every: float  # seconds between two observations for unexpected holders
    forget: Callable[[str], object]  # a job calls it when it ends, with its device
    signer: Signs | None = None


@asynccontextmanager
async def own_worker(
    observer: Observer, spawn: Callable[[], Awaitable[Worker]], pids: list[int]
) -> AsyncIterator[StartingWorker]:
    """Start a worker that the observer does not take for an unexpected holder. It is gone when the block ends.

    Its pid is added to ``pids``.
    """

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


class DeviceLocks:
    """One lock for each device.

    A device's lock is held from the observation of the device until the decision is recorded, never while waiting.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, devices: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of these devices. They are taken in sorted order, so that no two callers can deadlock."""
        async with AsyncExitStack() as stack:
            for device in sorted(set(devices)):
                await stack.enter_async_context(self._locks.setdefault(device, asyncio.Lock()))
            yield


class Queue:
    """Who waits, in the order of arrival. A device can wait twice: with its job and with its pending restore."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    def place(self, device: str) -> int | None:
        """The place of the device, from 1. None if it does not wait."""
        return next((place for place, (name, _) in enumerate(self._waiting, 1) if name == device), None)

    @contextmanager
    def joined(self, device: str, moved: Callable[[], None]) -> Iterator[None]:
        """Keep the device in the queue during the block. ``moved`` is called when its place changes."""
        entry = (device, moved)
        self._waiting.append(entry)
        moved()
        try:
            yield
        finally:
            self._waiting.remove(entry)
            for _, behind in self._waiting:
                behind()


class Slots:
    """The slots of one service. A job takes one before it uses what jobs share."""

    def __init__(self, observer: Observer) -> None:
        self.driver_release = DriverRelease(observer.driver)
        self.workers = asyncio.Semaphore(MAX_WORKERS)
        self.driver = RWLock(OVERTAKEN_FOR)  # a reset needs a driver that no worker uses
        self._domains: dict[str, RWLock] = {}
        self._for_worker = Queue()
        self._for_driver = Queue()

    def waits(self, device: str) -> bool:
        """Whether the device's job is still queued: no worker has the device open yet."""
        return self._for_worker.place(device) is not None

    def place(self, device: str) -> int | None:
        """The place of the device's job in its queue, from 1. None if the job does not wait."""
        place = self._for_worker.place(device)
        return self._for_driver.place(device) if place is None else place

    @asynccontextmanager
    async def at_device(self, record: Record, job: Job, moved: Callable[[], None]) -> AsyncIterator[None]:
        """Wait until the job may touch its device.

        A job with a reset runs alone in its reset domain: another one would hold a sibling and so prevent the reset,
        and the reset would end what the other one has proven. The node has a limited number of workers. ``moved`` is
        called when the job's place in the queue changes.
        """
        device, domain = record.device.uuid, record.device.reset_domain
        async with AsyncExitStack() as stack:
            with self._for_worker.joined(device, moved):
                if domain is not None:
                    await stack.enter_async_context(self._in_domain(domain, job.path))
                await stack.enter_async_context(self.workers)
            yield

    def _in_domain(self, domain: str, path: ScrubPath) -> AbstractAsyncContextManager[None]:
        turn = self._domains.setdefault(domain, RWLock(OVERTAKEN_FOR))
        return turn.exclusive() if path is ScrubPath.RESET else turn.shared(brief=_is_brief(PLANS[path]))

    def at_driver(self, device: str, step: Step) -> AbstractAsyncContextManager[None]:
        """Wait until the step may use the driver: a reset excludes the workers of all other devices."""
        match STEPS[step].driver:
            case Driver.ALONE:
                return self._when_reacquired(device, self.driver.exclusive())
            case Driver.BRIEFLY:
                return self._when_reacquired(device, self.driver.shared(brief=True))
            case Driver.NOT | Driver.FOR_MEMORY:
                return nullcontext()

    def at_memory(self, device: str, steps: tuple[Step, ...]) -> AbstractAsyncContextManager[None]:
        """Hold the driver for a worker of these steps, from its first step on memory until it has ended."""
        return self._when_reacquired(device, self.driver.shared(brief=_is_brief(steps)))

    @asynccontextmanager
    async def _when_reacquired(self, device: str, turn: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """Wait for the turn, then for the driver: the tool of a cancelled reset may still use it."""
        async with AsyncExitStack() as stack:
            with self._for_driver.joined(device, lambda: None):
                await stack.enter_async_context(turn)
                await self.driver_release.reacquired()
            yield


def _is_brief(steps: tuple[Step, ...]) -> bool:
    """Whether a reset that waits lets these steps pass: the self-test takes long."""
    return Step.SELFTEST not in steps
