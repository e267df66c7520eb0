"""What looks like the end of a tenancy and is none, and what is one and does not look like it.

Most of these stories are told in ``test_scenarios``, ``test_wipes`` and ``test_skips``. Here are those that take their
time: somebody looks while nothing happens.
"""

from __future__ import annotations

import signal

import pytest

from demo.installation import RESOURCE
from demo.standins.pods import Container, Phase
from ground.errors import Refused
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrubber.devices.simulated import layout
from tests.flows.node import WATCHES, Node, brisk
from tests.hanging import hanging

ONE = {RESOURCE: 1}


async def test_a_pod_that_waits_to_start_keeps_its_gpu(build):
    """Looks like a release: of one pod all containers wait to be started again, another one's image is not there yet.

    Nor has it gone when its container was let start and could not be made; but then its GPU counts as used.
    """
    node = await build(4)
    pod, slow = await node.run("pair", Container("left", ONE), Container("right", ONE)), node.pod("slow")
    gpus = [node.gpu(pod, name) for name in ("left", "right")]
    before = [node.memory(uuid) for uuid in gpus]
    await node.kubelet.admit(slow)
    await node.stage.containers.open_sandbox(slow)
    granted = node.gpu(slow)
    [spare] = set(node.stage.uuids) - {*gpus, granted}
    for name in ("left", "right"):
        await node.kubelet.exit_container(pod, name)
    await node.a_round(spare)
    await kept(node, pod.uid, *gpus)
    assert ((await node.status(granted)).state, node.kubelet.devices(RESOURCE)[granted]) == ("clean", "Healthy")
    assert await node.kubelet.sync(pod)
    assert [node.memory(uuid) for uuid in gpus] == before
    async with node.door() as plugin:
        await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=[granted]))
    await kept(node, slow.uid, granted)
    await node.kubelet.delete(slow)
    await node.clean(granted)
    assert await node.scrubs(granted) == 2


async def test_w20_an_importer_of_memory_is_never_ended(build):
    """A release, but no scrub follows: the owner is gone, and a process of another pod has imported its memory."""
    node = await build(2, brisk("budgets: {allocate: 500ms}", "evict: {leftovers: wait}", WATCHES))
    owner, other = await node.run("owner"), await node.run("other")
    uuid = node.gpu(owner)
    left = node.memory(uuid)
    async with node.foreign_process(uuid, other.uid) as importer:
        await node.kubelet.delete(owner)
        assert (await node.kubelet.run(node.pod("early"))).phase is Phase.FAILED
        await node.reach(uuid, lambda device: device.state == "dirty" and not device.healthy)
        assert (await node.scrubs(uuid), importer.lives(), node.memory(uuid)) == (1, True, left)
    await node.clean(uuid)
    assert (await node.scrubs(uuid), await node.scrubs(node.gpu(other))) == (2, 1)


async def test_an_unkillable_leftover_keeps_its_gpu_out_until_it_ends(build, tmp_path):
    """A release that is never over. The quarantine that follows is in ``tests/service/test_stuck.py``."""
    node = await build(1, brisk("budgets: {allocate: 500ms}", "evict: {grace: 10ms}"))
    pod = await node.run("train")
    uuid = node.gpu(pod)
    with hanging(layout.find(node.stage.simulated, uuid).memory, tmp_path / "nowhere") as leftover:
        await node.kubelet.delete(pod)
        out = await node.reach(uuid, lambda device: "stuck in the kernel" in device.setback)
        assert f'pid {leftover.pid} ("python' in out.setback
        assert "in no container, stuck in the kernel (state D)" in out.setback
        await node.health(uuid, "Unhealthy")
        assert (leftover.state, await node.scrubs(uuid)) == ("D", 1)
        leftover.let_go()
        await node.clean(uuid)
    assert await node.scrubs(uuid) == 2
    await node.health(uuid, "Healthy")
    await node.run("next")


async def test_only_gpus_of_pods_that_ended_meanwhile_get_scrubbed(build):
    """A release that nobody saw, and none: of another pod only the sandbox was there, which nobody had seen before."""
    node = await build(2)
    ends, stays = await node.run("ends"), await node.run("stays")
    uuid, other = node.gpu(ends), node.gpu(stays)
    left = node.memory(other)
    await node.stage.service.end(signal.SIGKILL)
    await node.kubelet.exit_container(stays, "main")
    await node.kubelet.delete(ends)
    assert node.memory(uuid)
    await node.stage.service.start()
    refused: list[str] = []
    while True:
        await node.health(uuid, "Healthy")  # the kubelet may not have noticed that anything was wrong
        following = await node.kubelet.run(node.pod("next"))
        if following.phase is Phase.RUNNING:
            break
        refused.append(following.message or node.waiting(node.pods["next"]))
        assert len(refused) < 20, refused
    assert (node.gpu(node.pods["next"]), await node.scrubs(uuid)) == (uuid, 2)
    await kept(node, stays.uid, other)
    assert await node.kubelet.sync(stays)
    assert node.memory(other) == left


async def kept(node: Node, owner: str, *uuids: str) -> None:
    """They are this pod's, nothing was scrubbed, and whoever says that it has left is not believed."""
    for uuid in uuids:
        status = await node.status(uuid)
        assert (status.state, status.owner, await node.scrubs(uuid)) == ("in_use", owner, 1), status
    async with node.stage.scrubber() as scrubber:
        for uuid in uuids:
            with pytest.raises(Refused, match="it is still in use"):
                await scrubber.release([uuid])
