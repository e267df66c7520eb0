"""What the create gate asks the service: whose device it is, and how the container runtime calls the container."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core import events as ev
from scrubber.core.model import State
from scrubber.ground.errors import NotReady, Reason
from tests.service.asking import let_on, rows

INIT, MAIN = "team/train-0/init", "team/train-0/main"


async def test_an_owner_is_called_as_its_last_container(world):
    """An init container and its successor may have the same device."""
    device = world.uuids[0]
    await let_on(world, "pod", device)
    names = []
    for name in (INIT, INIT, MAIN):
        await world.handover.start([device], "pod", creating=name)
        names.append(world.record(device).owner.name)
    assert names == [INIT, INIT, MAIN]
    assert [it.owner.name for it in rows(world, ev.PutInUse, device) if it.owner.name] == [INIT, MAIN]


async def test_a_name_that_cannot_be_written_refuses_no_container(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    world.life.disk.full = True
    await world.handover.start([device], "pod", creating=MAIN)
    world.life.disk.full = False
    await world.reach(device, State.IN_USE)
    await asyncio.sleep(60)
    assert world.record(device).owner.name == MAIN


async def test_the_first_creation_binds_the_grant_to_its_pod(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    await world.handover.start([device], "pod", creating=MAIN)
    assert (world.record(device).owner.container, world.record(device).owner.name) == ("pod", MAIN)
    with pytest.raises(NotReady) as refused:
        await world.handover.start([device], "other", creating="team/other/main", within=2)
    assert refused.value.reason is Reason.IN_USE
    assert world.record(device).owner.container == "pod"
