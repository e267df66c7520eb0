"""A checkpoint from before the grant makes no other pod the owner; what the kubelet writes itself is never refused."""

from __future__ import annotations

import asyncio

import pytest

from ground.errors import Reason, Refused
from scrubber.core.model import State
from tests.service.asking import let_on, written_down

HOUR = 3600.0


@pytest.fixture
async def device(world):
    """A device that ``last`` had and has left, as the checkpoint still says."""
    [device, _] = world.uuids
    await let_on(world, "last", device)
    await asyncio.sleep(5)
    world.node.end_container("last")
    await world.clean(device)
    await asyncio.sleep(5)
    return device


async def refused(world, device):
    with pytest.raises(Refused) as error:
        await world.tenant_requests.start([device], None)
    assert error.value.reason is Reason.OWNER_UNKNOWN
    assert world.state(device) is State.GRANTED
    return error.value.message


async def starts(world, device, pod):
    await world.tenant_requests.start([device], None)
    assert (world.state(device), world.record(device).tenancy.owner.container) == (State.IN_USE, pod)


@pytest.mark.parametrize("names", ["last", "older"])
async def test_a_checkpoint_older_than_the_grant_starts_nothing(world, device, names):
    written_down(world, **{names: [device]})
    await asyncio.sleep(5)
    await world.acquire("next", device, announced=True)
    assert "older than its last Allocate" in await refused(world, device)
    written_down(world, next=[device])
    await starts(world, device, "next")


async def test_a_checkpoint_rolled_back_after_the_grant_starts_nothing(world, device):
    await world.acquire("next", device, announced=True)
    await asyncio.sleep(5)
    written_down(world, last=[device])  # a copy from before
    assert "has ended" in await refused(world, device)
    written_down(world, next=[device])
    await starts(world, device, "next")


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
@pytest.mark.parametrize("when", ["before it is written", "after it is written"])
async def test_a_clock_that_is_set_makes_no_checkpoint_old(world, device, jump, when):
    await world.acquire("next", device, announced=True)
    if when == "before it is written":
        world.node.jump += jump
    await asyncio.sleep(0.01)
    written_down(world, next=[device])
    if when == "after it is written":
        world.node.jump += jump
    await asyncio.sleep(60)  # pulling the image takes its time
    await starts(world, device, "next")


@pytest.mark.parametrize(
    ("runs", "ended"),
    [pytest.param(5, 0, id="seen"), pytest.param(0.05, 5, id="ended unseen"), pytest.param(5, None, id="it runs")],
)
async def test_a_checkpoint_from_before_a_deferral_starts_nothing(begin, runs, ended):
    """No grant says when the device was given to the next pod: its container waits for the scrub."""
    world = await begin(fenced=True, policy="defaults: {fence: {mode: refuse}}")
    device = world.uuids[0]
    await let_on(world, "last", device)
    written_down(world, last=[device])
    await asyncio.sleep(runs)
    if ended is not None:
        world.node.end_container("last")
        await asyncio.sleep(ended)
    assert await world.acquire("next", device, announced=True) == []
    with pytest.raises(Refused, match="older than its last Allocate"):
        await world.tenant_requests.start([device], None)
    world.node.end_container("last")
    written_down(world, next=[device])
    await starts(world, device, "next")
