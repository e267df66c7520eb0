"""The virtual event loop keeps its own promises."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.service.virtual import StuckError, VirtualLoop


async def test_a_long_sleep_takes_no_time():
    began, loop = time.monotonic(), asyncio.get_running_loop()
    await asyncio.sleep(86_400)
    assert loop.time() == pytest.approx(86_400)
    assert time.monotonic() - began < 5


def test_waiting_for_nothing_fails_instead_of_hanging():
    loop = VirtualLoop()
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_time_is_passed_in_portions_and_work_stops_in_between():
    loop, done = VirtualLoop(), []

    async def work() -> None:
        for turn in range(10):
            await asyncio.sleep(1)
            done.append((turn, loop.time()))

    task = loop.create_task(work())
    loop.advance(2.5)
    assert (done, loop.time()) == ([(0, 1.0), (1, 2.0)], 2.5)
    loop.advance(0.5)
    assert done[-1] == (2, 3.0)
    loop.run_until_complete(task)
    loop.close()
