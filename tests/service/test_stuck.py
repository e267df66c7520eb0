"""A killed pod that hangs makes its device sick in the end. A process that may stay never does."""

from __future__ import annotations

import asyncio

import pytest

from ground.errors import NotReady
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, State
from tests.service.asking import healthy, let_on, rows, written_down

GIVE_UP = 600.0
LONG = 1000.0
INTERVAL = 3.0  # of the monitor: the tests mostly wait for what must not happen


@pytest.fixture
async def world(begin):
    """Two clean devices under policy ``default``."""
    return await begin(interval=INTERVAL)


async def test_an_unkillable_leftover_quarantines_its_device_until_it_ends(world):
    device, process = await killed_and_hanging(world)
    world.node.end_container("pod", leaving=True)
    await asyncio.sleep(GIVE_UP - 20)
    assert (world.state(device), world.record(device).health.quarantine) == (State.DIRTY, None)
    await world.reach(device, State.QUARANTINED)
    out = world.record(device).health.quarantine
    assert (out.ailment.kind, out.next_probe is None) == (AilmentKind.STUCK_PROCESS, False)
    assert not healthy(world, device)
    await asyncio.sleep(LONG)
    assert rows(world, ev.ProbationStarted, device) == [], "it could only fail"
    world.node.leave(process)
    await world.clean(device)
    assert len(rows(world, ev.ProbationStarted, device)) == 1


# -- in its pod's control group still, so that the pod counts as alive


async def killed_and_hanging(world):
    device = world.uuids[0]
    [process] = await let_on(world, "pod", device)
    await asyncio.sleep(5)
    process.stuck = True
    return device, process


@pytest.mark.parametrize("asked_for", [True, False], ids=["asked for in vain", "taken by the checkpoint"])
async def test_a_killed_pod_that_hangs_makes_its_device_sick(world, asked_for):
    device, process = await killed_and_hanging(world)
    if asked_for:
        with pytest.raises(NotReady):
            await world.acquire("next", device, announced=True)
    else:
        written_down(world)
    await asyncio.sleep(5)
    assert f"(pid {process.pid}, pod)" in world.context.seen.blocked[device]
    assert (await world.life.reporter.explain(device)).advice
    await asyncio.sleep(GIVE_UP - 20)
    assert world.record(device).health.ailment is None
    await asyncio.sleep(30)
    assert (world.state(device), world.record(device).health.ailment.kind) == (State.IN_USE, AilmentKind.STUCK_PROCESS)
    assert f"(pid {process.pid}, pod)" in world.record(device).health.ailment.detail
    assert not healthy(world, device)
    assert device not in world.context.seen.blocked
    before = len(world.truth.entries)
    await asyncio.sleep(LONG)
    assert process.alive
    assert [it for it in world.truth.entries[before:] if it.device == device] == []
    world.node.end_container("pod")
    await world.reach(device, State.QUARANTINED)
    await world.clean(device)


async def test_a_holder_that_hangs_now_and_then_is_not_stuck(world):
    device, process = await killed_and_hanging(world)
    written_down(world)
    for _ in range(3):
        await asyncio.sleep(GIVE_UP - 60)
        process.stuck = False
        await asyncio.sleep(5)
        process.stuck = True
    assert world.record(device).health.ailment is None


async def test_a_look_that_cannot_say_is_no_end_of_hanging(world):
    device, _ = await killed_and_hanging(world)
    written_down(world)
    await asyncio.sleep(GIVE_UP - 60)
    world.node.gpus[device].blind = True
    await asyncio.sleep(30)
    world.node.gpus[device].blind = False
    await asyncio.sleep(60)
    assert world.record(device).health.ailment.kind is AilmentKind.STUCK_PROCESS


async def test_an_owner_that_hangs_keeps_its_device(world):
    device, _ = await killed_and_hanging(world)
    await asyncio.sleep(LONG)
    assert (world.record(device).health.ailment, world.context.seen.blocked.get(device)) == (None, None)
    assert healthy(world, device)
