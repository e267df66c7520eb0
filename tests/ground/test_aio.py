"""A step that has begun ends. Every waiting task sees a change. A lock is shared or exclusive."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ground import aio
from ground.aio import Changed, RWLock
from tests.patience import WITHIN


@pytest.mark.parametrize("failing", [False, True])
async def test_a_caller_cancelled_twice_waits_for_the_step(failing):
    go, done = asyncio.Event(), []

    async def step() -> None:
        await go.wait()
        done.append(True)
        if failing:
            raise ValueError("the caller has left")

    caller = asyncio.create_task(aio.finish(step()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done


async def test_a_step_that_is_cancelled_itself_ends_its_caller():
    async def step() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await aio.finish(step())


async def test_together_gives_all_results_in_order():
    async def step(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert await aio.gather(map(step, range(3))) == [0, 1, 2]


async def test_together_stops_at_the_first_error():
    ended = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def wrong() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aio.gather([slow(), wrong()])
    assert ended == ["slow"]


async def test_work_beside_a_block_has_ended_when_the_block_has():
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    async with aio.beside(work()):
        await asyncio.sleep(0)
    assert ended == ["work"]


async def test_work_beside_a_block_gives_its_result():
    async def work() -> int:
        return 1

    async with aio.beside(work()) as working:
        assert await working == 1


async def test_every_waiter_checks_after_each_notification():
    changed = Changed()
    ready: set[int] = set()
    waiting = [asyncio.create_task(changed.until(partial(ready.issuperset, [n]))) for n in range(3)]
    await asyncio.sleep(0)
    for n in range(3):
        ready.add(n)
        changed.notify()
        await asyncio.wait_for(waiting[n], WITHIN)
        assert [task.done() for task in waiting] == [k <= n for k in range(3)]


async def test_a_notification_of_a_source_reaches_its_listeners():
    source, other = Changed(), Changed()
    both = Changed(source, other)
    for sender in (source, other, both):
        waiting = asyncio.create_task(both.after(both.notifications, WITHIN))
        await asyncio.sleep(0)
        sender.notify()
        assert await waiting is True
    assert (source.notifications, other.notifications) == (1, 1)
    assert await both.after(both.notifications, 0.001) is False
    assert await both.after(both.notifications - 1, 0.0) is True


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancelled_waiter_gets_no_news(turns):
    changed = Changed()
    waiting = asyncio.create_task(changed.after(changed.notifications, 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    changed.notify()
    for _ in range(turns):
        await asyncio.sleep(0)  # the news is on its way
    if not waiting.cancel():  # it was there
        return
    with pytest.raises(asyncio.CancelledError):
        await waiting


PATIENCE = 60.0


class Stage:
    """Who is in, in the order in which things happened."""

    def __init__(self) -> None:
        self.lock = RWLock(PATIENCE)
        self.seen: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    def enter(self, name: str, *, alone: bool = False, brief: bool = False) -> asyncio.Task[None]:
        self.leave[name] = asyncio.Event()
        return asyncio.create_task(self._stay(name, alone=alone, brief=brief))

    async def _stay(self, name: str, *, alone: bool, brief: bool) -> None:
        async with self.lock.exclusive() if alone else self.lock.shared(brief=brief):
            self.seen.append(f"+{name}")
            await self.leave[name].wait()
            self.seen.append(f"-{name}")

    async def settle(self) -> list[str]:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.seen


@pytest.fixture
async def stage():
    stage = Stage()
    yield stage
    for event in stage.leave.values():
        event.set()
    await stage.settle()


async def test_exclusive_use_waits_for_the_last_shared_use(stage):
    stage.enter("a")
    stage.enter("b")
    await stage.settle()
    stage.enter("one", alone=True)
    stage.leave["a"].set()
    assert "+one" not in await stage.settle()
    stage.leave["b"].set()
    assert (await stage.settle())[-2:] == ["-b", "+one"]


async def test_exclusive_use_and_its_waiters_block_shared_use(stage):
    stage.enter("a")
    await stage.settle()
    stage.enter("one", alone=True)
    await stage.settle()
    stage.enter("late")
    stage.leave["a"].set()
    assert await stage.settle() == ["+a", "-a", "+one"]
    stage.leave["one"].set()
    assert (await stage.settle())[-2:] == ["-one", "+late"]


async def test_brief_uses_pass_a_waiter_only_for_a_while(stage, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    stage.enter("long")
    await stage.settle()
    stage.enter("one", alone=True)
    await stage.settle()
    stage.enter("brief", brief=True)
    stage.enter("late")
    assert await stage.settle() == ["+long", "+brief"]
    clock[0] = PATIENCE
    stage.enter("brief too late", brief=True)
    stage.leave["long"].set()
    stage.leave["brief"].set()
    assert await stage.settle() == ["+long", "+brief", "-long", "-brief", "+one"]
    stage.leave["one"].set()
    assert (await stage.settle())[-3:] == ["-one", "+late", "+brief too late"]


async def test_waiters_for_the_exclusive_lock_go_before_later_arrivals(stage):
    stage.enter("one", alone=True)
    await stage.settle()
    stage.enter("another", alone=True)
    stage.enter("late")
    await stage.settle()
    stage.leave["one"].set()
    assert await stage.settle() == ["+one", "-one", "+another"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_cancelled_waiter_leaves_no_trace(stage, alone):
    stage.enter("one", alone=True)
    await stage.settle()
    impatient = stage.enter("impatient", alone=alone)
    await stage.settle()
    impatient.cancel()
    stage.leave["one"].set()
    await stage.settle()
    stage.enter("next", alone=True)
    assert (await stage.settle())[-1] == "+next"


@pytest.mark.parametrize("alone", [True, False])
async def test_an_error_inside_releases_the_lock(stage, alone):
    failing = stage.enter("failing", alone=alone)
    await stage.settle()
    failing.cancel()
    stage.enter("next", alone=True)
    assert (await stage.settle())[-1] == "+next"
