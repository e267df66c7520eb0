"""Runs the steps of a path, one after the other, each with its deadline, in a worker that can be killed.

Decides nothing: before each step it says so, looks and asks the fence, during each step it watches for intruders,
after each step it reports. The first step that does not pass ends the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from scrubber.core import events as ev
from scrubber.core.answers import Fenced
from scrubber.core.model import Blame, Facts, Findings, Outcome, Path, Step, StepResult
from scrubber.devices.base import DeviceError, Progress
from scrubber.steps.base import Order


class Hand(Protocol):
    """A worker child, as the engine needs it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def do(self, step: Step, path: Path, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """One step's result, always: a child that is late or dies is a result too."""
        ...

    async def finish(self) -> bool:
        """Whether the child ended well after its last step."""
        ...

    async def kill(self) -> None:
        """Make sure that it is gone."""
        ...


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

    worker: Callable[[], AbstractAsyncContextManager[Hand]]  # gone when left, whatever happened
    look: Callable[[], Awaitable[Facts]]
    fence: Callable[[Step, Facts], Fenced | None]
    note: Callable[[ev.Event], Awaitable[None]]
    progress: Progress
    watch_every: float
    apart: Callable[[Step], AbstractAsyncContextManager[None]]  # what we must keep our own hands off while a step runs


async def run(task: Task, around: Surroundings) -> None:
    """Run the path. Everything that happens is noted before the next thing happens."""
    async with around.worker() as hand:
        for step in task.steps:
            # Said before we look: whoever would take the device, or a sibling, either sees this or is seen by us.
            await around.note(ev.StepStarted(task.job, step, task.path))
            fenced = around.fence(step, await around.look())
            if fenced is not None:
                await around.note(ev.StepFinished(task.job, _aborted(step, task.path, fenced)))
                return
            result = await _apart(hand, step, task, around)
            if step is task.steps[-1] and result.outcome is Outcome.PASSED and not await hand.finish():
                result = replace(result, outcome=Outcome.DIED, detail="the worker did not end well after its last step")
            await around.note(ev.StepFinished(task.job, result))
            if result.outcome is not Outcome.PASSED:
                return


async def _apart(hand: Hand, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step, with our own hands off. While we cannot let go, it is not begun; that is no fault of the device."""
    try:
        async with around.apart(step):
            fenced = around.fence(step, await around.look())  # again: that may have taken its time
            if fenced is not None:
                return _aborted(step, task.path, fenced)
            return await _watched(hand, step, task, around)
    except DeviceError as error:
        return _aborted(step, task.path, Fenced(Blame.SERVICE, str(error)))


async def _watched(hand: Hand, step: Step, task: Task, around: Surroundings) -> StepResult:
    """The step, unless somebody appears on the device: then the worker is killed at once."""
    doing = asyncio.create_task(hand.do(step, task.path, task.orders[step], task.deadlines[step], around.progress))
    watching = asyncio.create_task(_intruder(step, around))
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


async def _intruder(step: Step, around: Surroundings) -> Fenced:
    """Returns when the step must not go on."""
    while True:
        await asyncio.sleep(around.watch_every)
        fenced = around.fence(step, await around.look())
        if fenced is not None:
            return fenced


def _aborted(step: Step, path: Path, fenced: Fenced) -> StepResult:
    return StepResult(step, path, Outcome.ABORTED, 0.0, fenced.why, fenced.blame, Findings())
