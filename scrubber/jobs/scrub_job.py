"""One scrub of one device, from its start to its last row, for callers who wait for it.

``path_run`` runs the steps up to the first one that does not pass. The verdict leads to a receipt, a path with a reset,
quarantine, or a later retry. Only ``job_rows`` writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from ground import log
from ground.errors import LedgerUnavailable
from scrub_api.measurements import Measurements
from scrubber.core import closing, guarded, next_action, next_scrub, verdict
from scrubber.core import events as ev
from scrubber.core.model import Blame, Facts, Job, Receipt, ScrubPath, Step, Vitals
from scrubber.core.record import Record
from scrubber.core.use_counter import FenceReading
from scrubber.jobs.job_context import JobContext
from scrubber.jobs.job_rows import JobRows
from scrubber.jobs.path_run import JobProgress, PathRun, Vetoes, order_for
from scrubber.ledger.ledger import OvertakenError
from scrubber.policy import DevicePolicy
from scrubber.workers.worker import BrokenError

logger = log.get("jobs")


class ScrubJob:
    """One job: its progress, for callers who wait for it, and its end.

    The events of the job are in the ledger. What this object holds is lost when the service ends.
    """

    path_type, vetoes_type = PathRun, Vetoes  # tests run others

    def __init__(self, context: JobContext, device: str, job: Job, device_policy: DevicePolicy, op: str) -> None:
        """The job begins at once: ``_run``, in a task of its own. ``op``: the id of the operation that asked for it."""
        self.id = job.id
        self.device = device
        self.op = op
        self.device_policy = device_policy
        self.path = job.path
        self.trigger = job.trigger
        self.progress = JobProgress(context.now)
        self.receipt: Receipt | None = None
        self.why = "it was cancelled"  # why the device is not clean; replaced when the job runs to its end
        self._used_in_passing = False  # a process has used the device and has left again: so there is no proof
        self.finished = asyncio.Event()
        self._context = context
        self._policy = device_policy.policy
        self._rows = JobRows(context, op, device, job.id)
        self._workers: list[int] = []  # the pids of its workers so far
        self._cancel_why = "it was cancelled"
        self._cancelled = False
        self._unrecorded = ""  # why the end of the job is not in the ledger
        self._fault: Exception | None = None  # a fault of the service
        self._task = asyncio.create_task(self._run(), name=f"job {self.id}")

    # -- for those who wait for the job

    @property
    def step(self) -> Step | None:
        """The present step; None while the job waits for its turn."""
        return self.progress.step

    @property
    def failed(self) -> bool:
        """Whether it has ended without a proof, for a reason that may hold for the next job as well.

        Not if it was cancelled, or if a process has used the device and has left again.
        """
        return self.finished.is_set() and self.receipt is None and not (self._cancelled or self._used_in_passing)

    async def updates(self) -> AsyncIterator[None]:
        """Yields once after each change until the job is over. Any number of callers may wait."""
        changed = self.progress.changed
        while not self.finished.is_set():
            await changed.after(changed.notifications)
            yield

    def cancel(self, why: str = "it was cancelled") -> None:
        """Ask the job to end. What it did counts for nothing."""
        self._cancel_why = why
        self._task.cancel()

    async def ended(self) -> None:
        """Wait until a cancelled job is over."""
        await asyncio.wait({self._task})
        if not self.finished.is_set():  # cancelled before its task ran for the first time
            self._cancelled = True
            self._end(0.0)

    # -- from the first step to the last record

    async def _run(self) -> None:
        """Run the job to its end, and record that end whatever it is."""
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            await self._scrub()
        except asyncio.CancelledError:
            self._cancelled = True
            await self._interrupt(self._cancel_why)
        except LedgerUnavailable as error:  # still SCRUBBING: the monitor closes it once the ledger can be written
            self.why = self._unrecorded = str(error)
        except BrokenError as error:  # no worker can be started, which the pool has logged
            await self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the device in SCRUBBING for ever
            if self._rows.own() is not None:
                self._fault = error
                await self._give_up(f"a fault inside the service: {error!r}")
        finally:
            self._end(clock() - started)

    def _end(self, seconds: float) -> None:
        """Mark the job as over, log its end, and wake the waiting callers. No other place logs the end."""
        self._context.forget(self.device)
        state = self._context.ledger.records[self.device].state
        about = {"op": self.op, "device": self.device, "job": self.id, "path": self.path.value}
        about |= {"trigger": self.trigger.value, "state": state.value}
        took = round(seconds, 3)
        if self._fault is not None:
            logger.error("job ended", **about, outcome="fault", seconds=took, exc_info=self._fault)
        elif self._unrecorded:
            logger.error("job ended", **about, outcome="unrecorded", error=self._unrecorded, seconds=took)
        elif self.receipt is not None:
            logger.info("job ended", **about, outcome="ok", receipt=self.receipt.id, seconds=took)
        else:
            outcome = "cancelled" if self._cancelled else "failed"
            logger.warning("job ended", **about, outcome=outcome, why=self.why, seconds=took)
        self.finished.set()
        self.progress.changed.notify()

    async def _scrub(self) -> None:
        """Run the path, judge it, record the consequence. Where policy says so, continue with a reset."""
        while (own := self._rows.own()) is not None:
            record, job = own
            self.path = job.path
            key = self._context.token(16)  # new for each path: a slow path must not find the pattern of a fast one
            path = self.path_type(
                self._context, self.path, self._policy, self.vetoes_type(self._context, self.device, self.id),
                self._rows, self.progress, self._workers, order_for(self._policy, self.path, key, record.tenancy.span),
            )  # fmt: skip
            async with self._context.slots.at_device(record, job, self.progress.changed.notify):
                await path.run()
                if await self._conclude(path):
                    return

    async def _conclude(self, path: PathRun) -> bool:
        """Record what the path proved, and what the device reported. False when the job goes on with another path."""
        own = self._rows.own(waiting=True)
        if own is None:
            return True
        record, job = own
        judged, vitals, seen = await self._judged(record, job, path)
        events = self._consequence(record, job, judged, vitals, seen)
        try:
            await self._rows.append(*events, seen=seen)
        except OvertakenError:
            return await self._conclude(path)
        event = events[0]
        self.why = judged.detail if isinstance(judged, verdict.Failed) else ""
        self.receipt = event.receipt if isinstance(event, ev.ScrubPassed) else None
        self._used_in_passing = isinstance(event, ev.ScrubFailed) and event.unnamed
        return not isinstance(event, ev.Escalated)

    async def _judged(
        self, record: Record, job: Job, path: PathRun
    ) -> tuple[verdict.Verdict, Vitals | None, Facts | None]:  # fmt: skip
        """The verdict, and the vitals that it rests on; and the last look, which is taken if all steps have passed."""
        judged = verdict.judge(job, record.health.baseline, self._policy)
        unexpected_holder = seen = None
        if isinstance(judged, Measurements):
            vitals, unexpected_holder = await path.last_vitals()
        else:
            vitals = await self._context.observer.health.vitals(self.device)
        others = self._context.ledger.records.values()
        judged = verdict.confirmed(judged, vitals, record, self._policy, self._workers, others)
        if isinstance(judged, Measurements):
            seen, last = await path.vetoes.last_look()
            veto = unexpected_holder or last
            if veto is None:
                return replace(judged, witness=path.use_counter), vitals, seen
            judged = replace(verdict.failed(Step.HEALTH, veto.blame, veto.why), in_the_way=veto.in_the_way)
        return judged, vitals, seen

    def _consequence(
        self, record: Record, job: Job, judged: verdict.Verdict, vitals: Vitals | None, seen: Facts | None
    ) -> list[ev.Event]:  # fmt: skip
        """What is to be recorded; the first event ends the path. ``record`` has all results of the job.

        After ``ScrubPassed`` the device is CLEAN (``core.states``).
        """
        if isinstance(judged, Measurements):
            return self._proven(record, job, judged, guarded.of_look(seen) if seen is not None else None)
        event = self._failed(record, job, judged, vitals)
        undecided = isinstance(event, ev.ScrubFailed) and judged.blame is Blame.UNDECIDED
        # The monitor must not count these errors again.
        noted = next_action.errors_to_note(record.health.baseline, vitals) if undecided else None
        return [event] if noted is None else [event, noted]

    def _proven(self, record: Record, job: Job, found: Measurements, reading: FenceReading | None) -> list[ev.Event]:
        """The receipt, and the end of the tenancy before it: both are signed."""
        context, policy, ended = self._context, self._policy, record.fence.ended
        signer = context.signer
        receipt = verdict.write_receipt(
            record, job, found, (self.device_policy.rule, policy.proof_digest), context.now()
        )
        if not policy.serial_in_receipts:
            record = replace(record, device=replace(record.device, serial=None))
        if signer is not None:
            receipt = signer.seal(record, receipt, closing.since_proof(record, reading))
        passed = ev.ScrubPassed(job.id, receipt, reading)
        if ended is None:
            return [passed]
        until_wiped = closing.until_wiped(ended, reading)
        signed = signer.close(record, ended, receipt, until_wiped) if signer is not None else ""
        return [passed, ev.TenancyClosed(ended, receipt.id, until_wiped, signed)]

    def _failed(self, record: Record, job: Job, judged: verdict.Failed, vitals: Vitals | None) -> ev.Event:
        now, escalate = self._context.now(), not next_scrub.forbids(self._policy, ScrubPath.RESET)
        quarantined, given_up = record.health.quarantine is not None, verdict.given_up(record, now)
        match verdict.consequence(judged, job.path, escalate=escalate, quarantined=quarantined, given_up=given_up):
            case verdict.Consequence.ESCALATE:
                return ev.Escalated(job.id, judged.detail, ScrubPath.RESET)
            case verdict.Consequence.ENTER_QUARANTINE:
                chance = int(self._context.token(2), 16) / 2**16
                return next_action.quarantine(record, judged.ailment, "autoclave", vitals, self._policy, now, chance)
            case verdict.Consequence.STAY_IN_QUARANTINE:
                return next_action.interruption(record, judged.detail, now)
            case verdict.Consequence.LEAVE_DIRTY:
                return next_action.failure(record, judged.detail, judged.blame, judged.in_the_way)

    # -- an end without a verdict

    async def _give_up(self, why: str) -> None:
        """End the job after a fault of the service.

        The device gets a setback: it is tried again with pauses, and is not offered meanwhile. A device that was proven
        bad before the fault is quarantined.
        """
        own = self._rows.own()
        if own is not None and own[0].health.quarantine is None and verdict.proven_fault(own[1]) is None:
            await self._close(next_action.failure(own[0], why, Blame.SERVICE), why)
        else:
            await self._interrupt(why)

    async def _interrupt(self, why: str) -> None:
        own = self._rows.own()
        if own is not None:
            await self._close(next_action.interruption(own[0], why, self._context.now()), why)

    async def _close(self, event: ev.Event, why: str) -> None:
        self.why = why
        try:
            await self._rows.append(event)
        except LedgerUnavailable as error:
            self._unrecorded = str(error)
