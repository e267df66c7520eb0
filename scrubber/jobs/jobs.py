"""One scrub job per device: begun, joined, carried through to a verdict, or cut off.

A job belongs to the service, never to the caller who asked for it. Its events are in the ledger; what is here is only
what dies with the process: the running task and how far it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from policies.hardware import Slices
from policies.model import Eviction, Policy
from scrubber.core import answers, fence, leftover, pauses, siblings, upkeep, verdict
from scrubber.core import events as ev
from scrubber.core.model import Blame, Facts, Job, Moment, Record, State, Step, StepResult, Trigger, Vitals
from scrubber.core.model import Path as ScrubPath
from scrubber.devices.base import Address
from scrubber.ground import aio
from scrubber.ground.errors import LedgerUnavailable, NotReady, Reason
from scrubber.jobs import engine
from scrubber.jobs.job import Running
from scrubber.jobs.locks import DeviceLocks
from scrubber.jobs.slots import Slots
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.policy import DevicePolicy
from scrubber.steps.base import Order
from scrubber.workers.child import BrokenError

MENDS_WITHIN = 60.0  # seconds
Spawn = Callable[[str, Policy], Awaitable[engine.WorkerHandle]]  # for a device, as its policy wants it handled
Mend = Callable[[Address], Awaitable[engine.WorkerHandle]]  # to bring back what a reset owes


class Jobs:
    """The jobs that run now."""

    def __init__(
        self,
        ledger: Ledger,
        observer: Observer,
        spawn: Spawn,
        mend: Mend,
        now: Callable[[], Moment],
        token: Callable[[int], str],
        watch_every: float,
    ) -> None:
        """``token`` gives fresh hex of so many bytes: job ids and keys."""
        self.locks = DeviceLocks()
        self.slots = Slots(observer)
        self._ledger = ledger
        self._observer = observer
        self._spawn = spawn
        self._mend = mend
        self._now = now
        self._token = token
        self._watch_every = watch_every
        self._running: dict[str, Running] = {}
        self._stopping = False

    def of(self, device: str) -> Running | None:
        """The job that runs on a device."""
        return self._running.get(device)

    async def begin(
        self,
        device: str,
        path: ScrubPath,
        trigger: Trigger,
        device_policy: DevicePolicy,
        op: str,
        by: str = "autoclave",
    ) -> Running:
        """Record the job, then start it. The caller holds the device's lock and has decided."""
        return await aio.through(self._begin(device, path, trigger, device_policy, op, by))

    async def _begin(
        self, device: str, path: ScrubPath, trigger: Trigger, device_policy: DevicePolicy, op: str, by: str
    ) -> Running:  # fmt: skip
        job = Job(self._token(6), path, trigger, self._now())
        quarantined = self._ledger.records[device].state is State.QUARANTINED
        event = ev.ProbationStarted(job, by) if quarantined else ev.ScrubStarted(job)
        await self._ledger.append(op, (device, event))
        if self._stopping:  # stopped meanwhile: the next start closes what stands in the ledger now
            raise NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down; ask again when it is back")
        running = Running(job.id, device, op, device_policy, path, trigger)
        self._running[device] = running
        running.task = asyncio.create_task(self._carry(running), name=f"job {job.id}")
        return running

    async def cancel_unless_resetting(self, device: str) -> bool:
        """Stop a job that nobody needs now; False while it is at its reset, which has to come to its end.

        Asked just before the deed: a job goes on while others look at what it does.
        """
        running = self._running.get(device)
        if running is not None and running.step is Step.RESET:
            return False
        await self.cancel(device)
        return True

    async def cancel(self, device: str) -> None:
        """Stop a job that lost its device; what it did counts for nothing."""
        running = self._running.get(device)
        if running is None or running.task is None:
            return
        running.task.cancel()
        await asyncio.wait({running.task})
        if self._running.get(device) is running:  # cut before its first turn: it could not clear up after itself
            del self._running[device]
            running.cancelled = True
            running.end(self._ledger.records[device].state, 0.0)

    async def stop(self) -> None:
        """Cut all jobs off: the service goes down. Not a failure of any device."""
        self._stopping = True
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _carry(self, running: Running) -> None:
        """Carry a job through to its end, and record that end whatever it is."""
        started = self._now().uptime
        try:
            await self._scrub(running)
        except asyncio.CancelledError:
            running.cancelled = True
            await self._interrupt(running, "the service was stopped" if self._stopping else "it was cancelled")
        except LedgerUnavailable as error:  # still SCRUBBING: the monitor closes it once the ledger can be written
            running.unrecorded = error.message
        except BrokenError as error:  # no worker is to be had, which the nursery has logged
            await self._give_up(running, str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the device in SCRUBBING for ever
            if self._record(running) is not None:
                running.fault = error
                await self._give_up(running, f"a fault inside the service: {error!r}")
        finally:
            del self._running[running.device]
            running.end(self._ledger.records[running.device].state, self._now().uptime - started)

    async def _scrub(self, running: Running) -> None:
        """Path, verdict, consequence; the slow path after the fast one where policy says so."""
        key = self._token(16)
        while True:
            record = self._record(running)
            if record is None or record.job is None:
                return
            running.path = record.job.path
            async with self.slots.at_device(record, record.job):
                await engine.run(self._task(record, record.job, running, key), self._surroundings(running))
            if await self._concluded(running):
                return

    async def _concluded(self, running: Running) -> bool:
        """Record what the path proved, and what was reported. False when the job goes on with another path."""
        record = self._record(running)
        if record is None or record.job is None:
            return True
        policy = running.device_policy.policy
        judged = verdict.judge(record.job, record.baseline, policy)
        if isinstance(judged, verdict.Passed):
            vitals, met = await self._last_vitals(running)
        else:
            vitals, met = await self._observer.vitals(running.device), None
        judged = verdict.confirmed(judged, vitals, record.baseline, policy)
        if isinstance(judged, verdict.Passed):
            judged = await self._still_alone(running, judged, met)
        event = self._conclusion(record, record.job, judged, vitals, running.device_policy)
        await self._ledger.append(running.op, (running.device, event))
        running.why = judged.detail if isinstance(judged, verdict.Failed) else ""
        running.receipt = event.receipt if isinstance(event, ev.ScrubPassed) else None
        return not isinstance(event, ev.Escalated)

    async def _last_vitals(self, running: Running) -> tuple[Vitals | None, answers.Fenced | None]:
        """Not while another device is reset, when the driver is closed; and who is late once is not ill.

        With whoever was met on it meanwhile.
        """
        async with (
            engine.looking_out(Step.HEALTH, self._surroundings(running)) as met,
            self.slots.at_driver(Step.HEALTH),
        ):
            vitals = await self._observer.vitals(running.device)
            if vitals is None or vitals.partial:
                await asyncio.sleep(self._observer.patience)
                vitals = await self._observer.vitals(running.device)
            return vitals, met()

    def _conclusion(
        self, record: Record, job: Job, judged: verdict.Verdict, vitals: Vitals | None, device_policy: DevicePolicy
    ) -> ev.Event:
        if isinstance(judged, verdict.Passed):
            name = (device_policy.rule, device_policy.policy.proof_digest)
            return ev.ScrubPassed(job.id, verdict.write_receipt(record, job, judged, name, self._now()))
        escalate, confined = device_policy.policy.paths.escalate, record.quarantine is not None
        given_up = pauses.given_up(record, device_policy.policy, self._now())
        match verdict.consequence(judged, job.path, escalate=escalate, confined=confined, given_up=given_up):
            case verdict.Escalate(path):
                return ev.Escalated(job.id, judged.detail, path)
            case verdict.Confine(ailment):
                chance = int(self._token(2), 16) / 2**16
                return upkeep.confine(record, ailment, "autoclave", vitals, device_policy.policy, self._now(), chance)
            case verdict.StayConfined():
                return upkeep.interruption(record, judged.detail, self._now())
            case verdict.LeaveDirty():
                return ev.ScrubFailed(job.id, judged.detail)

    async def _still_alone(
        self, running: Running, judged: verdict.Verdict, met: answers.Fenced | None
    ) -> verdict.Verdict:
        """The last look, after the last step and before anybody may call it clean."""
        facts = await self._observer.full(self._ledger.records[running.device])
        fenced = met or self._fence(running, Step.HEALTH, facts)
        if fenced is not None:
            return verdict.failed(Step.HEALTH, fenced.blame, fenced.why)
        if running.cleared is not None and facts.observed_since > running.cleared:
            return verdict.failed(
                Step.HEALTH, Blame.SERVICE, "nobody could look at it for a while after it was cleared"
            )
        return judged

    async def _give_up(self, running: Running, why: str) -> None:
        """A fault of ours: a setback, so that the device is tried again with pauses and not offered meanwhile.

        Unless it was proven bad before that.
        """
        record = self._record(running)
        proven = record is not None and record.job is not None and verdict.proven_fault(record.job) is not None
        if record is not None and record.quarantine is None and not proven:
            await self._close(running, ev.ScrubFailed(running.id, why), why)
        else:
            await self._interrupt(running, why)

    async def _interrupt(self, running: Running, why: str) -> None:
        record = self._record(running)
        if record is not None:
            await self._close(running, upkeep.interruption(record, why, self._now()), why)

    async def _close(self, running: Running, event: ev.Event, why: str) -> None:
        running.why = why
        try:
            await self._ledger.append(running.op, (running.device, event))
        except LedgerUnavailable as error:
            running.unrecorded = error.message

    def _record(self, running: Running) -> Record | None:
        """The device's record while it still belongs to this job."""
        record = self._ledger.records[running.device]
        return record if record.job is not None and record.job.id == running.id else None

    def _fence(self, running: Running, step: Step, facts: Facts) -> answers.Fenced | None:
        return fence.check(self._ledger.records[running.device], running.id, step, facts)

    def _task(self, record: Record, job: Job, running: Running, key: str) -> engine.Task:
        policy = running.device_policy.policy
        steps = verdict.PLANS[job.path]
        deadlines = {step: getattr(policy.timeouts, step.value) for step in steps}
        order = Order(
            patterns=policy.clear.passes.patterns,
            key=key,
            terminate_leftovers=policy.evict.leftovers is Eviction.TERMINATE,
            terminate_foreign=policy.evict.foreign is Eviction.TERMINATE,
            tenancy=leftover.span(record),
            grace=policy.evict.grace,
            patience=policy.budgets.owner_wait,
            seconds=policy.selftest.time,
        )
        return engine.Task(job.id, job.path, steps, dict.fromkeys(steps, order), deadlines)

    def _surroundings(self, running: Running) -> engine.Surroundings:
        device = running.device

        async def look() -> Facts:
            record = self._ledger.records[device]
            facts = await self._observer.full(record, self._siblings(record))
            return replace(facts, domain_resetting=siblings.resetting(record, self._ledger.records.values()))

        async def note(event: ev.Event) -> None:
            # Under the siblings' locks: a grant of one of them comes wholly before the reset, or sees it.
            step = event.step if isinstance(event, ev.StepStarted) else None
            reset = step is Step.RESET
            others = [it.device.uuid for it in self._siblings(self._ledger.records[device])] if reset else []
            async with self.locks.of(others):
                running.step = step
                if step is Step.CLEAR:
                    running.cleared = self._now().uptime
                await self._ledger.append(running.op, (device, event))

        return engine.Surroundings(
            worker=lambda steps: self._worker(device, running.device_policy.policy, steps),
            look=look,
            fence=lambda step, facts: self._fence(running, step, facts),
            note=note,
            progress=running.report,
            watch_every=self._watch_every,
            turn=self.slots.at_driver,
            apart=lambda step: self._apart(device, step),
        )

    def _apart(self, device: str, step: Step) -> AbstractAsyncContextManager[None] | None:
        """A reset bears no look of ours at what it resets."""
        return self._observer.away(*self._domain(device)) if step is Step.RESET else None

    def _domain(self, device: str) -> list[str]:
        return [device, *(it.device.uuid for it in self._siblings(self._ledger.records[device]))]

    def _siblings(self, record: Record) -> list[Record]:
        """Those in its reset domain, as they are now. A job that waits for its turn has not touched its device yet."""
        device_policy = self._running[record.device.uuid].device_policy
        if record.device.parent is not None and device_policy.policy.reset.slices is Slices.RECREATE:
            return []  # it is made anew, alone
        return [
            replace(other, state=State.DIRTY) if self.slots.waits(other.device.uuid) else other
            for other in siblings.siblings(record, self._ledger.records.values())
        ]

    @asynccontextmanager
    async def _worker(self, device: str, policy: Policy, steps: tuple[Step, ...]) -> AsyncIterator[engine.Coming]:
        """A worker for this device, known to our eyes so that it is not taken for an intruder."""
        async with self.slots.at_memory(steps), self._ours(lambda: self._spawn(device, policy)) as coming:
            yield coming

    @asynccontextmanager
    async def _ours(self, make: Callable[[], Awaitable[engine.WorkerHandle]]) -> AsyncIterator[engine.Coming]:
        coming = asyncio.create_task(self._owned(make))
        try:
            yield coming
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
            if not coming.cancelled() and coming.exception() is None:
                await self._put_away(coming.result())

    async def _owned(self, make: Callable[[], Awaitable[engine.WorkerHandle]]) -> engine.WorkerHandle:
        hand = await make()
        self._observer.own(hand.pid)
        return hand

    async def _put_away(self, hand: engine.WorkerHandle) -> None:
        try:
            await hand.kill()
        finally:
            # Whatever is left of it now is somebody on the device, and must be seen as such.
            self._observer.disown(hand.pid)

    async def restore(self, device: str) -> StepResult | None:
        """Have a worker give a device what a reset still owes it; None where nothing is owed any more.

        It takes no job: the device may be one that is not offered, for its slices are what is owed.
        """
        async with self.slots.at_driver(Step.SETTINGS):
            address = (await self._observer.owed()).get(
                device
            )  # again: whoever had the driver may have brought it back
            if address is None:
                return None
            async with self._ours(lambda: self._mend(address)) as coming:
                hand = await coming
                return await hand.do(Step.SETTINGS, ScrubPath.SLOW, Order(), MENDS_WITHIN, lambda _done, _total: None)
