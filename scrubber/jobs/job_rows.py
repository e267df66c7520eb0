"""The one writer of a job: its rows, and the results that wait for the next row.

A row marks what a kill may not lose, and is on the disk before the job acts on it: that a clear or a reset begins; the
end of a reset, for which siblings wait; a step that has not passed; what the path proved. The results of the other
steps wait here for the next row. A kill loses them, with an attempt that proved nothing.

A job does not hold the lock of its device, so somebody may end the job while it works, such as an operator who
quarantines the device. So ``own`` is asked before each end, and the ledger takes no result and no receipt of a job that
the device does not have any more. Only a reset takes other devices down: it begins under the locks of its siblings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scrubber.core import changes
from scrubber.core import events as ev
from scrubber.core.model import Facts, Job, Outcome, Step, StepResult
from scrubber.core.record import Record
from scrubber.jobs.job_context import JobContext
from scrubber.ledger.ledger import OvertakenError


@dataclass(slots=True)
class JobRows:
    """Writes what one job has done. ``op``: the operation that asked for the job."""

    context: JobContext
    op: str
    device: str
    job: str
    _results: list[StepResult] = field(default_factory=list)  # of the steps since the last row

    def own(self, *, waiting: bool = False) -> tuple[Record, Job] | None:
        """The record of the device, and the job in it, while the device still belongs to this job.

        ``waiting``: as the results that wait for the next row will leave it.
        """
        record = self.context.ledger.records[self.device]
        is_own = record.scrubs.job is not None and record.scrubs.job.id == self.job
        if waiting and is_own:
            record = changes.after(record, ev.StepsRecorded(self.job, tuple(self._results)), self.context.now())
        job = record.scrubs.job
        return (record, job) if is_own and job is not None else None

    async def keep(self, *results: StepResult) -> bool:
        """Keep results for the next row, up to the first step that has not passed. Whether all have passed.

        Such a step is written at once: what fails a step may also end the service.
        """
        for result in results:
            self._results.append(result)
            passed = result.outcome is Outcome.PASSED
            if result.step is Step.RESET or not passed:
                await self.append()
            if not passed:
                return False
        return True

    async def begin(self, step: Step, siblings: Iterable[str]) -> None:
        """Record the results so far, and that the step begins, under the locks of the siblings that a reset takes down.

        So either a grant of a sibling is recorded before the reset, or the decision about that grant finds the reset in
        the ledger.
        """
        async with self.context.locks.of(siblings):
            await self.append(begins=step)

    async def append(self, *events: ev.Event, begins: Step | None = None, seen: Facts | None = None) -> None:
        """Record the results so far, with what begins, and the events in one transaction."""
        results, self._results = tuple(self._results), []  # now: a cancelled call has written them too
        steps = [ev.StepsRecorded(self.job, results, begins)] if results or begins is not None else []
        rows = ((self.device, event) for event in (*steps, *events))
        try:
            await self.context.ledger.append(self.op, *rows, seen={} if seen is None else {self.device: seen})
        except OvertakenError:  # nothing was written
            self._results[:0] = results
            raise
