"""A pod that never started: the kubelet's checkpoint shows that it does not own the device."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core import events as ev
from scrubber.core import ownership
from scrubber.core.model import State
from scrubber.node import checkpoint
from tests.service.asking import healthy, rows, scrubs, written_down

LONG = 300.0


async def never_comes(world, device):
    """A pod is granted the device and let start on it, and nothing of it is ever seen."""
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.handover.start([device], None)
    assert not world.record(device).owner.seen


async def test_a_pod_without_the_device_in_the_checkpoint_is_released(world):
    device = world.uuids[0]
    await never_comes(world, device)
    written_down(world, other=[world.uuids[1]])
    await asyncio.sleep(ownership.STARTS_WITHIN - 1)
    assert world.state(device) is State.IN_USE, "its container may come any moment"
    await asyncio.sleep(5)
    assert world.state(device) is State.CLEAN
    assert rows(world, ev.Released, device)[-1].why == "it was not used, and the kubelet has taken it from its owner"


@pytest.mark.parametrize("lost", [True, False], ids=["the checkpoint cannot be read", "it is written down for it"])
async def test_a_starting_pod_keeps_its_device_by_the_checkpoint(world, lost):
    device = world.uuids[0]
    await never_comes(world, device)
    if lost:
        (world.life.observer._kubelet_dir / checkpoint.NAME).unlink()
    await asyncio.sleep(LONG)
    assert (world.state(device), scrubs(world, device)) == (State.IN_USE, 1)
    assert healthy(world, device)
