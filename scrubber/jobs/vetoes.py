"""What a path sees of its device, before each step and while it runs, and whether that stops the step.

A step that changes the device begins after a look of its own. A holder may appear at any time, so the looks go on until
the step has ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from ground import aio
from scrubber.core import plans, reset_domains, verdict
from scrubber.core.answers import Veto
from scrubber.core.model import Facts, State, Step
from scrubber.core.record import Record
from scrubber.jobs.job_context import JobContext


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

    async def last_look(self) -> Veto | None:
        """Look at the device once more after the last step: why it is not clean, although all steps have passed."""
        facts = await self.context.observer.for_change(self.context.ledger.records[self.device])
        return self._veto(Step.HEALTH, facts)

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
            facts = await observer.before_reset(record, self.siblings())
        else:
            facts = await (observer.for_step if self._free else observer.for_change)(record)
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
