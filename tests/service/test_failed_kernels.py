"""A kernel that fails on a GPU may fail through a fault of ours: the GPU is quarantined only after a second sign."""

from __future__ import annotations

import pytest

from ground.errors import NotReady, Refused
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, State
from tests.service.asking import rows
from tests.service.pretend_worker import PretendWorker

NO_RESET = "defaults: {reset: {when: never}}"  # a fault of the device quarantines it at once
COUNTED_TWICE = "defaults: {reset: {when: never}, quarantine: {xids: {codes: {13: quarantine}}}}"


class Logged(PretendWorker):
    """A worker whose driver reports further errors beside the failed kernel."""

    codes: tuple[int, ...] = ()
    ecc = 0

    async def perform(self, step, order, progress):
        """As the others do it."""
        before = self.gpu.traps
        report = await super().perform(step, order, progress)
        if self.gpu.traps < before:
            self.node.report(self.gpu.info.uuid, self.codes, pid=1)
            self.gpu.ecc += self.ecc
        return report


async def scrubbed(world, kernels):
    """The device after a tenant, when so many kernels have failed and it is clean again or quarantined."""
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    world.node.gpus[device].traps = kernels
    world.node.end_container(tenant)
    await world.tenant_requests.release([device])
    await world.reach(device, State.SCRUBBING)
    while world.state(device) not in (State.CLEAN, State.QUARANTINED):
        await world.news()
    return world.record(device)


@pytest.mark.parametrize("policy", ["default", NO_RESET, COUNTED_TWICE])
async def test_one_failed_kernel_quarantines_no_gpu(begin, policy):
    world = await begin(policy=policy)
    record = await scrubbed(world, 1)
    assert (record.state, record.scrubs.setback) == (State.CLEAN, None)
    assert [it.why for it in rows(world, ev.ScrubFailed, record.device.uuid)] == ["clear failed: a kernel failed"]
    assert rows(world, ev.Escalated) == rows(world, ev.Quarantined) == []


@pytest.mark.parametrize(("policy", "kernels"), [(NO_RESET, 2), ("default", 3)], ids=["no reset", "with a reset"])
async def test_kernels_that_fail_in_a_row_quarantine_the_gpu(begin, policy, kernels):
    world = await begin(policy=policy)
    record = await scrubbed(world, kernels)
    assert record.state is State.QUARANTINED
    assert record.health.quarantine.ailment.kind is AilmentKind.SCRUB_FAILED


async def test_a_scrub_that_passes_ends_the_first_sign(begin):
    world = await begin(policy=NO_RESET)
    for _ in range(3):
        assert (await scrubbed(world, 1)).state is State.CLEAN


async def test_a_request_whose_scrub_failed_awaits_no_other(begin):
    world = await begin(policy=NO_RESET)
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    world.node.gpus[device].traps = 1
    world.node.end_container(tenant)
    with pytest.raises(NotReady, match="its scrub failed"):
        await world.acquire("pod", device)
    assert len(rows(world, ev.ScrubFailed, device)) == 1


async def test_a_gpu_is_not_handed_out_after_a_failed_kernel(begin):
    world = await begin(policy=NO_RESET)
    device = world.uuids[0]
    world.node.gpus[device].traps = 10**6
    job = await world.operator_requests.scrub(device, None)
    await job.finished.wait()
    assert (world.state(device), job.receipt) == (State.DIRTY, None)
    with pytest.raises((NotReady, Refused)):
        await world.acquire("pod", device)
    assert rows(world, ev.Granted) == []


@pytest.mark.parametrize(
    ("codes", "ecc", "kind"), [((48,), 0, AilmentKind.XID), ((), 1, AilmentKind.ECC)], ids=["an xid", "ecc"]
)
async def test_a_report_of_the_hardware_is_the_second_sign(begin, monkeypatch, codes, ecc, kind):
    world = await begin(policy=NO_RESET, worker=Logged)
    monkeypatch.setattr(Logged, "codes", codes)
    monkeypatch.setattr(Logged, "ecc", ecc)
    record = await scrubbed(world, 1)
    assert (record.state, record.health.quarantine.ailment.kind) == (State.QUARANTINED, kind)


async def test_an_application_error_of_another_process_counts(begin, monkeypatch):
    world = await begin(policy=COUNTED_TWICE, worker=Logged)
    monkeypatch.setattr(Logged, "codes", (13,))
    record = await scrubbed(world, 1)
    assert (record.state, record.health.quarantine.ailment.kind) == (State.QUARANTINED, AilmentKind.XID)
