"""One scrub of one device: its worker, steps, results and vetoes, from the start to the receipt.

The job runs the steps of its path one after the other, each with a deadline, in a worker process that can be killed.
Before each step the job observes the device and asks whether there is a veto. During each step it watches for
unexpected holders. The first step that does not pass ends the path.

A row marks what a kill may not lose, and is on the disk before the job acts on it: the start of the job; that a clear
or a reset begins; the end of a reset, for which siblings wait; a step that has not passed; what the path proved. The
job keeps the results of the other steps, and records them with the next row. A kill loses them, with an attempt that
proved nothing.

A step that only reads already runs while the device is observed, because observations take most of the
time of a short path. The result of such a step counts only without a veto by then.

A path has two workers: one up to the last step on memory, one for the rest. The steps on memory share a worker,
because one step reads what another step wrote. The first worker opens the device only before ``clear``: until then it
does not hold it. On a card its end takes longer than the rest of the path, so the second one works meanwhile. Both have
ended, and the device has its memory back, before the device is judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ground import log
from ground.aio import Changed
from ground.errors import LedgerUnavailable
from policies.policy_model import Eviction, Policy
from scrub_api.measurements import Measurements
from scrubber.core import changes, closing, leftover, next_action, plans, proof, reset_domains, step_results, verdict
from scrubber.core import events as ev
from scrubber.core.answers import Veto
from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.model import (
    Blame,
    Facts,
    Job,
    Moment,
    Outcome,
    Receipt,
    ScrubPath,
    State,
    Step,
    StepResult,
    Vitals,
)
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.jobs.slots import DeviceLocks, Slots
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.policy import DevicePolicy
from scrubber.steps.orders import Order
from scrubber.workers.worker import BrokenError, Worker

CENSUS = 16  # on the fast path, one part of the memory in so many is searched for residue

logger = log.get("jobs")


Spawn = Callable[[str, Policy], Awaitable[Worker]]
"""Starts a worker for a device, as its policy wants it."""
StartingWorker = asyncio.Task[Worker]  # the worker may still be starting while its device is observed


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
    running: dict[str, ScrubJob]  # by device; a job removes itself when it ends
    signer: Signs | None = None


class ScrubJob:
    """One job: its progress, for callers who wait for it, and its work.

    The events of the job are in the ledger. What this object holds is lost when the service ends.
    """

    def __init__(self, context: JobContext, device: str, job: Job, device_policy: DevicePolicy, op: str) -> None:
        """The job begins at once, in a task of its own. ``op`` is the id of the operation that asked for it."""
        self.id = job.id
        self.device = device
        self.op = op
        self.device_policy = device_policy
        self.path = job.path
        self.trigger = job.trigger
        self.bytes_done = 0  # bytes of the present step
        self.bytes_total = 0
        self.step: Step | None = None  # the present one; None while the job waits for its turn
        self.step_runs: tuple[float, float] | None = None  # since which uptime the step runs, and for how many seconds
        self.progressed: float | None = None  # the uptime of the last progress of a step that counts its bytes
        self.receipt: Receipt | None = None
        self.why = "it was cancelled"  # why the device is not clean; replaced when the job runs to its end
        self.used_in_passing = False  # it failed because a process has used the device, which has left again
        self.finished = asyncio.Event()
        self._context = context
        self._policy = device_policy.policy
        self._ledger = context.ledger
        self._observer = context.observer
        self._changed = Changed()
        self._clear_began = math.inf  # the uptime at which the clear of the present path began
        self._use_counter = (
            ""  # of short uses, when that clear began: if it is lost before the end, the path proves nothing
        )
        self._results: list[StepResult] = []  # of the steps since the last row
        self._free = False  # whether the last observation of the present path found no holder
        self._workers: list[int] = []  # the pids of its workers so far
        self._cancel_why = "it was cancelled"
        self._cancelled = False
        self._unrecorded = ""  # why the end of the job is not in the ledger
        self._fault: Exception | None = None  # a fault of the service
        self._task = asyncio.create_task(self._run(), name=f"job {self.id}")

    # -- for those who wait for the job

    async def updates(self) -> AsyncIterator[None]:
        """Yields once after each change until the job is over. Any number of callers may wait."""
        changed = self._changed
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
            if self._own_record() is not None:
                self._fault = error
                await self._give_up(f"a fault inside the service: {error!r}")
        finally:
            self._end(clock() - started)

    def _end(self, seconds: float) -> None:
        """Mark the job as over, log its end, and wake the waiting callers. No other place logs the end."""
        del self._context.running[self.device]
        state = self._ledger.records[self.device].state
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
        self._changed.notify()

    async def _scrub(self) -> None:
        """Run the path, judge it, record the consequence. Where policy says so, continue with a reset."""
        while True:
            record = self._own_record()
            if record is None or record.scrubs.job is None:
                return
            self.path = record.scrubs.job.path
            key = self._context.token(16)  # new for each path: a slow path must not find the pattern of a fast one
            async with self._context.slots.at_device(record, record.scrubs.job, self._changed.notify):
                await self._run_path(order(self._policy, self.path, key, record.tenancy.span))
            if await self._conclude():
                return

    async def _run_path(self, order: Order) -> None:
        """Run the steps of the path, up to the first one that does not pass."""
        self._clear_began, self._free = math.inf, False
        plan = plans.PLANS[self.path]
        rest = tuple(step for step in plan if plans.STEPS[step].driver is plans.Driver.BRIEFLY)
        *first, last = plan[: -len(rest)]
        async with AsyncExitStack() as until_it_ends, own_worker(self._observer, self._spawn) as worker:
            if Step.RESET in plan:  # once the worker has ended: until then its reset tool counts as ours
                until_it_ends.callback(lambda: self._observer.doubt(self._domain()))
            for step in first:
                if step is plans.FIRST_ON_MEMORY:
                    slot = self._context.slots.at_memory(self.device, (*first, last))
                    await until_it_ends.enter_async_context(slot)
                if not await self._keep(await self._step(worker, step, plan, order)):
                    return
            result = await self._step(worker, last, plan, order)
            if result.outcome is not Outcome.PASSED:
                await self._keep(result)  # before the worker is killed: a job that is cancelled then loses no fault
                return
            ending = asyncio.create_task(self._let_end(await worker, result, until_it_ends))
            try:
                ran = await self._run_rest(rest, plan, order)
                ran.insert(0, await ending)
            finally:
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
        for result in ran:
            if not await self._keep(result):
                return

    async def _let_end(self, worker: Worker, last: StepResult, until_it_ends: AsyncExitStack) -> StepResult:
        """The result of the last step of a worker, which stands only if the worker ends well."""
        last = await worker.finish(last)
        self._observer.holders.disown(worker.pid)  # another process may have its pid while the rest waits its turn
        await until_it_ends.aclose()
        return last

    async def _run_rest(self, steps: tuple[Step, ...], plan: tuple[Step, ...], order: Order) -> list[StepResult]:
        """Run the steps after those on memory. Returns the results that passed, and keeps the first that did not."""
        passed = list[StepResult]()
        async with own_worker(self._observer, self._spawn) as worker:
            for step in steps:
                result = await self._step(worker, step, plan, order, ends=step is steps[-1])
                if result.outcome is not Outcome.PASSED:
                    await self._keep(result)
                    break
                passed.append(result)
        return passed

    async def _step(
        self, worker: StartingWorker, step: Step, plan: tuple[Step, ...], order: Order, *, ends: bool = False
    ) -> StepResult:
        """``ends``: the worker ends with this step, before a reset may close the driver."""
        async with self._turn(step, plan) as unexpected_holder:
            # Before the observation: a later request for a sibling finds a reset in the ledger, and the observation
            # finds what an earlier request has handed out.
            if plans.STEPS[step].marked:
                await self._record_start(step)
            result = await self._result(worker, step, order, unexpected_holder)
            return await (await worker).finish(result) if ends and result.outcome is Outcome.PASSED else result

    async def _result(
        self, worker: StartingWorker, step: Step, order: Order, unexpected_holder: Veto | None
    ) -> StepResult:
        if unexpected_holder is not None:
            result = self._aborted(step, unexpected_holder)
        elif plans.STEPS[step].only_reads:
            result = await self._read(worker, step, order)
        else:
            result = await self._change(worker, step, order)
        return step_results.judged(result, self._ledger.records[self.device])

    async def _keep(self, result: StepResult) -> bool:
        """Keep a result for the next row; what fails a step may also end the service. Whether the step has passed."""
        self._results.append(result)
        passed = result.outcome is Outcome.PASSED
        if result.step is Step.RESET or not passed:
            await self._append()
        return passed

    async def _read(self, worker: StartingWorker, step: Step, order: Order) -> StepResult:
        """Run a step during the observation. A veto kills the worker, and its result is dropped."""
        doing = asyncio.create_task(self._run_watched(worker, step, order))
        try:
            veto = self._veto(step, await self._observe(step))
            if veto is not None:
                await asyncio.wait({doing}, timeout=self._context.watch_every)
                if doing.done() and doing.result().outcome is Outcome.DIED:
                    # The dying worker may have disturbed the first observation: observe again.
                    veto = self._veto(step, await self._observe(step))
            return await doing if veto is None else self._aborted(step, veto)
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def _change(self, worker: StartingWorker, step: Step, order: Order) -> StepResult:
        """Run a step after the observation. A reset needs the driver released first.

        While the service cannot release the driver, the reset does not begin. That is not a fault of the device.
        """
        if step is Step.CLEAR:
            await (await worker).prepare()  # known as ours by now: the observation does not take it for a holder
        facts = await self._observe(step)
        veto = self._veto(step, facts)
        if veto is not None:
            return self._aborted(step, veto)
        if step is Step.EVICT:
            order = replace(order, unused=facts.holders == ())
        if step is Step.CLEAR:  # it overwrites what was written before this moment
            self._clear_began = self._context.now().uptime
            self._use_counter = facts.use_reading.words if facts.use_reading is not None else ""
        if step is not Step.RESET:  # the observation just taken is the last thing before the step
            return await self._run_watched(worker, step, order)
        try:
            async with self._context.slots.driver_release.during_reset(*self._domain()):
                # Again: the release may have taken long.
                veto = self._veto(step, await self._observe(step))
                if veto is not None:
                    return self._aborted(step, veto)
                return await self._run_watched(worker, step, order)
        except DeviceError as error:
            return self._aborted(step, Veto(Blame.SERVICE, str(error)))

    async def _run_watched(self, worker: StartingWorker, step: Step, order: Order) -> StepResult:
        """Run the step unless an unexpected holder appears on the device: then the worker is killed at once."""
        handle = await worker
        deadline = self._policy.deadline(step.value)
        began = self._context.now().uptime
        self.step_runs, self.progressed = (began, deadline), began if plans.STEPS[step].counts else None
        doing = asyncio.create_task(handle.do(step, self.path, order, deadline, self._progress))
        watching = asyncio.create_task(self._until_veto(step, partial(self._veto_during, step)))
        try:
            await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            veto = watching.result()
            await handle.kill()
            return replace(self._aborted(step, veto), seconds=(await doing).seconds)
        finally:
            doing.cancel()
            watching.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)

    def _aborted(self, step: Step, veto: Veto) -> StepResult:
        return StepResult(step, self.path, Outcome.ABORTED, 0.0, veto.why, veto.blame, veto.in_the_way)

    # -- unexpected holders

    async def _until_veto(self, step: Step, check: Callable[[Facts], Veto | None]) -> Veto:
        """Observe the device again and again, until ``check`` finds a reason to abort the step. Returns that reason."""
        while True:
            await asyncio.sleep(self._context.watch_every)
            veto = check(await self._observe(step))
            if veto is not None:
                return veto

    @asynccontextmanager
    async def _watching(self, step: Step) -> AsyncIterator[Callable[[], Veto | None]]:
        """Watch for unexpected holders inside the block. Yields a function that returns the one found so far, or None.

        An unexpected holder may have written to cleared and verified memory, even if it has left again.
        """
        # An observation that fails does not count here: the step itself begins with an observation.
        watching = asyncio.create_task(
            self._until_veto(step, lambda seen: self._veto(step, seen) if seen.holders else None)
        )
        try:
            yield lambda: watching.result() if watching.done() else None
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @asynccontextmanager
    async def _turn(self, step: Step, plan: tuple[Step, ...]) -> AsyncIterator[Veto | None]:
        """Hold the slot of a step. After a clear, yields the unexpected holder that appeared during the wait."""
        slots = self._context.slots
        async with AsyncExitStack() as turn:
            unexpected_holder = None
            if Step.CLEAR in plan[: plan.index(step)]:
                async with self._watching(step) as found:
                    await turn.enter_async_context(slots.at_driver(self.device, step))
                    unexpected_holder = found()
            else:
                await turn.enter_async_context(slots.at_driver(self.device, step))
            self.step = step
            try:
                yield unexpected_holder
            finally:
                self.step, self.step_runs, self.progressed = None, None, None

    def _veto_during(self, step: Step, facts: Facts) -> Veto | None:
        """Why a step that runs must not go on. Unknown holders end no evict.

        It overwrites nothing, and a process that it has just ended may still be on the driver's list.
        """
        if step is Step.EVICT and facts.holders is None:
            return None
        return self._veto(step, _under_reset(facts) if step is Step.RESET else facts)

    def _veto(self, step: Step, facts: Facts) -> Veto | None:
        return verdict.veto(self._ledger.records[self.device], self.id, step, facts, self._clear_began)

    async def _observe(self, step: Step) -> Facts:
        """Look who has the device. The first look that finds no holder is what the later ones rest on."""
        records = self._ledger.records
        record = records[self.device]
        if plans.STEPS[step].driver is plans.Driver.ALONE:  # it takes its siblings down, too
            facts = await self._observer.before_reset(record, self._siblings(records))
        else:
            facts = await (self._observer.for_step if self._free else self._observer.for_change)(record)
        self._free = facts.holders == ()
        return facts

    def _domain(self) -> tuple[str, ...]:
        """The devices that a reset takes down."""
        return self.device, *(sibling.device.uuid for sibling in self._siblings(self._ledger.records))

    def _siblings(self, records: Mapping[str, Record]) -> list[Record]:
        """The siblings in the reset domain. A sibling whose job is still queued counts as DIRTY."""
        record = records[self.device]
        waits = self._context.slots.waits
        return [
            replace(other, state=State.DIRTY) if waits(other.device.uuid) else other
            for other in reset_domains.siblings(record, records.values())
        ]

    # -- the ledger

    async def _record_start(self, step: Step) -> None:
        """Record the results so far, and that the step begins: a reset under the locks of its siblings.

        So either a grant of a sibling is recorded before the reset, or the decision about that grant finds the reset in
        the ledger.
        """
        siblings = self._siblings(self._ledger.records) if step is Step.RESET else []
        async with self._context.locks.of(it.device.uuid for it in siblings):
            await self._append(begins=step)

    async def _append(self, *events: ev.Event, begins: Step | None = None) -> None:
        """Record the results so far, with what begins, and the events in one transaction."""
        results, self._results = tuple(self._results), []  # now: a cancelled call has written them too
        steps = [ev.StepsRecorded(self.id, results, begins)] if results or begins is not None else []
        await self._ledger.append(self.op, *((self.device, event) for event in (*steps, *events)))

    def _own_record(self) -> Record | None:
        """The record of the device while the device still belongs to this job."""
        record = self._ledger.records[self.device]
        return record if record.scrubs.job is not None and record.scrubs.job.id == self.id else None

    # -- the end

    async def _conclude(self) -> bool:
        """Record what the path proved, and what the device reported. False when the job goes on with another path."""
        record = self._own_record()
        if record is None:
            return True
        record = changes.after(record, ev.StepsRecorded(self.id, tuple(self._results)), self._context.now())
        if record.scrubs.job is None:
            return True
        judged = verdict.judge(record.scrubs.job, record.health.baseline, self._policy)
        if isinstance(judged, Measurements):
            vitals, unexpected_holder = await self._last_vitals()
        else:
            vitals, unexpected_holder = await self._observer.health.vitals(self.device), None
        judged = verdict.confirmed(judged, vitals, record, self._policy, self._workers, self._ledger.records.values())
        if isinstance(judged, Measurements):
            judged = await self._still_alone(judged, unexpected_holder)
        event = self._conclusion(record, record.scrubs.job, judged, vitals)
        events: list[ev.Event] = [event]
        if isinstance(event, ev.ScrubPassed) and (ended := record.fence.ended) is not None:
            events.append(self._closed(record, ended, event))
        if isinstance(event, ev.ScrubFailed) and isinstance(judged, verdict.Failed) and judged.blame is Blame.UNDECIDED:
            noted = next_action.errors_to_note(record.health.baseline, vitals)  # the monitor must not count them again
            events += [noted] if noted is not None else []
        await self._append(*events)
        self.why = judged.detail if isinstance(judged, verdict.Failed) else ""
        self.receipt = event.receipt if isinstance(event, ev.ScrubPassed) else None
        self.used_in_passing = isinstance(event, ev.ScrubFailed) and event.unnamed
        return not isinstance(event, ev.Escalated)

    async def _last_vitals(self) -> tuple[Vitals | None, Veto | None]:
        """The vitals after the last step, and the unexpected holder that appeared meanwhile.

        The slot keeps resets of other devices away, because the driver is closed during a reset. If the answer is late,
        it is asked for once more.
        """
        self.step = Step.HEALTH  # as people see it
        async with self._watching(Step.HEALTH) as found, self._context.slots.at_driver(self.device, Step.HEALTH):
            vitals = await self._observer.health.vitals(self.device)
            if vitals is None or vitals.partial:
                await asyncio.sleep(self._observer.driver.patience)
                vitals = await self._observer.health.vitals(self.device)
            return vitals, found()

    async def _still_alone(self, judged: verdict.Verdict, unexpected_holder: Veto | None) -> verdict.Verdict:
        """Observe the device once more, after the last step and before the device is called clean."""
        facts = await self._observer.for_change(self._ledger.records[self.device])
        veto = unexpected_holder or self._veto(Step.HEALTH, facts)
        if veto is None:
            return judged
        return replace(verdict.failed(Step.HEALTH, veto.blame, veto.why), in_the_way=veto.in_the_way)

    def _conclusion(self, record: Record, job: Job, judged: verdict.Verdict, vitals: Vitals | None) -> ev.Event:
        now = self._context.now()
        if isinstance(judged, Measurements):
            name = (self.device_policy.rule, self._policy.proof_digest)
            receipt = verdict.write_receipt(record, job, replace(judged, witness=self._use_counter), name, now)
            if not self._policy.serial_in_receipts:
                record = replace(record, device=replace(record.device, serial=None))
            signer, reading = self._context.signer, self._observer.fence_reading(self.device)
            if signer is not None:
                receipt = signer.seal(record, receipt, closing.since_proof(record, reading))
            return ev.ScrubPassed(job.id, receipt, reading)
        escalate = not proof.forbids(self._policy, ScrubPath.RESET)
        quarantined = record.health.quarantine is not None
        given_up = verdict.given_up(record, now)
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

    def _closed(self, record: Record, ended: EndedTenancy, passed: ev.ScrubPassed) -> ev.TenancyClosed:
        signer, until_wiped = self._context.signer, closing.until_wiped(ended, passed.fence)
        signed = signer.close(record, ended, passed.receipt, until_wiped) if signer is not None else ""
        return ev.TenancyClosed(ended, passed.receipt.id, until_wiped, signed)

    async def _give_up(self, why: str) -> None:
        """End the job after a fault of the service.

        The device gets a setback: it is tried again with pauses, and is not offered meanwhile. A device that was proven
        bad before the fault is quarantined.
        """
        record = self._own_record()
        job = record.scrubs.job if record is not None else None
        proven = job is not None and verdict.proven_fault(job) is not None
        if record is not None and record.health.quarantine is None and not proven:
            await self._close(next_action.failure(record, why, Blame.SERVICE), why)
        else:
            await self._interrupt(why)

    async def _interrupt(self, why: str) -> None:
        record = self._own_record()
        if record is not None:
            await self._close(next_action.interruption(record, why, self._context.now()), why)

    async def _close(self, event: ev.Event, why: str) -> None:
        self.why = why
        try:
            await self._append(event)
        except LedgerUnavailable as error:
            self._unrecorded = str(error)

    # -- the worker

    async def _spawn(self) -> Worker:
        worker = await self._context.spawn(self.device, self._policy)
        self._workers.append(worker.pid)
        return worker

    def _progress(self, done: int, total: int) -> None:
        if self.progressed is not None and done != self.bytes_done:  # a worker may report the same number again
            self.progressed = self._context.now().uptime
        self.bytes_done, self.bytes_total = done, total
        self._changed.notify()


def order(policy: Policy, path: ScrubPath, key: str, tenancy: leftover.Span | None) -> Order:
    """What the steps of a path are to do under a policy."""
    return Order(
        patterns=policy.clear.passes.patterns,
        key=key,
        terminate_leftovers=policy.evict.leftovers is Eviction.TERMINATE,
        terminate_foreign=policy.evict.foreign is Eviction.TERMINATE,
        tenancy=tenancy,
        grace=policy.evict.grace,
        patience=policy.budgets.owner_wait,
        seconds=policy.selftest.time,
        census=CENSUS if path is ScrubPath.FAST else 1,
    )


@asynccontextmanager
async def own_worker(observer: Observer, spawn: Callable[[], Awaitable[Worker]]) -> AsyncIterator[StartingWorker]:
    """Start a worker that the observer does not take for an unexpected holder. It is gone when the block ends."""

    async def start() -> Worker:
        worker = await spawn()
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


def _under_reset(facts: Facts) -> Facts:
    """The facts during a reset: what is unknown does not stop the step, only a holder that is seen does.

    While a GPU is reset, the device files of its slices are gone, so the holders of the slices are unknown. A reset
    cannot be undone: killing the worker would only prevent it from creating the slices again. The worker itself has
    proven that the device is free.
    """
    return replace(facts, holders=facts.holders or (), siblings_busy=bool(facts.siblings_busy))
