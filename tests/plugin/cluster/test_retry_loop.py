"""When a thing is told: each bound by itself."""

import asyncio
from dataclasses import replace

import pytest
from tenacity import AsyncRetrying, RetryCallState

from ground.aio import Changed
from plugin.cluster.retry_loop import NEVER, Failure, FailureKind, Pace, RetryLoop
from tests.patience import WITHIN
from tests.plugin.cluster.conftest import QUICK


def new_loop(deed, due, pace):
    return RetryLoop("it", due, deed, Changed(), pace)


async def ended(task):
    task.cancel()
    await asyncio.wait({task})


async def test_two_words_on_one_strand_are_a_breath_apart():
    done = []

    async def deed() -> None:
        done.append("a word")
        await asyncio.sleep(0)

    task = asyncio.create_task(new_loop(deed, lambda: 0.0, replace(QUICK, spacing=3600)).run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(done) == 1
    await ended(task)


@pytest.mark.parametrize("spread", [0.01, 3600])
async def test_the_first_report_waits_for_its_turn_in_the_fleet(spread):
    done = asyncio.Event()

    async def deed() -> None:
        done.set()
        await asyncio.sleep(0)

    task = asyncio.create_task(new_loop(deed, lambda: 0.0, replace(QUICK, spread=spread, spacing=3600)).run())
    for _ in range(50):
        await asyncio.sleep(0)
    if spread == 3600:
        assert not done.is_set()
    else:
        async with asyncio.timeout(WITHIN):
            await done.wait()
    await ended(task)


async def test_a_change_undone_during_a_pause_is_not_written():
    looked = asyncio.Event()
    tries: list[str] = []
    looks: list[int] = []

    def due() -> float:
        looks.append(len(tries))
        if looks.count(1) == 2:  # after the pause, and before the next thing
            looked.set()
        return NEVER if tries else 0.0

    async def deed() -> None:
        tries.append("a try")
        raise Failure(FailureKind.AWAY, "no server")

    task = asyncio.create_task(new_loop(deed, due, QUICK).run())
    async with asyncio.timeout(WITHIN):
        await looked.wait()
    assert len(tries) == 1
    await ended(task)


@pytest.mark.parametrize(
    ("kind", "retry_after", "number", "least", "most"),
    [
        (FailureKind.AWAY, None, 1, 0.5, 1.0),
        (FailureKind.AWAY, None, 50, 0.5, 60.0),
        (FailureKind.BUSY, 7.0, 1, 7.0, 7.5),
        (FailureKind.AWAY, 7.0, 1, 7.0, 7.5),
        (FailureKind.BUSY, 31536000.0, 1, 300.0, 300.5),
        (FailureKind.FORBIDDEN, None, 1, 240.0, 360.0),
        (FailureKind.REFUSED, None, 1, 240.0, 360.0),
    ],
)
def test_a_pause_fits_the_failure(kind, retry_after, number, least, most):
    pause = pauses(kind, retry_after, number)
    assert least <= min(pause)
    assert max(pause) <= most


@pytest.mark.parametrize("retry_after", [0.0, 1.0])
def test_short_retry_after_values_still_grow_the_pause(retry_after):
    assert max(pauses(FailureKind.BUSY, retry_after, number=50)) > 5.0


def pauses(kind, retry_after, number):
    """A hundred pauses after so many tries."""
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = number
    state.set_exception((Failure, Failure(kind, "no", retry_after), None))
    it = new_loop(None, None, Pace())
    return [it._pause(state) for _ in range(100)]
