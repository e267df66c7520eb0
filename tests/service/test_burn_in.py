"""Idle devices are tested in turn, a request ends the test, and what the test has found is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ground.errors import AutoclaveError, Refused
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, Facts, Outcome, ScrubPath, State, Step, Trigger, Vitals
from scrubber.core.record import Record
from tests.service.asking import at_step, healthy, results, rows
from tests.service.pretend_worker import AMinuteOfTests
from tests.service.world import World

HOURLY = "defaults: {periodic: {every: 1h, keep_free: 1}}"


@pytest.fixture
async def world(begin) -> World:
    """A node whose idle devices are tested every hour."""
    it: World = await begin(policy=HOURLY, interval=20.0)
    return it


def burn_ins(world, *devices):
    started = (it for device in devices or world.uuids for it in rows(world, ev.ScrubStarted, device))
    return [it.job for it in started if it.job.trigger is Trigger.BURN_IN]


async def begun(world):
    """The device whose test has just begun."""
    while not burn_ins(world):
        await world.news()
    return next(it for it in world.uuids if world.state(it) is State.SCRUBBING)


async def test_burn_ins_run_in_turn_and_keep_devices_free(world):
    most = 0
    for _ in range(5400):
        await asyncio.sleep(2.0)
        scrubbing = [device for device in world.uuids if world.state(device) is State.SCRUBBING]
        most = max(most, len(scrubbing))
    assert most == 1
    for device in world.uuids:
        assert 1 <= len(burn_ins(world, device)) <= 3
        assert all(job.path is ScrubPath.SLOW for job in burn_ins(world, device))


async def test_an_acquire_gets_a_device_from_its_burn_in(world):
    device = await begun(world)
    [job] = burn_ins(world)
    assert healthy(world, device)
    began = world.loop.time()
    assert await world.acquire("pod", device)
    assert world.loop.time() - began < world.truth.policy(device).budgets.allocate
    assert [it.job for it in rows(world, ev.ScrubInterrupted, device)] == [job.id]
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.path is ScrubPath.FAST


async def test_a_starting_container_gets_a_device_from_its_burn_in(world):
    device = await begun(world)
    await at_step(world, device, Step.CLEAR)
    await world.tenant_requests.start([device], "pod")
    assert world.state(device) is State.IN_USE


async def test_a_device_sick_during_burn_in_is_not_offered(begin):
    world = await begin(policy=HOURLY, worker=AMinuteOfTests)
    device = await begun(world)
    await asyncio.sleep(5)
    assert healthy(world, device)
    world.node.report(device, (79,))
    await asyncio.sleep(1.5)
    assert not healthy(world, device)
    assert world.state(device) is State.QUARANTINED


async def test_a_fault_proven_by_burn_in_outlives_its_cancellation(world):
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
    method = "quick" if ask == "acquire" else "full"
    look = getattr(world.life.observer, method)

    async def slow(record: Record, *args: Any, **more: Any) -> Facts:  # noqa: ANN401 - passed on
        facts: Facts = await look(record, *args, **more)
        job = world.life.jobs.of(device)
        at_evict = job is not None and job.step is Step.EVICT
        if record.device.uuid == device and at_evict and (ask == "acquire" or "starting_pod" in more):
            world.node.gpus[device].leaked = 7  # the burn-in fails, and goes on with a reset
            await at_step(world, device, Step.RESET)
        return facts

    monkeypatch.setattr(world.life.observer, method, slow)
    deed = (
        world.tenant_requests.acquire([device], announced=True)
        if ask == "acquire"
        else world.tenant_requests.start([device], "p")
    )
    try:
        await deed
    except AutoclaveError as error:
        assert "it is being reset; try again" in str(error)  # noqa: PT017 - it may also be over in time
    await asyncio.sleep(30)
    resets = [it for it in results(world, device) if it.step is Step.RESET]
    begun_resets = [it for it in rows(world, ev.StepsRecorded, device) if it.begins is Step.RESET]
    assert (len(resets), {it.outcome for it in resets}) == (len(begun_resets), {Outcome.PASSED})


async def test_an_unclearable_device_gets_no_burn_in(world, monkeypatch):
    monkeypatch.setattr(type(world.node), "lacks", lambda *_: "CuPy is not installed")
    await asyncio.sleep(2 * 3600)
    assert burn_ins(world) == []
