"""The jobs of the service: at most one for each device, started, joined, cancelled and stopped.

A job belongs to the service, never to the caller that asked for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from ground import aio, log
from ground.errors import NotReady, Reason
from scrubber.core import events as ev
from scrubber.core.model import Job, Moment, Outcome, ScrubPath, State, Step, Trigger
from scrubber.devices.base import Address
from scrubber.jobs.job_context import DeviceLocks, JobContext, Signs, Slots, Spawn, own_worker
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.policy import DevicePolicy
from scrubber.steps.orders import Order
from scrubber.workers.worker import Worker

RESTORES_WITHIN = 60.0  # seconds; the deadline of a worker for a pending restore
RETRY_AFTER = 60.0  # seconds from the end of a restore that failed to the next try

logger = log.get("jobs")


class Jobs:
    """The jobs that run now."""

    job_type = ScrubJob  # tests run jobs of another type

    def __init__(
        self,
        ledger: Ledger,
        observer: Observer,
        spawn: Spawn,
        spawn_restorer: Callable[[Address], Awaitable[Worker]],
        now: Callable[[], Moment],
        token: Callable[[int], str],
        watch_every: float,
    ) -> None:
        """``spawn_restorer`` starts a worker for a pending restore.

        ``token`` returns that many random bytes as hex, for job ids and keys.
        """
        self.locks = DeviceLocks()
        self.slots = Slots(observer)
        self._running: dict[str, ScrubJob] = {}
        self._context = JobContext(
            ledger, observer, self.slots, self.locks, spawn, now, token, watch_every, forget=self._running.pop
        )
        self._spawn_restorer = spawn_restorer
        self._restoring: dict[str, asyncio.Task[None]] = {}
        self.stopping = False  # whether the service stops

    def sign_with(self, signer: Signs) -> None:
        """Have each receipt signed."""
        self._context = replace(self._context, signer=signer)

    def of(self, device: str) -> ScrubJob | None:
        """The job that runs on a device."""
        return self._running.get(device)

    async def start(
        self, device: str, path: ScrubPath, trigger: Trigger, device_policy: DevicePolicy, op: str,
        by: str = "autoclave",
    ) -> ScrubJob:  # fmt: skip
        """Record a job, then start it. The caller holds the lock of the device and has decided."""
        return await aio.finish(self._start(device, path, trigger, device_policy, op, by))

    async def _start(
        self, device: str, path: ScrubPath, trigger: Trigger, device_policy: DevicePolicy, op: str, by: str
    ) -> ScrubJob:  # fmt: skip
        context = self._context
        self.require_running()
        record, started = context.ledger.records[device], Job(context.token(6), path, trigger, context.now())
        quarantined = record.state is State.QUARANTINED
        event = ev.ProbationStarted(started, by) if quarantined else ev.ScrubStarted(started)
        await context.ledger.append(op, (device, event))
        self.require_running()  # again: if it was stopped meanwhile, its next start closes the job in the ledger
        job = self._running[device] = self.job_type(context, device, started, device_policy, op)
        return job

    def require_running(self) -> None:
        """NotReady while the service stops."""
        if self.stopping:
            raise NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down", "try again when it is back")

    async def cancel_unless_resetting(self, device: str) -> bool:
        """Cancel a job; False while the job runs its reset, which must come to its end.

        The step is checked at the last moment, because the job goes on while its caller observes the device.
        """
        job = self._running.get(device)
        if job is not None and job.step is Step.RESET:
            return False
        await self.cancel(device)
        return True

    async def cancel(self, device: str) -> None:
        """Cancel the job of a device, if there is one, and wait until it has ended."""
        job = self._running.get(device)
        if job is not None:
            job.cancel()
            await job.ended()

    async def stop(self) -> None:
        """Cancel all jobs and restores: the service stops. That is not a failure of a device."""
        self.stopping = True
        restores = tuple(self._restoring.values())
        for restore in restores:
            restore.cancel()
        await asyncio.gather(*restores, return_exceptions=True)
        jobs = list(self._running.values())
        for job in jobs:
            job.cancel("the service was stopped")
        for job in jobs:
            await job.ended()

    async def start_restores(self) -> None:
        """Start a task for each pending restore, which tries until the restore is complete.

        A scrub would restore the device too. But slices that a reset has removed are gone, so no scrub runs on them.
        """
        for device in await self._context.observer.driver.pending_restores():
            if not (self.stopping or device in self._restoring):
                self._restoring[device] = asyncio.create_task(self._restore(device))

    async def _restore(self, device: str) -> None:
        try:
            while True:
                if await self._restored(device):
                    return
                await asyncio.sleep(RETRY_AFTER)
        finally:
            del self._restoring[device]

    async def _restored(self, device: str) -> bool:
        """Let a worker complete the pending restore of a device. True if nothing is pending any more.

        No job is recorded: a GPU whose slices must be restored may have no record in the ledger.
        """
        observer = self._context.observer
        try:
            async with self.slots.at_driver(device, Step.SETTINGS):
                # Read here, not by the caller: a job may have restored the device while this call waited.
                address = (await observer.driver.pending_restores()).get(device)
                if address is None:
                    return True
                async with own_worker(observer, partial(self._spawn_restorer, address), []) as starting:
                    worker = await starting
                    result = await worker.do(
                        Step.SETTINGS, ScrubPath.SLOW, Order(), RESTORES_WITHIN, lambda _done, _total: None
                    )
        except Exception:  # no worker could be started, or a fault of ours: log it and try again
            logger.exception("pending restore failed", device=device)
            return False
        if result.outcome is not Outcome.PASSED:
            logger.warning("pending restore failed", device=device, error=result.detail)
            return False
        logger.info("pending restore complete", device=device)
        return True
