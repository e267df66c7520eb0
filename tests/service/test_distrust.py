"""A caller that calls a device unhealthy ends its proof, and changes nothing else."""

import asyncio

import pytest

from ground.errors import LedgerUnavailable, NotReady, Reason
from scrubber.core import events as ev
from scrubber.core.acquire import ForJob, ForPod
from scrubber.core.model import State
from tests.service.asking import let_on, rows, scrubs, written_down

WHY = "another program calls it unhealthy"


async def test_a_clean_device_is_scrubbed_again_with_the_reason_recorded(world):
    device, other = world.uuids
    before = scrubs(world, device), scrubs(world, other)
    await world.tenant_requests.distrust(device, WHY, op="05011ed0")
    assert (world.state(device), world.record(device).scrubs.receipt) == (State.UNKNOWN, None)
    assert world.truth.entries[-1].op == "05011ed0"
    assert [event.why for event in rows(world, ev.Distrusted, device)] == [WHY]
    await world.clean()
    assert (scrubs(world, device), scrubs(world, other)) == (before[0] + 1, before[1])


async def test_a_grant_that_waits_for_its_start_ends(world):
    device, before = world.uuids[0], scrubs(world, world.uuids[0])
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.tenant_requests.distrust(device, WHY)
    assert world.record(device).tenancy.grant is None
    await world.tenant_requests.start([device], None)
    assert scrubs(world, device) == before + 1
    assert world.record(device).tenancy.owner.container == "pod"


async def test_a_device_in_use_is_scrubbed_after_its_use(world):
    device, before = world.uuids[0], scrubs(world, world.uuids[0])
    await let_on(world, "pod", device)
    await world.tenant_requests.distrust(device, WHY)
    assert world.state(device) is State.IN_USE
    written_down(world)
    world.node.end_container("pod")
    await world.clean(device)
    assert scrubs(world, device) == before + 1
    assert rows(world, ev.Distrusted) == []


@pytest.mark.parametrize("recipient", [ForJob(), ForPod()], ids=["until its release", "unannounced"])
async def test_a_grant_whose_user_may_run_unseen_is_left_alone(world, recipient):
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], recipient)
    await world.tenant_requests.distrust(device, WHY)
    assert (world.state(device), rows(world, ev.Distrusted)) == (State.GRANTED, [])


async def test_a_scrub_that_runs_ends_before_its_proof_does(world):
    device = world.uuids[0]
    job = await world.operator_requests.scrub(device, None)
    with pytest.raises(NotReady, match="it is being scrubbed; try again after the scrub") as refused:
        await world.tenant_requests.distrust(device, WHY)
    assert refused.value.reason is Reason.SCRUBBING
    await job.finished.wait()
    await world.tenant_requests.distrust(device, WHY)
    assert world.state(device) is State.UNKNOWN


async def test_a_quarantine_stays_as_it_is(world):
    device = world.uuids[0]
    await world.operator_requests.quarantine(device, "looks odd", "ops")
    before = world.record(device)
    await world.tenant_requests.distrust(device, WHY)
    assert world.record(device) is before


async def test_a_doubt_that_cannot_be_recorded_is_recorded_first(world):
    """The proof would be valid again as soon as the disk is."""
    device = world.uuids[0]
    world.life.disk.failures = 1
    with pytest.raises(LedgerUnavailable):
        await world.tenant_requests.distrust(device, WHY)
    await asyncio.gather(world.tenant_requests.acquire([device], ForPod(announced=True)), return_exceptions=True)
    assert len(rows(world, ev.Distrusted, device)) == 1
