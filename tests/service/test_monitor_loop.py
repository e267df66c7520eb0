"""An alarm calls for a round at once, and nobody can make it ring so often that rounds are all that is done."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from scrubber.devices.simulated import creation, drills
from scrubber.devices.simulated.backend import Simulated
from scrubber.service import monitor
from scrubber.service.monitor import Monitor
from tests.core import lives
from tests.patience import WITHIN


class Counting(Monitor):
    """Rounds that only count."""

    rounds = 0

    async def round(self, pace: float = 0.0) -> None:
        del pace
        self.rounds += 1


@pytest.fixture
def bank(tmp_path):
    creation.create(tmp_path, 1, 2**20)
    backend = Simulated(tmp_path)
    backend.inventory()
    yield SimpleNamespace(root=tmp_path, backend=backend, uuid=backend.inventory()[0].uuid, alarm=backend.alarm())
    backend.close()


def counting_on(bank, interval: float) -> Counting:
    nobody: Any = None
    observer: Any = SimpleNamespace(backend=bank.backend)
    return Counting(nobody, observer, interval)


@contextmanager
def running(bank, interval: float):
    counting = counting_on(bank, interval)
    task = asyncio.create_task(counting.run(bank.alarm))
    try:
        yield counting
    finally:
        task.cancel()


async def until(condition) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 -- it counts, and tells nobody
            await asyncio.sleep(0.001)


async def test_an_alarm_calls_for_one_round_at_once(bank):
    with running(bank, interval=60) as counting:
        await until(lambda: counting.rounds == 1)
        drills.xid(bank.root, bank.uuid, 79)
        await until(lambda: counting.rounds == 2)
        drills.lose(bank.root, bank.uuid)
        await until(lambda: counting.rounds == 3)
        await asyncio.sleep(4 * monitor.BREATH)
        assert counting.rounds == 3


async def test_without_an_alarm_rounds_come_in_their_time(bank):
    with running(bank, interval=monitor.BREATH / 5) as counting:
        await until(lambda: counting.rounds > 3)


async def test_a_storm_makes_rounds_no_more_often_than_a_few_a_second(bank):
    loop = asyncio.get_running_loop()
    with running(bank, interval=60) as counting:
        ends = loop.time() + 1.2
        while loop.time() < ends:
            drills.xid(bank.root, bank.uuid, 13)
            await asyncio.sleep(0.001)
        assert 3 <= counting.rounds <= 6


async def test_after_a_calm_the_first_alarm_is_heard_at_once_again(bank):
    one = counting_on(bank, 0.02)
    drills.xid(bank.root, bank.uuid, 13)
    assert await one._rest(bank.alarm, 0.01) == 0.02
    assert await one._rest(bank.alarm, 0.01) == monitor.BREATH
    drills.xid(bank.root, bank.uuid, 13)
    assert await one._rest(bank.alarm, monitor.LONGEST_BREATH) == monitor.LONGEST_BREATH
    assert not asyncio.get_running_loop().remove_reader(bank.alarm)  # it is watched during rests only


async def test_what_was_heard_wakes_every_device_that_rests(bank):
    one = counting_on(bank, 0.02)
    one._note_rest(bank.uuid, lives.CLEAN)
    await one._rest(bank.alarm, 0.01)
    assert bank.uuid in one._resting
    drills.xid(bank.root, bank.uuid, 13)
    await one._rest(bank.alarm, 0.01)
    assert not one._resting
