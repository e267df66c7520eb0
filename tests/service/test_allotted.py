"""What the kubelet's checkpoint alone shows: that a pod that was let start never comes, or that one may come unasked."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core import events as ev
from scrubber.core import grounds
from scrubber.core.model import State
from scrubber.node import checkpoint
from tests.service.asking import healthy, rows, scrubs, written_down

LONG = 300.0


async def never_comes(world, device):
    """A pod is granted the device and let start on it, and nothing of it is ever seen."""
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.service.start([device], None)
    assert not world.record(device).owner.seen


async def test_a_pod_that_never_came_and_has_lost_the_device_by_the_checkpoint_is_waited_for_no_more(world):
    device = world.uuids[0]
    await never_comes(world, device)
    written_down(world, other=[world.uuids[1]])
    await asyncio.sleep(grounds.STARTS_WITHIN - 1)
    assert world.state(device) is State.EXPOSED, "its container may come any moment"
    await asyncio.sleep(5)
    assert world.state(device) is State.CLEAN
    assert rows(world, ev.Released, device)[-1].why == "nobody came, and the kubelet has taken it from its owner"


@pytest.mark.parametrize("lost", [True, False], ids=["the checkpoint cannot be read", "it is written down for it"])
async def test_a_pod_that_has_not_come_yet_keeps_the_device_unless_the_checkpoint_says_otherwise(world, lost):
    device = world.uuids[0]
    await never_comes(world, device)
    if lost:
        (world.life.sight._kubelet_dir / checkpoint.NAME).unlink()
    await asyncio.sleep(LONG)
    assert (world.state(device), scrubs(world, device)) == (State.EXPOSED, 1)
    assert healthy(world, device)


@pytest.fixture
async def promised(world):
    """Of a service that knows nothing of it: a device that the kubelet has given to a pod, which runs and is not on it."""
    device = world.uuids[0]
    written_down(world, pod=[device])
    await world.die()
    world.node.reboot()
    world.node.alive.add("pod")
    await world.start()
    return device


async def test_a_device_of_which_nothing_is_known_is_left_alone_as_long_as_a_pod_runs_that_was_given_it(world, promised):
    await asyncio.sleep(LONG)
    assert (world.state(promised), healthy(world, promised)) == (State.UNKNOWN, False)
    assert [world.state(other) for other in world.uuids[1:]] == [State.CLEAN] * (len(world.uuids) - 1)
    world.node.alive.discard("pod")
    await world.clean(promised)


async def test_and_is_made_ready_when_that_pod_asks_to_start(world, promised):
    before = scrubs(world, promised)
    await world.service.start([promised], None)
    assert (scrubs(world, promised), world.record(promised).owner.container) == (before + 1, "pod")
