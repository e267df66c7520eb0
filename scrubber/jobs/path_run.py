"""One run of one path: its two workers and its steps, one after the other, up to the first one that does not pass.

Each step has a deadline, and runs in a worker process that can be killed. Before each step the path looks at the device
and asks whether there is a veto (``Vetoes``). A holder may appear at any time, so the looks go on until the step has
ended.

A step that only reads already runs while the device is observed, because observations take most of the time of a short
path. The result of such a step counts only without a veto by then.

A path has two workers, each with its share of the steps: up to the last step on memory, and the rest. The steps on
memory share a worker, because one step reads what another step wrote. The first worker opens the device only before
``clear``: until then it does not hold it. On a card its end takes longer than the rest of the path, so the second one
works meanwhile. Both have ended, and the device has its memory back, before the device is judged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ground import aio
from ground.aio import Changed
from policies.policy_model import Eviction, Policy
from scrubber.core import leftover, plans, reset_domains, step_results, verdict
from scrubber.core.answers import Veto
from scrubber.core.model import Blame, Facts, Moment, Outcome, ScrubPath, State, Step, StepResult, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.jobs.job_context import JobContext, StartingWorker, own_worker
from scrubber.jobs.job_rows import JobRows
from scrubber.steps.orders import Order
from scrubber.workers.worker import Worker

CENSUS = 16  # on the fast path, one part of the memory in so many is searched for residue


@dataclass(slots=True)
class JobProgress:
    """How far a job is. What is here is lost when the service ends."""

    now: Callable[[], Moment]
    changed: Changed = field(default_factory=Changed)  # told after each change
    step: Step | None = None  # the present one; None while the job waits for its turn
    step_runs: tuple[float, float] | None = None  # since which uptime the step runs, and for how many seconds
    progressed: float | None = None  # the uptime of the last progress of a step that counts its bytes
    bytes_done: int = 0  # of the present step
    bytes_total: int = 0

    def report(self, done: int, total: int) -> None:
        """The worker has done that much of the step."""
        if self.progressed is not None and done != self.bytes_done:  # a worker may report the same number again
            self.progressed = self.now().uptime
        self.bytes_done, self.bytes_total = done, total
        self.changed.notify()


@dataclass(slots=True)
class PathRun:
    """One run of one path."""

    context: JobContext
    path: ScrubPath
    policy: Policy
    vetoes: Vetoes
    rows: JobRows
    progress: JobProgress
    pids: list[int]  # of the workers of the job so far
    order: Order
    use_counter: str = ""  # when the clear began: if it is lost before the end, the path proves nothing

    async def run(self) -> None:
        """Run the steps of the path, up to the first one that does not pass. ``rows`` gets each result."""
        first, second = plans.SHARES[self.path]
        async with AsyncExitStack() as until_it_ends, self._worker() as worker:
            last = await self._run_first_share(worker, first, until_it_ends)
            if last is None:
                return
            async with aio.beside(self._let_end(await worker, last, until_it_ends)) as ending:
                passed = await self._run_second_share(second)
                passed.insert(0, await ending)
        await self.rows.keep(*passed)

    def _worker(self) -> AbstractAsyncContextManager[StartingWorker]:
        return own_worker(self.context.observer, partial(self.context.spawn, self.rows.device, self.policy), self.pids)

    async def _run_first_share(
        self, worker: StartingWorker, steps: tuple[Step, ...], until_it_ends: AsyncExitStack
    ) -> StepResult | None:
        """Run the steps up to the last one on memory. Returns its result; None if a step has not passed."""
        *early, last = steps
        if Step.RESET in early:  # once the worker has ended: until then its reset tool counts as ours
            until_it_ends.callback(lambda: self.context.observer.doubt(self._domain()))
        for step in early:
            if step is plans.FIRST_ON_MEMORY:
                await until_it_ends.enter_async_context(self.context.slots.at_memory(self.rows.device, steps))
            if not await self.rows.keep(await self._step(worker, step)):
                return None
        return await self._run_and_hold(worker, last)

    async def _let_end(self, worker: Worker, last: StepResult, until_it_ends: AsyncExitStack) -> StepResult:
        """The result of the last step of a worker, which stands only if the worker ends well."""
        last = await worker.finish(last)
        # Another process may have its pid while the rest waits its turn.
        self.context.observer.holders.disown(worker.pid)
        await until_it_ends.aclose()
        return last

    async def _run_second_share(self, steps: tuple[Step, ...]) -> list[StepResult]:
        """Run the steps after those on memory. Returns the results up to the first step that has not passed."""
        passed = list[StepResult]()
        async with self._worker() as worker:
            for step in steps:
                result = await self._run_and_hold(worker, step, ends=step is steps[-1])
                if result is None:
                    break
                passed.append(result)
        return passed

    async def _run_and_hold(self, worker: StartingWorker, step: Step, *, ends: bool = False) -> StepResult | None:
        """Run a step. A result that has passed is returned: it is kept only once the first worker has ended.

        Any other result is recorded here, before the worker is killed: a cancelled job then loses no fault.
        """
        result = await self._step(worker, step, ends=ends)
        if result.outcome is Outcome.PASSED:
            return result
        await self.rows.keep(result)
        return None

    async def _step(self, worker: StartingWorker, step: Step, *, ends: bool = False) -> StepResult:
        """``ends``: the worker ends with this step, before a reset may close the driver."""
        async with self._turn(step) as unexpected_holder:
            # Before the observation: a later request for a sibling finds a reset in the ledger, and the observation
            # finds what an earlier request has handed out.
            if plans.STEPS[step].marked:
                await self.rows.begin(step, self._domain()[1:] if step is Step.RESET else ())
            result = await self._result(worker, step, unexpected_holder)
            return await (await worker).finish(result) if ends and result.outcome is Outcome.PASSED else result

    @asynccontextmanager
    async def _turn(self, step: Step) -> AsyncIterator[Veto | None]:
        """Hold the slot of a step. After a clear, yields the unexpected holder that appeared during the wait."""
        plan, progress = plans.PLANS[self.path], self.progress
        watch = self.vetoes.watching(step) if Step.CLEAR in plan[: plan.index(step)] else nullcontext()
        async with AsyncExitStack() as turn:
            async with watch as watching:
                await turn.enter_async_context(self.context.slots.at_driver(self.rows.device, step))
                unexpected_holder = watching.result() if watching is not None and watching.done() else None
            progress.step = step
            try:
                yield unexpected_holder
            finally:
                progress.step, progress.step_runs, progress.progressed = None, None, None

    async def _result(self, worker: StartingWorker, step: Step, unexpected_holder: Veto | None) -> StepResult:
        if unexpected_holder is not None:
            result = self._aborted(step, unexpected_holder)
        elif step is Step.RESET:
            result = await self._reset(worker)
        else:
            result = await (self._read if plans.STEPS[step].only_reads else self._change)(worker, step)
        return step_results.judged(result, self.context.ledger.records[self.rows.device])

    async def _reset(self, worker: StartingWorker) -> StepResult:
        """Reset after two observations: one before the service releases the driver, and one after that.

        While the service cannot release the driver, the reset does not begin. That is not a fault of the device.
        """
        step = Step.RESET
        _, veto = await self.vetoes.look(step)
        if veto is not None:
            return self._aborted(step, veto)
        try:
            async with self.context.slots.driver_release.during_reset(*self._domain()):
                _, veto = await self.vetoes.look(step)  # again: the release may have taken long
                return await self._run_watched(worker, step, self.order) if veto is None else self._aborted(step, veto)
        except DeviceError as error:
            return self._aborted(step, Veto(Blame.SERVICE, str(error)))

    async def _change(self, worker: StartingWorker, step: Step) -> StepResult:
        """Run a step after the observation, which is the last thing before the step."""
        if step is Step.CLEAR:
            await (await worker).prepare()  # known as ours by now: the observation does not take it for a holder
        facts, veto = await self.vetoes.look(step)
        if veto is not None:
            return self._aborted(step, veto)
        order = self.order if step is not Step.EVICT else replace(self.order, unused=facts.holders == ())
        if step is Step.CLEAR:
            self.use_counter = facts.use_reading.words if facts.use_reading is not None else ""
        return await self._run_watched(worker, step, order)

    async def _read(self, worker: StartingWorker, step: Step) -> StepResult:
        """Run a step during the observation. A veto kills the worker, and its result is dropped."""
        async with aio.beside(self._run_watched(worker, step, self.order)) as doing:
            _, veto = await self.vetoes.look(step)
            if veto is not None:
                await asyncio.wait({doing}, timeout=self.context.watch_every)
                if doing.done() and doing.result().outcome is Outcome.DIED:
                    # The dying worker may have disturbed the first observation: observe again.
                    _, veto = await self.vetoes.look(step)
            return await doing if veto is None else self._aborted(step, veto)

    async def _run_watched(self, worker: StartingWorker, step: Step, order: Order) -> StepResult:
        """Run the step unless an unexpected holder appears on the device: then the worker is killed at once."""
        handle, progress = await worker, self.progress
        deadline = self.policy.deadline(step.value)
        began = self.context.now().uptime
        if step is Step.CLEAR:  # it overwrites what was written before this moment
            self.vetoes.clear_began = began
        progress.step_runs, progress.progressed = (began, deadline), began if plans.STEPS[step].counts else None
        work = handle.do(step, self.path, order, deadline, progress.report)
        async with aio.beside(work) as doing, aio.beside(self.vetoes.during(step)) as watching:
            await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            veto = watching.result()
            await handle.kill()
            return replace(self._aborted(step, veto), seconds=(await doing).seconds)

    def _aborted(self, step: Step, veto: Veto) -> StepResult:
        return StepResult(step, self.path, Outcome.ABORTED, 0.0, veto.why, veto.blame, veto.in_the_way)

    def _domain(self) -> tuple[str, ...]:
        """The devices that a reset takes down."""
        return self.rows.device, *(sibling.device.uuid for sibling in self.vetoes.siblings())

    async def last_vitals(self) -> tuple[Vitals | None, Veto | None]:
        """The vitals after the last step, and the unexpected holder that appeared meanwhile.

        The slot keeps resets of other devices away, because the driver is closed during a reset. If the answer is late,
        it is asked for once more.
        """
        observer, device = self.context.observer, self.rows.device
        self.progress.step = Step.HEALTH  # as people see it
        slot = self.context.slots.at_driver(device, Step.HEALTH)
        async with self.vetoes.watching(Step.HEALTH) as watching, slot:
            vitals = await observer.health.vitals(device)
            if vitals is None or vitals.partial:
                await asyncio.sleep(observer.driver.patience)
                vitals = await observer.health.vitals(device)
            return vitals, watching.result() if watching.done() else None


def order_for(policy: Policy, path: ScrubPath, key: str, tenancy: leftover.Span | None) -> Order:
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


@dataclass(slots=True)
class Vetoes:
    """What may stop one path of a job."""

    context: JobContext
    device: str
    job: str
    clear_began: float = math.inf  # the uptime at which the clear of the path began
    _free: bool = False  # whether the last observation found no holder

    async def look(self, step: Step) -> tuple[Facts, Veto | None]:
        """What is seen of the device now, and why the step must not run."""
        facts = await self._observe(step)
        return facts, self._veto(step, facts)

    async def last_look(self) -> tuple[Facts, Veto | None]:
        """Look at the device once more after the last step: why it is not clean, although all steps have passed."""
        facts = await self.context.observer.look(self.context.ledger.records[self.device], Purpose.CHANGE)
        return facts, self._veto(Step.HEALTH, facts)

    async def during(self, step: Step) -> Veto:
        """Look again and again while the step runs. Returns the first reason to abort it."""
        return await self._until(step, self._veto_during)

    def watching(self, step: Step) -> AbstractAsyncContextManager[asyncio.Task[Veto]]:
        """Watch for unexpected holders inside the block. The task is done as soon as one is found.

        An unexpected holder may have written to cleared and verified memory, even if it has left again.
        """
        # An observation that fails does not count here: the step itself begins with an observation.
        return aio.beside(self._until(step, lambda step, seen: self._veto(step, seen) if seen.holders else None))

    def siblings(self) -> list[Record]:
        """The siblings in the reset domain. A sibling whose job is still queued counts as DIRTY."""
        records = self.context.ledger.records
        waits = self.context.slots.waits
        return [
            replace(other, state=State.DIRTY) if waits(other.device.uuid) else other
            for other in reset_domains.siblings(records[self.device], records.values())
        ]

    async def _until(self, step: Step, check: Callable[[Step, Facts], Veto | None]) -> Veto:
        """Observe the device again and again, until ``check`` finds a reason to abort the step. Returns that reason."""
        while True:
            await asyncio.sleep(self.context.watch_every)
            veto = check(step, await self._observe(step))
            if veto is not None:
                return veto

    async def _observe(self, step: Step) -> Facts:
        """Look who has the device. After a look that found no holder, the next one may rest on it."""
        record, observer = self.context.ledger.records[self.device], self.context.observer
        if plans.STEPS[step].driver is plans.Driver.ALONE:  # it takes its siblings down, too
            facts = await observer.look(record, Purpose.RESET, siblings=self.siblings())
        else:
            facts = await observer.look(record, Purpose.STEP if self._free else Purpose.CHANGE)
        self._free = facts.holders == ()
        return facts

    def _veto_during(self, step: Step, facts: Facts) -> Veto | None:
        """Why a step that runs must not go on. Unknown holders end no evict.

        It overwrites nothing, and a process that it has just ended may still be on the driver's list.
        """
        if step is Step.EVICT and facts.holders is None:
            return None
        return self._veto(step, _under_reset(facts) if step is Step.RESET else facts)

    def _veto(self, step: Step, facts: Facts) -> Veto | None:
        return verdict.veto(self.context.ledger.records[self.device], self.job, step, facts, self.clear_began)


def _under_reset(facts: Facts) -> Facts:
    """The facts during a reset: what is unknown does not stop the step, only a holder that is seen does.

    While a GPU is reset, the device files of its slices are gone, so the holders of the slices are unknown. A reset
    cannot be undone: killing the worker would only prevent it from creating the slices again. The worker itself has
    proven that the device is free.
    """
    return replace(facts, holders=facts.holders or (), siblings_busy=bool(facts.siblings_busy))
