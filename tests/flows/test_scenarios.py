"""What befalls pods on a node, event by event: who is asked, what is scrubbed, and what is left alone.

The ids are those of the end-to-end runs on a real kubelet (X), of the kubelet's faults (R) and of the table of
scenarios. What is special about memory in use stands in ``test_wipes``, about a scrub that is due in ``test_skips``.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from demo.installation import RESOURCE
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from tests.flows.node import WATCHES, Node, brisk

ONE = {RESOURCE: 1}


async def test_x2_init_and_app_share_a_gpu_and_a_scrub(build):
    node = await build(1)
    pod = await node.run("train", Container("fetch", ONE, ContainerKind.INIT), Container("main", ONE))
    uuid = node.gpu(pod)
    assert node.gpu(pod, "fetch") == uuid
    assert node.asked("Allocate") == node.asked("PreStartContainer") == [(uuid,), (uuid,)]
    assert await node.scrubs(uuid) == 1
    assert node.memory(uuid), "what the init container left is the app container's"
    await node.kubelet.delete(pod)
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_x4_a_crash_loop_costs_no_scrub_and_no_memory(build):
    node = await build(1)
    pod = await node.run("crash")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    for _ in range(3):
        assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert node.asked("Allocate") == [(uuid,)]
    assert node.asked("PreStartContainer") == [(uuid,)] * 4
    assert (await node.scrubs(uuid), node.memory(uuid)) == (1, left)


async def test_x15_a_kubelet_restart_under_running_containers_changes_nothing(node):
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    [spare] = set(node.stage.uuids) - {uuid}
    before = len(node.kubelet.calls)
    await node.restart_kubelet()
    await node.offered(2)
    hooks = {call.method for call in node.kubelet.calls[before:]}
    assert hooks == {"GetDevicePluginOptions", "ListAndWatch"}
    assert (await node.status(uuid)).owner == pod.uid
    assert node.gpu(await node.run("other")) == spare
    assert (await node.scrubs(uuid), node.memory(uuid)) == (1, left)


async def test_x19_r11_a_restart_without_prestart_stays_with_its_owner(build):
    node = await build(1)
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    await node.stage.plugin.end(signal.SIGKILL)
    await node.kubelet.kill()
    await node.kubelet.start()
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert [start.prestart for start in node.kubelet.starts] == [True, False]
    await node.stage.plugin.start()
    await node.offered(1)
    assert ((await node.status(uuid)).owner, await node.scrubs(uuid)) == (pod.uid, 1)
    assert node.memory(uuid) == left
    await node.kubelet.delete(pod)
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_x29_w11_a_killed_kubelet_joins_the_same_job(build):
    node = await build(1, brisk("fence: {mode: refuse}"))
    if node.stage.groups is None:
        pytest.skip("the fence needs root, and control groups of version 2")
    uuid = await node.leave(await node.run("first"))
    second = node.pod("second")
    await node.kubelet.admit(second)
    start = asyncio.create_task(node.kubelet.sync(second))
    await node.within("PreStartContainer")
    await node.kubelet.kill()
    with pytest.raises(NotRunning):
        await start
    await node.kubelet.start()
    await node.offered(1)
    start = asyncio.create_task(node.kubelet.sync(second))
    await node.within("PreStartContainer")
    node.heal(uuid)
    assert await start
    assert await node.scrubs(uuid) == len(await node.history(uuid, "scrub-started")) == 2


async def test_x19_the_fence_holds_a_start_without_prestart(build):
    """The pod was given a GPU that is not clean, and then the kubelet asks nobody."""
    node = await build(1, brisk("fence: {mode: refuse}"))
    if node.stage.groups is None:
        pytest.skip("takes root, and control groups of version 2")
    uuid = await node.leave(await node.run("first"))
    second = node.pod("second")
    assert (await node.kubelet.admit(second)).phase is not Phase.FAILED
    unasked = node.stage.containers.start(
        second, second.containers[0], {RESOURCE: (uuid,)}, wire.ContainerAllocateResponse()
    )
    with pytest.raises(RuntimeError, match="did not start"):
        await unasked
    assert node.stage.containers.leaks, "it could have read what the first pod left"
    node.stage.containers.leaks.clear()
    start = asyncio.create_task(node.kubelet.sync(second))
    await node.within("PreStartContainer")
    node.heal(uuid)
    assert await start
    assert await node.scrubs(uuid) == 2


@pytest.mark.parametrize("restart", [Node.restart_plugin, Node.restart_kubelet])
async def test_x16_a_restart_between_allocate_and_prestart_costs_nothing(build, restart):
    node = await build(1)
    pod = node.pod("train")
    await node.kubelet.admit(pod)
    await restart(node)
    assert await node.kubelet.sync(pod)
    assert (node.asked("Allocate"), await node.scrubs(node.gpu(pod))) == ([(node.gpu(pod),)], 1)


async def test_x21_s6_after_a_reboot_pods_start_on_scrubbed_gpus(build):
    node = await build(1)
    pod = await node.run("train")
    uuid = node.gpu(pod)
    await node.reboot()
    await node.stage.plugin.start()
    await node.offered(1)
    await node.clean()
    assert await node.kubelet.readmit() == []
    assert not node.memory(uuid)
    assert await node.kubelet.sync(pod)
    assert (len(node.asked("Allocate")), len(node.asked("PreStartContainer"))) == (1, 2)
    assert ((await node.status(uuid)).owner, await node.scrubs(uuid)) == (pod.uid, 2)
    await node.kubelet.delete(pod)
    await node.run("next")
    assert await node.scrubs(uuid) == 3


async def test_x32_over_the_budget_unhealthy_is_sent_before_the_refusal(build):
    node = await build(1, brisk("budgets: {allocate: 1s}", WATCHES))
    uuid = await node.leave(await node.run("first"))
    refused = asyncio.create_task(node.kubelet.admit(node.pod("second")))
    call = await node.within("Allocate")
    await node.kubelet.until(lambda: call.outcome or node.kubelet.devices(RESOURCE)[uuid] == "Unhealthy")
    assert not call.outcome, "the list comes before the error"
    status = await refused
    assert (status.phase, "it is being scrubbed" in status.message) == (Phase.FAILED, True), status.message
    node.heal(uuid)
    await node.health(uuid, "Healthy")
    await node.run("third")


async def test_a_gpu_shows_its_pod_from_start_to_end(build):
    node = await build(gpus=1)
    pod = node.pod("train", Container("prepare", {RESOURCE: 1}, ContainerKind.INIT), Container("main", {RESOURCE: 1}))
    await node.kubelet.admit(pod)
    uuid = node.gpu(pod)
    granted = await node.status(uuid)
    assert (granted.state, granted.owner, granted.pod) == ("granted", "", pod.uid)  # nothing has a name yet
    await node.kubelet.sync(pod)
    shown = await node.status(uuid)
    reported = "default/train/main, default/train/prepare"
    assert (shown.state, shown.owner, shown.pod) == ("in_use", pod.uid, reported)
    async with node.stage.admin() as admin:
        assert (await admin.explain(uuid)).device.pod == reported
    await node.kubelet.delete(pod)
    await node.clean(uuid)
    assert (await node.status(uuid)).pod == ""
    assert list(node.stage.pod_logs.iterdir()) == []
