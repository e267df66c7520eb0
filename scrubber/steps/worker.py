"""The service's hand on a worker child: whatever happens, a step ends with a result, in time, and with no child left.

Only a report that the child itself gave can be PASSED. A child that is late, dies, or says anything that is not exactly
a frame is killed, and that is its result.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

from pydantic import TypeAdapter, ValidationError

from scrubber.core.model import Blame, Outcome, Path, Step, StepResult
from scrubber.steps import frames
from scrubber.steps.base import Order, Report
from scrubber.steps.child import BrokenError, Child

PROGRAM = (sys.executable, "-P", "-m", "scrubber.steps")
_ENDS_WITHIN = 2.0
_ANSWER = TypeAdapter(frames.Answer)

OnProgress = Callable[[int, int], None]


class Worker:
    """One child for one device, for one job."""

    def __init__(self, child: Child) -> None:
        """See ``spawn``."""
        self._child = child

    @classmethod
    async def spawn(cls, assignment: frames.Assignment, program: Sequence[str] = PROGRAM) -> Self:
        """Start a child. One that dies at once is noticed by the first step."""
        worker = cls(await Child.start(program))
        try:
            worker._child.say(frames.encode(assignment))
        except BrokenError:
            worker._child.kill()
        return worker

    @property
    def pid(self) -> int:
        """The child's process id: it is no holder of the device, although it has the memory open."""
        return self._child.pid

    async def do(self, step: Step, path: Path, order: Order, deadline: float, on_progress: OnProgress) -> StepResult:
        """Run one step. After anything but a report of the child's own, the worker is used up."""
        began = time.monotonic()
        report: Report | None = None
        try:
            async with asyncio.timeout(deadline):
                report = await self._converse(frames.Task(step, order), on_progress)
        except TimeoutError:
            text = f"{step.value} was not done within {deadline:g} s"
            report = Report(Outcome.TIMED_OUT, f"{text}; {await self._put_down()}", _blame(step))
        except BrokenError as error:
            text = f"{step.value} has no result: {error}"
            report = Report(Outcome.DIED, f"{text}; {await self._put_down()}", _blame(step))
        finally:
            if report is None:  # cancelled, or the listener failed: nobody will ask this child again
                await self.kill()
        seconds = time.monotonic() - began
        return StepResult(step, path, report.outcome, seconds, report.detail, report.blame, report.findings)

    async def finish(self) -> bool:
        """Dismiss the child; False if it did not end well and at once, and had to be killed or had failed."""
        self._child.hang_up()
        status: int | None = None
        try:
            status = await self._child.end(_ENDS_WITHIN)
        finally:
            if status is None:
                await self.kill()
        return status == 0

    async def kill(self) -> None:
        """End the child now; waits a moment for it to be gone."""
        self._child.kill()
        await self._child.end(_ENDS_WITHIN)

    async def _converse(self, task: frames.Task, on_progress: OnProgress) -> Report:
        self._child.say(frames.encode(task))
        while True:
            match _answer(await self._child.hear()):
                case frames.Answer(progress=(done, total), report=None):
                    on_progress(done, total)
                case frames.Answer(progress=None, report=Report() as report):
                    return report
                case _:
                    raise BrokenError("it said what is neither progress nor a report")

    async def _put_down(self) -> str:
        self._child.kill()
        status = await self._child.end(_ENDS_WITHIN)
        if status is None:
            return f"its worker (pid {self.pid}) cannot be killed: it is stuck in the driver"
        return " ".join(filter(None, (f"its worker ended with status {status}", self._child.complaint)))


def _blame(step: Step) -> Blame:
    """Evict touches processes, not the device: what keeps it from an end is theirs, a dead file system for one."""
    return Blame.TENANT if step is Step.EVICT else Blame.DEVICE


def _answer(line: bytes) -> frames.Answer:
    try:
        return _ANSWER.validate_json(line, strict=True)
    except ValidationError as error:
        raise BrokenError(f"it said what is no frame ({error.error_count()} faults)") from error
