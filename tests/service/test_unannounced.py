"""An unannounced pod keeps its device while it lives, unless the device was granted to another pod."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core.model import State
from scrubber.ground.errors import NotReady, Refused
from tests.service.asking import scrubs, written_down

LONG = 300.0


async def quick(world, device):
    """A container of a pod that lives on has been on it, which a round has seen. The pod."""
    unannounced = world.intrude(device, container=True)
    await world.reach(device, State.IN_USE)
    world.node.leave(unannounced)
    return unannounced.container


async def test_a_monitor_on_a_grant_does_not_take_it(world):
    """Its container may be about to come, after a restart of the kubelet without a word."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await quick(world, device)
    await asyncio.sleep(LONG)
    with pytest.raises(Refused):
        await world.handover.acquire([device], announced=False, exclusive=True)
    world.restart_kubelet()
    process = world.run("pod", device)
    await asyncio.sleep(LONG)
    world.node.leave(process)  # between two kernels of its own
    await asyncio.sleep(LONG)
    assert (world.record(device).owner.container, scrubs(world, device)) == ("pod", 1)


async def test_a_start_waits_until_a_monitor_closes_the_device(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    unannounced = world.intrude(device, container=True)
    await world.reach(device, State.IN_USE)
    with pytest.raises(NotReady):
        await world.handover.start([device], None)
    world.node.leave(unannounced)
    await world.handover.start([device], None)  # before any round has seen it
    assert (world.record(device).owner.container, scrubs(world, device)) == ("pod", 2)


@pytest.mark.parametrize("given", [["pod"], []], ids=["given to another pod", "given to nobody"])
async def test_r11_an_unannounced_pod_outlives_a_kubelet_restart(world, given):
    """He may have been started without a word; and the checkpoint may have been lost and begun anew."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, **{pod: [device] for pod in given})
    world.restart_kubelet()
    pod = await quick(world, device)
    await asyncio.sleep(LONG)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert (world.state(device), scrubs(world, device)) == (State.IN_USE, 1)
    world.node.end_container(pod)
    await world.clean(device)


async def test_w14_a_pod_in_the_checkpoint_owns_the_device(world):
    """The ledger was lost. The kubelet forgets a pod that was deleted by force, and its container runs on."""
    device = world.uuids[0]
    [before] = [world.run(await world.tenancy(device), device)]
    pod = before.container
    written_down(world, **{pod: [device]})
    await world.die()
    world.forget()
    await world.start()
    await asyncio.sleep(2)
    for process in world.node.gpus[device].users():
        world.node.leave(process)  # between two kernels of its own
    written_down(world)
    await asyncio.sleep(LONG)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert (world.state(device), world.record(device).owner.unannounced) == (State.IN_USE, False)
    world.node.end_container(pod)
    await world.clean(device)
