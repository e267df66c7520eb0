"""A node on which the scrub service, and programs that ask it, die one by one: tasks of one loop in virtual time.

The tasks of a killed program end, and the others see what they would see of a dead process.
"""

import asyncio
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ground.device_messages import GrantedDevice
from ground.errors import NotReady, Reason, Unreachable
from scrubber.api import client
from scrubber.core import events as ev
from tests.service.virtual import VirtualLoop, is_kill
from tests.service.world import World

LAG = 0.2  # seconds until the list shows a change
SIDE: ContextVar[str] = ContextVar("SIDE", default="service")


class SidedWorld(World):
    """A node whose service does not take the tasks of other programs with it when it dies."""

    def __init__(self, loop: VirtualLoop, names, **more) -> None:
        super().__init__(loop, **more)
        self.sides: dict[str, dict[asyncio.Task[Any], None]] = {name: {} for name in names}  # tasks in order
        self.wrong: list[str] = []  # broken promises
        loop.set_task_factory(self._task)

    def on(self, side, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task on one side; it ends with it."""
        context = copy_context()
        context.run(SIDE.set, side)
        return self.loop.create_task(work, context=context)

    def end_side(self, side):
        for task in list(self.sides[side]):
            task.cancel()

    def accuse(self, text):
        """A promise is broken."""
        self.wrong.append(f"{self.loop.time():.2f}: {text}")

    def judge(self):
        """Accuse what is wrong at any time."""

    def leave(self):
        """End all programs."""
        for side in self.sides:
            self.end_side(side)
        self.loop.advance(0.0)
        if self.up:
            self.loop.run_until_complete(self.die())
        self.close()

    def _task(self, loop, work, **more) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        side = more["context"].get(SIDE, "service") if "context" in more else SIDE.get()
        if side in self.sides:
            self.sides[side][task] = None
            task.add_done_callback(self.sides[side].pop)
        return task

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return super()._tasks().difference(*self.sides.values())

    def scrubs(self, uuid) -> int:
        """How many scrubs of a device have passed."""
        return sum(entry.device == uuid and isinstance(entry.event, ev.ScrubPassed) for entry in self.truth.entries)


class SidedHistories(RuleBasedStateMachine):
    """Random histories of such a node. A subclass makes ``world``."""

    world: Any

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.directory = Path(tempfile.mkdtemp(prefix="ac-"))

    @rule(seconds=st.sampled_from((0.1, 0.7, 3.0, 12.0, 65.0)))
    def time_passes(self, seconds):
        self.loop.advance(seconds)

    @invariant()
    def no_promise_is_broken(self):
        if hasattr(self, "world"):
            self.loop.advance(0.0)
            self.world.judge()
            assert self.world.wrong == [], self.story()
            self.world.check()

    @abstractmethod
    def story(self) -> str:
        """What has happened."""

    @abstractmethod
    def at_the_end(self) -> None:
        """What must hold when all is well again."""

    def teardown(self):
        try:
            if hasattr(self, "world"):
                self.at_the_end()
        finally:
            if hasattr(self, "world"):
                self.world.leave()
            self.loop.close()
            shutil.rmtree(self.directory)


def history_test(histories: type[SidedHistories]) -> Any:  # noqa: ANN401 - of hypothesis
    """Not shrunk: a shorter history takes many minutes to find, and a history of a few seconds reads well."""
    examples = settings().max_examples * 2 // 5
    histories.TestCase.settings = settings(max_examples=examples, stateful_step_count=40, phases=[Phase.generate])
    return histories.TestCase


class DirectClient:
    """Calls the service in this process. A service that was killed meanwhile answers nothing."""

    def __init__(self, world: SidedWorld) -> None:
        self.world = world

    async def acquire(self, devices, *, announced=False, timeout=client.SHORT, **how):  # noqa: ASYNC109 - as the client
        return await self._ask(lambda: self._granted(devices, announced=announced, within=timeout, **how), timeout)

    async def _granted(self, devices, **how) -> list[GrantedDevice]:
        grants = await self.world.handover.acquire(devices, **how)
        return [*grants.values()]

    async def start(self, devices, *, op, timeout):  # noqa: ASYNC109 - as the client
        await self._ask(lambda: self.world.handover.start(devices, None, op=op, within=timeout), timeout)

    async def release(self, devices=(), **how):
        return frozenset(await self._ask(lambda: self.world.handover.release(devices, **how), client.SHORT))

    async def distrust(self, device, why, *, op):
        await self._ask(lambda: self.world.handover.distrust(device, why, op=op, within=client.SHORT), client.SHORT)

    async def reachable(self, within):
        """Wait until there is a service, or until the time is over."""
        until = self.world.loop.time() + within
        while not self.world.up and self.world.loop.time() < until:  # noqa: ASYNC110 - nobody says it
            await asyncio.sleep(LAG)

    async def watch(self):
        while self.world.up:
            life = self.world.life
            yield life.reporter.reported()
            await life.ledger.newer_row(life.ledger.seq, 2.0)
            await asyncio.sleep(LAG)
            if not self.world.up or self.world.life is not life:
                break
        raise Unreachable("the service is away")

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, Any]], within: float) -> Any:  # noqa: ANN401 - any answer
        if not self.world.up:
            raise Unreachable("the service is away")
        task = Context().run(self.world.spawn, call())
        try:
            await asyncio.wait({task}, timeout=within)
        finally:
            late = not task.done()
            task.cancel()
        if late:
            raise NotReady(Reason.TIMED_OUT, "the scrub service did not answer in time")
        if task.cancelled() or is_kill(task.exception()):
            raise Unreachable("the service was killed")
        return task.result()
