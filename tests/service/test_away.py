"""While a device is reset the service keeps off the driver: nothing else suffers from that."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core import events as ev
from scrubber.core.model import Blame, Outcome, Path, State, Step, StepResult
from scrubber.devices.base import DeviceError
from scrubber.errors import NotReady, Refused
from scrubber.jobs import USES_DRIVER
from scrubber.steps.base import Report
from tests.service.asking import rows
from tests.service.hand import Hand
from tests.service.node import Node


async def test_a_driver_that_we_cannot_let_go_of_is_no_fault_of_the_device(world):
    device = world.uuids[0]

    def stuck() -> None:
        raise DeviceError("an earlier question has not been answered")

    world.node.let_go = stuck
    world.node.reboot()  # what nothing is known of takes the slow path
    results: list[StepResult] = []
    async with asyncio.timeout(60):
        while not results:
            await asyncio.sleep(0.1)
            results = [it.result for it in rows(world, ev.StepFinished, device) if it.result.outcome is Outcome.ABORTED]
    assert (results[0].step, results[0].blame) == (Step.RESET, Blame.SERVICE)
    assert world.state(device) is not State.QUARANTINED


async def test_meanwhile_the_others_go_out_and_nobody_is_called_sick(world):
    first, second = world.uuids
    async with world.life.sight.away():
        await asyncio.sleep(30)
        assert {world.state(first), world.state(second)} == {State.CLEAN}
        await world.acquire("pod", second)
    assert world.state(second) is State.GRANTED


async def test_a_driver_that_stays_closed_after_that_is_no_driver_that_answers(world):
    """Nothing is heard of any device any more: none of them may be called well."""
    device = world.uuids[0]
    world.node.take_up = lambda: None
    async with world.life.sight.away():
        pass
    await world.reach(device, State.QUARANTINED)
    with pytest.raises(Refused):
        await world.acquire("pod", device)


async def test_a_device_that_a_tool_still_resets_is_free_for_nobody(world):
    """Its worker was killed, its tool was not: whatever is begun now would be hit by the end of that reset."""
    device = world.uuids[0]
    world.node.at_it.add(device)
    with pytest.raises(NotReady):
        await world.acquire("pod", device)
    running = await world.service.scrub(world.uuids[1], None)
    await running.finished.wait()
    await asyncio.sleep(30)
    assert world.state(device) is not State.GRANTED
    world.node.at_it.clear()
    await world.clean(device)


async def test_our_own_reset_is_no_such_thing(world):
    device = world.uuids[0]
    async with world.life.sight.away(device):
        world.node.at_it.add(device)
        assert (await world.life.sight.full(world.record(device))).holders == ()
    assert (await world.life.sight.full(world.record(device))).holders is None
    world.node.at_it.clear()


async def test_where_a_reset_bears_no_worker_on_the_driver_they_come_one_after_the_other(world, monkeypatch):
    """Also beside a step of another device that asks the driver for settings or health."""
    monkeypatch.setattr(Node, "one_driver", True)
    at_once, most = 0, 0
    perform = Hand.perform

    async def counted(hand, step, order, progress) -> Report:
        nonlocal at_once, most
        at_once += step in USES_DRIVER
        most = max(most, at_once)
        try:
            return await perform(hand, step, order, progress)
        finally:
            at_once -= step in USES_DRIVER

    monkeypatch.setattr(Hand, "perform", counted)
    jobs = [await world.service.scrub(device, Path.SLOW) for device in world.uuids]
    await asyncio.gather(*(job.finished.wait() for job in jobs))
    assert [job.receipt is not None for job in jobs] == [True, True]
    assert most == 1


async def test_who_came_while_a_reset_waited_for_the_driver_is_seen_before_it_begins(world, monkeypatch):
    monkeypatch.setattr(Node, "one_driver", True)
    device = world.uuids[0]
    async with world.service.jobs._driver:
        running = await world.service.scrub(device, Path.SLOW)
        while (job := world.record(device).job) is None or job.step is not Step.RESET:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # its look before the step is over
        world.intrude(device, container=True)
        await asyncio.sleep(0.3)
    await running.finished.wait()
    results = [it.result for it in rows(world, ev.StepFinished, device) if it.job == running.id]
    assert (results[-1].step, results[-1].outcome) == (Step.RESET, Outcome.ABORTED)
    assert results[-1].seconds == 0


async def test_what_cannot_be_cleared_is_refused_and_nothing_is_begun(world, monkeypatch):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    monkeypatch.setattr(Node, "clears", False)
    before = len(rows(world, ev.ScrubStarted, device))
    with pytest.raises(NotReady, match="cannot clear the memory"):
        await world.acquire("next", device)
    await asyncio.sleep(30)
    assert len(rows(world, ev.ScrubStarted, device)) == before
    assert world.state(device) is State.DIRTY
