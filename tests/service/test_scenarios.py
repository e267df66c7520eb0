"""Scenarios that scrub memory in use (W) or skip a needed scrub (S), where the order of events in the service counts.

``tests/core`` decides the others, and ``tests/flows`` shows them with a kubelet and processes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ground.errors import NotReady, Reason
from scrubber.core import events as ev
from scrubber.core.model import ScrubPath, State, Step
from scrubber.observe.observed_since import OBSERVED_WITHIN
from tests.service.asking import rows


def jobs(world, device):
    return [it.job for it in rows(world, ev.ScrubStarted, device)]


async def in_use(world, device):
    """A tenant at work."""
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    return tenant


# -- memory in use


async def test_w2_a_request_waits_for_a_force_deleted_pods_end(world):
    device = world.uuids[0]
    tenant, before, began = await in_use(world, device), len(jobs(world, device)), world.loop.time()
    with pytest.raises(NotReady) as refused:
        await world.acquire("second", device)
    assert refused.value.reason is Reason.IN_USE
    assert world.loop.time() - began == pytest.approx(3.5, abs=0.1)
    assert (len(jobs(world, device)), world.node.gpus[device].users()[0].name) == (before, tenant)
    asking = world.spawn(world.acquire("third", device))
    await asyncio.sleep(2.2)  # the kubelet kills 2 s after a force delete, and the container runtime takes its time
    world.node.end_container(tenant)
    assert len(await asking) == 1


async def test_w2_leftovers_are_ended_before_the_next_owner(world):
    device = world.uuids[0]
    tenant = await in_use(world, device)
    world.node.end_container(tenant, leaving=True)
    await world.acquire("second", device)
    assert world.node.gpus[device].users() == []
    assert world.record(device).scrubs.receipt.processes_terminated == 1


async def test_a_person_may_replace_a_running_job_with_more(world):
    """The job that runs is cancelled; a pod that waits for it waits for the new one."""
    device = world.uuids[0]
    world.node.end_container(await in_use(world, device))
    pod = world.spawn(world.acquire("pod", device))
    await world.reach(device, State.SCRUBBING)
    less = world.life.jobs.of(device)
    assert await world.operator_requests.scrub(device, ScrubPath.FAST) is less
    more = await world.operator_requests.scrub(device, ScrubPath.SLOW)
    assert (less.path, less.finished.is_set(), more.path) == (ScrubPath.FAST, True, ScrubPath.SLOW)
    await pod
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.path is ScrubPath.SLOW


async def test_w16_without_whole_node_nothing_happens(build):
    world = build()
    for gpu in world.node.gpus.values():
        gpu.blind = True
    await world.start()
    await asyncio.sleep(60)
    assert {world.state(device) for device in world.uuids} == {State.UNKNOWN}
    with pytest.raises(NotReady) as refused:
        await world.acquire("pod", world.uuids[0])
    assert refused.value.reason is Reason.NOT_PROVEN_FREE
    assert rows(world, ev.ScrubStarted) == []


# -- scrubs that must not be skipped


async def test_s10_a_full_disk_delays_the_record_of_a_holder(world):
    device = world.uuids[0]
    world.life.disk.full = True
    unexpected_holder = world.intrude(device)
    await asyncio.sleep(2)
    world.node.leave(unexpected_holder)
    world.life.disk.full = False
    await world.acquire("pod", device)
    assert rows(world, ev.Soiled, device)[-1].holders[0].pid == unexpected_holder.pid
    assert len(jobs(world, device)) == 2


async def test_s11_a_device_with_leaked_memory_is_not_clean(world):
    device = world.uuids[0]
    world.node.gpus[device].leaked = 4096
    await asyncio.sleep(2)
    assert "4096 bytes" in rows(world, ev.Soiled, device)[-1].why
    record = await world.reach(device, State.CLEAN)
    assert record.scrubs.receipt.path is ScrubPath.RESET


async def test_s16_the_history_follows_the_uuid(world):
    one, two = (world.node.gpus[device] for device in world.uuids)
    world.node.end_container(await in_use(world, one.info.uuid))
    one.info, two.info = replace(one.info, index=1), replace(two.info, index=0)
    await world.clean()
    await asyncio.sleep(OBSERVED_WITHIN + 1)
    assert world.record(one.info.uuid).device.index == 1
    assert world.record(one.info.uuid).scrubs.last_receipt is not None
    new = replace(one.info, uuid="GPU-new")
    world.node.gpus["GPU-new"] = replace(one, info=new, processes={})
    async with asyncio.timeout(OBSERVED_WITHIN + 1):
        while "GPU-new" not in world.life.ledger.records:
            await world.news()
    await world.reach("GPU-new", State.SCRUBBING)
    assert world.record("GPU-new").scrubs.last_receipt is None
    await world.reach("GPU-new", State.CLEAN)


# -- how long a proof is valid


async def test_a_driver_reload_ends_every_proof(world):
    world.node.drivers += 1
    await asyncio.sleep(1)
    await world.clean()
    assert "driver" in rows(world, ev.Distrusted)[0].why
    assert all(Step.SELFTEST in world.node.gpus[device].deeds for device in world.uuids)
