"""An alarm starts a round at once. Many alarms start only a few rounds a second."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.service import monitor
from scrubber.service.monitor import Monitor
from tests.core import lives
from tests.patience import WITHIN


class Counting(Monitor):
    """Rounds that only count."""

    rounds = 0

    async def round(self, stagger: float = 0.0) -> None:
        del stagger
        self.rounds += 1


@pytest.fixture
def bank(tmp_path):
    layout.create(tmp_path, 1, 2**20)
    backend = Simulated(tmp_path)
    backend.inventory()
    yield SimpleNamespace(root=tmp_path, backend=backend, uuid=backend.inventory()[0].uuid, alarm=backend.alarm())
    backend.close()


def counting_on(bank, interval: float) -> Counting:
    service: Any = SimpleNamespace(context=None, upkeep=None)
    observer: Any = SimpleNamespace(driver=SimpleNamespace(backend=bank.backend))
    return Counting(service, observer, interval)


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
        while not condition():  # noqa: ASYNC110 -- the counter has no event
            await asyncio.sleep(0.001)


async def test_an_alarm_starts_one_round_at_once(bank):
    with running(bank, interval=60) as counting:
        await until(lambda: counting.rounds == 1)
        drills.xid(bank.root, bank.uuid, 79)
        await until(lambda: counting.rounds == 2)
        drills.lose(bank.root, bank.uuid)
        await until(lambda: counting.rounds == 3)
        await asyncio.sleep(4 * monitor.ALARM_PAUSE)
        assert counting.rounds == 3


async def test_many_alarms_start_a_few_rounds_a_second(bank):
    loop = asyncio.get_running_loop()
    with running(bank, interval=60) as counting:
        ends = loop.time() + 1.2
        while loop.time() < ends:
            drills.xid(bank.root, bank.uuid, 13)
            await asyncio.sleep(0.001)
        assert 3 <= counting.rounds <= 6


async def test_an_alarm_after_quiet_starts_a_round_at_once(bank):
    one = counting_on(bank, 0.02)
    drills.xid(bank.root, bank.uuid, 13)
    assert await one._wait_for_alarm(bank.alarm, 0.01) == 0.02
    assert await one._wait_for_alarm(bank.alarm, 0.01) == monitor.ALARM_PAUSE
    drills.xid(bank.root, bank.uuid, 13)
    assert await one._wait_for_alarm(bank.alarm, monitor.MAX_ALARM_PAUSE) == monitor.MAX_ALARM_PAUSE
    assert not asyncio.get_running_loop().remove_reader(bank.alarm)  # it is watched during the wait only


async def test_an_alarm_ends_the_quiet_of_every_device(bank):
    one = counting_on(bank, 0.02)
    one._remember(bank.uuid, lives.CLEAN)
    await one._wait_for_alarm(bank.alarm, 0.01)
    assert bank.uuid in one._quiet
    drills.xid(bank.root, bank.uuid, 13)
    await one._wait_for_alarm(bank.alarm, 0.01)
    assert not one._quiet
