"""The kubelet gives one device to two pods: no pod finds the bytes of the other, whichever name the checkpoint has."""

from __future__ import annotations

import asyncio

import pytest

from scrubber.core import events as ev
from scrubber.core import start
from tests.service.asking import rows, scrubs, written_down

SHORT = 0.05  # seconds: less than the time between two observations


async def container_starts(world, tenant, device):
    """A container of this tenant starts; the kubelet's checkpoint says whose start the service takes it for."""
    await world.tenant_requests.start([device], None)
    world.truth.started(tenant, device)
    return world.run(tenant, device)


async def short_use(world, tenant, device):
    """The same, and the tenant has ended before an observation can show it."""
    await container_starts(world, tenant, device)
    await asyncio.sleep(SHORT)
    world.node.end_container(tenant)


@pytest.mark.parametrize("apart", [0.0, 60.0], ids=["at once", "a minute apart"])
async def test_a_doubled_grant_never_shows_one_pod_the_others_bytes(world, apart):
    device = world.uuids[0]
    await world.acquire("first", device, announced=True)
    await asyncio.sleep(apart)
    await world.acquire("second", device, announced=True)
    written_down(world, second=[device])  # the kubelet has dropped the first pod, whose start is on its way
    await short_use(world, "first", device)
    await container_starts(world, "second", device)
    assert rows(world, ev.Released, device)[-1].why == start.CONTESTED


async def test_r11_a_doubled_grant_after_a_kubelet_restart_is_scrubbed(world):
    device = world.uuids[0]
    for pod in ("first", "second"):
        await world.acquire(pod, device, announced=True)
    written_down(world, second=[device])
    world.restart_kubelet()
    world.run("first", device)  # no plugin is asked
    await asyncio.sleep(SHORT)
    world.node.end_container("first")
    await container_starts(world, "second", device)
    assert scrubs(world, device) == 2


async def test_r11_a_grant_belongs_to_the_kubelet_that_asked(world):
    """The kubelet is restarted while a request waits for a scrub. The new one gives the device to another pod."""
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    waiting = asyncio.create_task(world.acquire("first", device, announced=True))
    await asyncio.sleep(SHORT)
    world.restart_kubelet()
    await waiting
    before = scrubs(world, device)
    await world.acquire("second", device, announced=True)
    assert scrubs(world, device) == before + 1


async def test_two_starts_of_a_doubled_grant_never_share_the_device(world):
    """The second pod asks before the container of the first one is there."""
    device = world.uuids[0]
    for pod in ("first", "second"):
        await world.acquire(pod, device, announced=True)
    written_down(world, second=[device])
    await world.tenant_requests.start([device], None)  # asked for the first pod, whose container takes a while
    second = asyncio.create_task(world.tenant_requests.start([device], None))
    await asyncio.sleep(2)
    world.truth.started("first", device)
    first = world.run("first", device)
    await asyncio.sleep(5)
    assert not second.done()
    world.node.end_container("first")
    await second
    world.truth.started("second", device)
    world.run("second", device)
    assert first.seen
    assert scrubs(world, device) == 2
