"""A request ends the test of a device after a reboot, and what the test has found is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ground.errors import NotReady, Refused
from scrubber.core import events as ev
from scrubber.core.acquire import ForPod
from scrubber.core.model import AilmentKind, Facts, Outcome, ScrubPath, State, Step, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from tests.service.asking import at_step, healthy, looking, results, rows
from tests.service.world import World


@pytest.fixture
async def world(begin) -> World:
    """A node that is up again after a reboot, and tests its devices."""
    it: World = await begin()
    await it.die()
    it.node.reboot()
    await it.start()
    return it


async def begun(world):
    """A device whose test has just begun."""
    device = world.uuids[0]
    await world.reach(device, State.SCRUBBING)
    return device


async def test_a_request_gets_a_device_from_its_test(world):
    device = await begun(world)
    job = world.record(device).scrubs.job
    assert job.path is ScrubPath.SLOW
    assert not healthy(world, device)
    began = world.loop.time()
    assert await world.acquire("pod", device)
    assert world.loop.time() - began < world.truth.policy(device).budgets.allocate
    assert [it.job for it in rows(world, ev.ScrubInterrupted, device)] == [job.id]
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.path is ScrubPath.FAST


async def test_a_starting_container_gets_a_device_from_its_test(world):
    device = await begun(world)
    await at_step(world, device, Step.CLEAR)
    await world.tenant_requests.start([device], "pod")
    assert world.state(device) is State.IN_USE


async def test_a_fault_that_a_test_has_found_outlives_its_cancellation(world):
    """A request between the last step and its verdict is refused."""
    device = await begun(world)
    look = world.life.observer.health.vitals

    async def slow(uuid: str) -> Vitals | None:
        await asyncio.sleep(1.5)
        seen: Vitals | None = await look(uuid)
        return seen

    world.life.observer.health.vitals = slow
    world.node.gpus[device].computes_wrongly = True
    while not any(it.step is Step.SELFTEST for it in results(world, device)[-1:]):
        await world.news()
    with pytest.raises(Refused):
        await world.acquire("pod", device)
    await world.reach(device, State.QUARANTINED)
    assert world.record(device).health.quarantine.ailment.kind is AilmentKind.COMPUTE_FAULT


@pytest.mark.parametrize("ask", ["acquire", "start"])
async def test_a_reset_that_begins_during_an_observation_is_not_cancelled(world, monkeypatch, ask):
    device = await begun(world)
    await at_step(world, device, Step.EVICT)

    async def slow(look: Callable[[], Awaitable[Facts]], record: Record) -> Facts:
        facts = await look()
        job = world.life.jobs.of(device)
        at_evict = job is not None and job.step is Step.EVICT
        if record.device.uuid == device and at_evict:
            world.node.gpus[device].leaked = 7  # the test fails, and goes on with a reset
            await at_step(world, device, Step.RESET)
        return facts

    purpose = Purpose.ROUND if ask == "acquire" else Purpose.START
    monkeypatch.setattr(world.life.observer, "look", looking(world.life.observer, purpose, does=slow))
    if ask == "acquire":
        with pytest.raises(NotReady) as refused:
            await world.tenant_requests.acquire([device], ForPod(announced=True))
        assert str(refused.value) == f"cannot hand out {device} in time: it is being scrubbed; try again in a moment"
    else:  # its budget is long enough for the scrub with the reset
        await world.tenant_requests.start([device], "p")
        assert world.state(device) is State.IN_USE
    await asyncio.sleep(30)
    resets = [it for it in results(world, device) if it.step is Step.RESET]
    begun_resets = [it for it in rows(world, ev.StepsRecorded, device) if it.begins is Step.RESET]
    assert (len(resets), {it.outcome for it in resets}) == (len(begun_resets), {Outcome.PASSED})
