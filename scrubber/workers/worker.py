"""The service's hand on a worker child: whatever happens, a step ends with a result, in time, and with no child left.

Only a report that the child itself gave can be PASSED. A child that is late, dies, or says anything that is not exactly
a frame is killed, and that is its result.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from pydantic import TypeAdapter, ValidationError

from scrubber.core.model import Blame, Outcome, Path, Step, StepResult
from scrubber.steps.base import Order, Report
from scrubber.workers import worker_wire
from scrubber.workers.child import BrokenError, Child, Ending
from scrubber.workers.nursery import Nursery

_ENDS_WITHIN = 2.0  # seconds that are waited for one that nobody asks anything any more
_LEAVES_WITHIN = 10.0  # dismissed or killed: the kernel takes all memory of a device back before it is gone
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
_ANSWER = TypeAdapter(worker_wire.Answer)

OnProgress = Callable[[int, int], None]


class Worker:
    """One child for one device, for one job."""

    def __init__(self, child: Child) -> None:
        """See ``spawn``."""
        self._child = child

    @classmethod
    async def spawn(cls, assignment: worker_wire.Assignment, nursery: Nursery) -> Self:
        """Start a child; BrokenError if there is none to be had. One that dies at once is noticed by the first step."""
        worker = cls(await nursery.spawn())
        try:
            worker._child.say(worker_wire.encode(assignment))
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
                report = await self._converse(worker_wire.StepRequest(step, order), on_progress)
        except TimeoutError:
            text = f"{step.value} was not done within {deadline:g} s"
            report = Report(Outcome.TIMED_OUT, f"{text}; {self._told(await self._put_down())}", _blame(step))
        except BrokenError as error:
            ending = await self._put_down()
            text = f"{step.value} has no result: {error}; {self._told(ending)}"
            report = Report(Outcome.DIED, text, self._blame(step, ending))
        finally:
            if report is None:  # cancelled, or the listener failed: nobody will ask this child again
                await self.kill()
        seconds = time.monotonic() - began
        return StepResult(step, path, report.outcome, seconds, report.detail, report.blame, report.findings)

    async def finish(self, last: StepResult) -> StepResult:
        """Dismiss the child. Its last result stands if it then ended well and soon; otherwise nobody believes it."""
        self._child.hang_up()
        ending: Ending | None = None
        try:
            ending = await self._child.end(_LEAVES_WITHIN)
        finally:
            if ending is None:
                await self.kill()
        if ending is not None and ending.status == 0:
            return last
        how = self._told(ending) if ending is not None else f"it was not gone within {_LEAVES_WITHIN:g} s"
        detail = f"its worker did not end well after {last.step.value}: {how}"
        return replace(last, outcome=Outcome.DIED, detail=detail, blame=self._blame(last.step, ending))

    async def kill(self) -> None:
        """End the child now; waits a moment for it to be gone."""
        self._child.kill()
        await self._child.leave(_ENDS_WITHIN)

    async def _converse(self, task: worker_wire.StepRequest, on_progress: OnProgress) -> Report:
        self._child.say(worker_wire.encode(task))
        while True:
            match _answer(await self._child.hear()):
                case worker_wire.Answer(progress=(done, total), report=None):
                    on_progress(done, total)
                case worker_wire.Answer(progress=None, report=Report() as report):
                    return report
                case _:
                    raise BrokenError("it said what is neither progress nor a report")

    async def _put_down(self) -> Ending | None:
        self._child.kill()
        return await self._child.end(_LEAVES_WITHIN)

    def _told(self, ending: Ending | None) -> str:
        if ending is None:
            why = "its zygote was lost, and it is not gone yet" if self._child.orphaned else "it is stuck in the driver"
            return f"its worker (pid {self.pid}) cannot be killed: {why}"
        how = "in a way that nobody can tell" if ending.status is None else f"with status {ending.status}"
        if ending.orphaned:
            how = "with the zygote that it was forked from"
        return " ".join(filter(None, (f"its worker ended {how}", self._child.complaint)))

    def _blame(self, step: Step, ending: Ending | None) -> Blame:
        """Whose fault it is that a worker ended as it did, or was killed and is not gone."""
        if self._child.orphaned or (ending is not None and not _own(ending)):
            return Blame.SERVICE
        return _blame(step)


def _blame(step: Step) -> Blame:
    """Whose fault it is that a step came to no end."""
    # Evict touches processes, not the device: what keeps it from an end is theirs, a dead file system for one.
    return Blame.TENANT if step is Step.EVICT else Blame.DEVICE


def _own(ending: Ending) -> bool:
    """Whether a worker crashed in the driver's library.

    What else a device does wrong is told in a report: a worker that exits without one has met an error of ours, or a
    node's. No device sends SIGKILL (a node without memory does) or loses a zygote.
    """
    return ending.status is not None and -ending.status in _CRASHES


def _answer(line: bytes) -> worker_wire.Answer:
    try:
        return _ANSWER.validate_json(line, strict=True)
    except ValidationError as error:
        raise BrokenError(f"it said what is no frame ({error.error_count()} faults)") from error
