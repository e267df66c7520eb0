"""Whoever is met on a device is its owner if the kubelet says so or nobody can tell, else gone once he is off it."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core.model import State
from scrubber.errors import NotReady, Reason
from tests.service.asking import healthy, scrubs, written_down

LONG = 300.0


async def glance(world, device):
    """A container of a pod that lives on has been on it, which a round has seen. The pod."""
    visitor = world.intrude(device, container=True)
    await world.reach(device, State.EXPOSED)
    world.node.leave(visitor)
    return visitor.container


async def test_a_glance_by_another_pod_while_the_tenants_image_is_pulled_costs_a_scrub_and_no_more(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await glance(world, device)
    await world.clean(device)
    await world.service.start([device], None)
    assert (world.record(device).owner.container, scrubs(world, device)) == ("pod", 2)
    assert healthy(world, device)


async def test_a_glance_at_the_first_look_after_a_reboot_does_not_keep_the_device(world):
    device = world.uuids[0]
    await world.die()
    world.node.reboot()
    visitor = world.intrude(device, container=True)
    await world.start()
    assert world.state(device) is State.EXPOSED
    written_down(world)
    world.node.leave(visitor)
    await world.clean(device)


@pytest.mark.parametrize("asks", ["acquire", "start", "release"])
async def test_whoever_asks_need_not_wait_for_a_round_to_hear_that_the_visitor_is_no_owner(build, asks):
    world = build(interval=LONG)
    await world.start()
    await world.clean()
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    visitor = world.intrude(device, container=True)
    with pytest.raises(NotReady):  # it is seen
        await world.acquire("pod", device, announced=True)
    assert world.state(device) is State.EXPOSED
    world.node.leave(visitor)
    match asks:
        case "acquire":
            await world.acquire("pod", device, announced=True)
        case "start":
            await world.service.start([device], None)
        case "release":
            await world.service.release([device])
            await world.clean(device)
    assert scrubs(world, device) == 2


async def test_w3_without_a_checkpoint_whoever_was_met_keeps_the_device_while_he_lives(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    pod = await glance(world, device)
    await asyncio.sleep(LONG)
    with pytest.raises(NotReady) as refused:
        await world.acquire("next", device, announced=True)
    assert refused.value.reason is Reason.IN_USE
    assert (world.state(device), scrubs(world, device)) == (State.EXPOSED, 1)
    world.node.end_container(pod)
    await world.clean(device)


async def test_w14_whoever_is_met_on_what_the_kubelet_gave_him_is_its_owner_also_off_it_and_by_force_deleted(world):
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
    assert (world.state(device), world.record(device).owner.visitor) == (State.EXPOSED, False)
    world.node.end_container(pod)
    await world.clean(device)
