"""Runs the steps of a path, one after the other, each with its deadline, in a worker that can be killed.

Decides nothing: before each step it says so, looks and asks the fence, during each step it watches for intruders,
after each step it reports. The first step that does not pass ends the path. A step that only reads is begun while that
look is taken, for most of a short path is looks; what it found counts when the fence has let it pass.

Steps that have the memory in hand share a worker, for what one reads another wrote. It has ended before anything else
is looked at or changed on the device, and the others have ended before it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from scrubber.core import events as ev
from scrubber.core.answers import Fenced
from scrubber.core.model import Blame, Facts, Findings, Outcome, Path, Step, StepResult
from scrubber.devices.base import DeviceError, Progress
from scrubber.steps.base import Order

ON_MEMORY = frozenset({Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SELFTEST})
READING = frozenset({Step.VERIFY, Step.HEALTH})  # nothing on the device is changed by them


class WorkerHandle(Protocol):
    """A worker child, as the engine needs it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def do(self, step: Step, path: Path, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """One step's result, always: a child that is late or dies is a result too."""
        ...

    async def finish(self, last: StepResult) -> StepResult:
        """The result of its last step, if it then ended well, and is gone; that it did not, otherwise."""
        ...

    async def kill(self) -> None:
        """Make sure that it is gone."""
        ...


Coming = asyncio.Task[WorkerHandle]  # a worker that is being made while whoever needs it still looks


@dataclass(frozen=True, slots=True)
class Task:
    """One path to run for one job."""

    job: str
    path: Path
    steps: tuple[Step, ...]
    orders: Mapping[Step, Order]
    deadlines: Mapping[Step, float]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine asks of whoever runs it."""

    worker: Callable[[tuple[Step, ...]], AbstractAsyncContextManager[Coming]]  # gone when left, whatever happened
    look: Callable[[], Awaitable[Facts]]
    fence: Callable[[Step, Facts], Fenced | None]
    note: Callable[[ev.Event], Awaitable[None]]
    progress: Progress
    watch_every: float
    turn: Callable[[Step], AbstractAsyncContextManager[None]]  # when nothing of ours is in the way of a step
    apart: Callable[[Step], AbstractAsyncContextManager[None] | None]  # how we keep our own hands off, where we have to


async def run(task: Task, around: Surroundings) -> None:
    """Run the path. Everything that happens is noted before the next thing happens."""
    for _, together in groupby(task.steps, ON_MEMORY.__contains__):
        steps = tuple(together)
        async with around.worker(steps) as coming:
            if not await _all_passed(coming, steps, task, around):
                return


async def _all_passed(coming: Coming, steps: tuple[Step, ...], task: Task, around: Surroundings) -> bool:
    """What one worker has to do."""
    for step in steps:
        written = Step.CLEAR in task.steps[: task.steps.index(step)]
        async with _in_turn(step, around) if written else around.turn(step) as met:
            # Said before we look: whoever would take the device, or a sibling, either sees this or is seen by us.
            await around.note(ev.StepStarted(task.job, step, task.path))
            if not await _passed(coming, step, task, around, met, last=step is steps[-1]):
                return False
    return True


@asynccontextmanager
async def looking_out(step: Step, around: Surroundings) -> AsyncIterator[Callable[[], Fenced | None]]:
    """Looks go on inside, and what speaks against the step can be asked for: who was met on the device so far.

    What was written and read back may have been written over, though nobody is there any more.
    """
    # That nobody can look says nothing here: the step begins with a look.
    watching = asyncio.create_task(_intruder(around, lambda seen: around.fence(step, seen) if seen.holders else None))
    try:
        yield lambda: watching.result() if watching.done() else None
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@asynccontextmanager
async def _in_turn(step: Step, around: Surroundings) -> AsyncIterator[Fenced | None]:
    """The turn of a step, with who was met while it was waited for."""
    async with AsyncExitStack() as turn:
        async with looking_out(step, around) as met:
            await turn.enter_async_context(around.turn(step))
            found = met()
        yield found


async def _passed(
    coming: Coming, step: Step, task: Task, around: Surroundings, met: Fenced | None, *, last: bool
) -> bool:
    if met is not None:
        result = _aborted(step, task.path, met)
    elif step in READING:
        result = await _while_looked(coming, step, task, around)
    else:
        result = await _fenced(coming, step, task, around)
    if last and result.outcome is Outcome.PASSED:
        result = await (await coming).finish(result)
    await around.note(ev.StepFinished(task.job, result))
    return result.outcome is Outcome.PASSED


async def _while_looked(coming: Coming, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step beside the look. Where the fence says no, the worker is killed and whatever it found is nothing."""
    doing = asyncio.create_task(_watched(coming, step, task, around))
    try:
        fenced = around.fence(step, await around.look())
        if fenced is not None and await _has_died(doing, around.watch_every):
            fenced = around.fence(step, await around.look())  # the first look may have met the worker dying
        return await doing if fenced is None else _aborted(step, task.path, fenced)
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def _has_died(doing: asyncio.Task[StepResult], within: float) -> bool:
    await asyncio.wait({doing}, timeout=within)
    return doing.done() and doing.result().outcome is Outcome.DIED


async def _fenced(coming: Coming, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step after the look."""
    fenced = around.fence(step, await around.look())
    return await _apart(coming, step, task, around) if fenced is None else _aborted(step, task.path, fenced)


async def _apart(coming: Coming, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step, with our own hands off. While we cannot let go, it is not begun; that is no fault of the device."""
    apart = around.apart(step)
    if apart is None:  # nothing to let go of, so that the look just taken is still the last before the step
        return await _watched(coming, step, task, around)
    try:
        async with apart:
            fenced = around.fence(step, await around.look())  # again: that may have taken its time
            if fenced is not None:
                return _aborted(step, task.path, fenced)
            return await _watched(coming, step, task, around)
    except DeviceError as error:
        return _aborted(step, task.path, Fenced(Blame.SERVICE, str(error)))


async def _watched(coming: Coming, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step, unless somebody appears on the device: then the worker is killed at once."""
    hand = await coming
    doing = asyncio.create_task(hand.do(step, task.path, task.orders[step], task.deadlines[step], around.progress))
    regard = _under_reset if step is Step.RESET else _as_seen
    watching = asyncio.create_task(_intruder(around, lambda seen: around.fence(step, regard(seen))))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        fenced = watching.result()
        await hand.kill()
        seconds = (await doing).seconds
        return replace(_aborted(step, task.path, fenced), seconds=seconds)
    finally:
        doing.cancel()
        watching.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _intruder(around: Surroundings, against: Callable[[Facts], Fenced | None]) -> Fenced:
    """Look again and again; returns when what is seen speaks against it."""
    while True:
        await asyncio.sleep(around.watch_every)
        fenced = against(await around.look())
        if fenced is not None:
            return fenced


def _as_seen(facts: Facts) -> Facts:
    return facts


def _under_reset(facts: Facts) -> Facts:
    """Only who is seen can be an intruder on what is being reset.

    The files of slices go while their GPU is reset, so that nobody can tell who has them open; and to end the worker
    would call no reset back, only keep it from giving the slices back. It has proven itself that nobody is there.
    """
    return replace(facts, holders=facts.holders or (), siblings_busy=bool(facts.siblings_busy))


def _aborted(step: Step, path: Path, fenced: Fenced) -> StepResult:
    return StepResult(step, path, Outcome.ABORTED, 0.0, fenced.why, fenced.blame, Findings())
