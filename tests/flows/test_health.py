"""Sick GPUs leave the kubelet's list with a reason, and come back by evidence, or wait for a person."""

from __future__ import annotations

from scrubber.devices.simulated import drills
from tests.flows.node import brisk

SOON = brisk("quarantine: {probation: {first: 1s, flap_limit: 2}}")


async def test_an_idle_gpu_returns_after_xid_79_with_a_proof(build):
    node = await build(2, SOON)
    bad, good = node.stage.uuids
    drills.xid(node.stage.simulated, bad, 79)
    await node.health(bad, "Unhealthy")
    assert (await node.status(bad)).quarantine.reason == "xid"
    assert node.gpu(await node.run("beside")) == good
    await node.health(bad, "Healthy")
    assert (await node.status(bad)).receipt.path == "reset"
    assert node.gpu(await node.run("after")) == bad


async def test_a_failed_remap_waits_for_a_person_over_reboots(build):
    node = await build(1, SOON)
    [uuid] = node.stage.uuids
    drills.remap(node.stage.simulated, uuid, failed=True)
    await node.health(uuid, "Unhealthy")
    await node.reach(uuid, lambda device: device.quarantine is not None)
    drills.heal(node.stage.simulated, uuid)
    for event in (node.restart_service, node.reboot):
        await event()
        async with node.stage.admin() as admin:
            reported = await admin.explain(uuid)
        assert (reported.device.quarantine.reason, reported.device.quarantine.sticky) == ("remap-failed", True)
        assert reported.device.quarantine.probes == 0
        stays = "a new GPU needs nothing more; after a repair of this one, run `autoclave reinstate 0`"
        assert reported.advice == ("replace the GPU (RMA)", stays)
