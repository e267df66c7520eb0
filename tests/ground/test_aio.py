"""A step that was begun ends, whoever leaves meanwhile."""

import asyncio

import pytest

from scrubber.ground import aio


async def test_the_result_is_the_steps():
    async def step() -> int:
        await asyncio.sleep(0)
        return 7

    assert await aio.finish(step()) == 7


async def test_an_error_is_the_steps():
    async def step() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aio.finish(step())


@pytest.mark.parametrize("failing", [False, True])
async def test_a_caller_cancelled_twice_waits_for_the_step(failing):
    go, done = asyncio.Event(), []

    async def step() -> None:
        await go.wait()
        done.append(True)
        if failing:
            raise ValueError("nobody is there to hear it")

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


async def test_together_nothing_goes_on_after_the_first_error():
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
