"""Sick GPUs leave the kubelet's list with a reason, and come back by evidence, or wait for a person."""

from __future__ import annotations

from scrubber.devices.simulated import drills
from tests.flows.node import brisk

SOON = brisk("quarantine: {probation: {first: 1s, longest: 1s, flap_limit: 2}}", "budgets: {silence: 0s}")


async def explained(node, uuid):
    async with node.stage.admin() as admin:
        return await admin.explain(uuid)


async def test_after_xid_79_an_idle_gpu_is_brought_back_by_evidence(build):
    node = await build(2, SOON)
    bad, good = node.stage.uuids
    drills.xid(node.stage.simulated, bad, 79)
    await node.health(bad, "Unhealthy")
    assert (await node.status(bad)).quarantine.reason == "xid"
    assert node.gpu(await node.run("beside")) == good
    await node.health(bad, "Healthy")
    assert (await node.status(bad)).receipt.path == "reset"
    assert node.gpu(await node.run("after")) == bad


async def test_a_row_that_waits_to_be_remapped_is_drained_reset_and_back(build):
    node = await build(1, SOON)
    [uuid] = node.stage.uuids
    pod = await node.run("train")
    left = node.memory(uuid)
    drills.remap(node.stage.simulated, uuid)
    await node.health(uuid, "Unhealthy")
    assert ((await node.status(uuid)).state, node.memory(uuid)) == ("in_use", left), "its user is left alone"
    await node.kubelet.delete(pod)
    await node.health(uuid, "Healthy")
    assert [entry.text.partition(";")[0] for entry in await node.history(uuid, "quarantined")] == [
        "quarantined by autoclave (remap-pending): a memory row waits to be remapped: needs a reset"
    ]
    assert (await node.status(uuid)).receipt.path == "reset"


async def test_a_row_that_could_not_be_remapped_waits_for_a_person_and_is_explained_through_restart_and_reboot(build):
    node = await build(1, SOON)
    [uuid] = node.stage.uuids
    drills.remap(node.stage.simulated, uuid, failed=True)
    await node.health(uuid, "Unhealthy")
    await node.reach(uuid, lambda device: device.quarantine is not None)
    drills.heal(node.stage.simulated, uuid)
    for event in (node.restart_service, node.reboot):
        await event()
        told = await explained(node, uuid)
        assert (told.device.quarantine.reason, told.device.quarantine.sticky) == ("remap-failed", True)
        assert told.device.quarantine.probes == 0
        assert told.advice == ("replace it (RMA); then `autoclave reinstate`",)
