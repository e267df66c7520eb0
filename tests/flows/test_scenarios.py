"""What befalls pods on a node, event by event: who is asked, what is scrubbed, and what is left alone.

The ids are those of the end-to-end runs on a real kubelet (X), of the kubelet's faults (R) and of the table of
scenarios. What is special about memory in use stands in ``test_wipes``, about a scrub that is due in ``test_skips``.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from demo.handout import RESOURCE
from demo.standins.kubelet import NotRunning
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from tests.flows.node import Node, brisk
from tests.patience import WITHIN

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


async def test_x2_between_init_and_app_the_gpu_is_not_released(build):
    """The app's image is still pulled: the pod runs nothing but its sandbox and, later on, a sidecar without a GPU."""
    node = await build(2)
    containers = (
        Container("fetch", ONE, ContainerKind.INIT),
        Container("proxy", {}, ContainerKind.SIDECAR),
        Container("main", ONE),
    )
    pod = node.pod("train", *containers)
    assert (await node.kubelet.admit(pod)).phase is not Phase.FAILED
    await node.kubelet.start_container(pod, "fetch")
    uuid = node.gpu(pod, "fetch")
    [spare] = set(node.stage.uuids) - {uuid}
    left = node.memory(uuid)
    assert left
    await node.a_round(spare)
    assert ((await node.status(uuid)).state, await node.scrubs(uuid)) == ("in_use", 1)
    await node.kubelet.start_container(pod, "proxy")
    await node.a_round(spare)
    assert ((await node.status(uuid)).state, await node.scrubs(uuid), node.memory(uuid)) == ("in_use", 1, left)
    assert (await node.kubelet.start_container(pod, "main")).state is ContainerState.RUNNING
    assert (await node.status(uuid)).owner == pod.uid
    assert await node.scrubs(uuid) == 1


async def test_x3_sidecar_and_app_leave_each_others_gpus_alone(node):
    pod = await node.run("web", Container("proxy", ONE, ContainerKind.SIDECAR), Container("main", ONE))
    proxy, main = node.gpu(pod, "proxy"), node.gpu(pod)
    assert proxy != main
    left = node.memory(proxy)
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert node.asked("PreStartContainer") == [(proxy,), (main,), (main,)]
    assert (await node.scrubs(proxy), await node.scrubs(main)) == (1, 1)
    assert node.memory(proxy) == left


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


async def test_x19_r11_the_gate_holds_a_restart_without_prestart(gated):
    """Each container is due a clean device, and the kubelet asks nobody."""
    node = await gated(1, "model: per-container")
    pod = await node.run("train")
    uuid = node.gpu(pod)
    await node.stage.plugin.end(signal.SIGKILL)
    await node.kubelet.kill()
    await node.kubelet.start()
    for starts in (2, 3):
        status = await node.kubelet.restart_container(pod, "main")
        assert (status.state, len(node.kubelet.starts)) == (ContainerState.RUNNING, starts)
        assert await node.scrubs(uuid) == starts
    await node.stage.service.end(signal.SIGKILL)
    restarted = asyncio.create_task(node.kubelet.restart_container(pod, "main"))
    await node.stage.service.start()
    assert (await restarted).state is ContainerState.RUNNING


async def test_a_pod_waits_while_the_service_is_away(gated):
    """With the create gate it is admitted. Its container starts on a clean device when the service is back."""
    node = await gated(1)
    first = await node.run("first")
    await node.stage.service.end(signal.SIGKILL)
    await node.kubelet.delete(first)
    second = node.pod("second")
    assert (await node.kubelet.admit(second)).phase is not Phase.FAILED
    assert not await node.kubelet.sync(second)
    assert second.statuses["main"].state is ContainerState.WAITING
    await node.stage.service.start()
    async with asyncio.timeout(WITHIN):
        while not await node.kubelet.sync(second):
            pass
    assert await node.scrubs(node.gpu(second)) == 2


async def test_x29_w11_a_killed_kubelet_joins_the_same_job(gated):
    node = await gated(1)
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


async def test_x30_an_interrupted_allocates_scrub_serves_the_next_pod(build):
    node = await build(1)
    uuid = await node.leave(await node.run("first"))
    admission = asyncio.create_task(node.kubelet.admit(node.pod("lost")))
    await node.within("Allocate")
    await node.kubelet.kill()
    with pytest.raises(NotRunning):
        await admission
    await node.kubelet.start()
    await node.offered(1)
    await node.kubelet.delete(node.pods["lost"])
    run = asyncio.create_task(node.run("next"))
    await node.within("Allocate")
    node.heal(uuid)
    await run
    assert await node.scrubs(uuid) == len(await node.history(uuid, "scrub-started")) == 2


async def test_x16_a_plugin_restart_leaves_a_running_pod_alone(node):
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    await node.restart_plugin()
    await node.offered(2)
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert (await node.scrubs(uuid), node.memory(uuid)) == (1, left)
    assert node.gpu(await node.run("other")) != uuid


@pytest.mark.parametrize("restart", [Node.restart_plugin, Node.restart_kubelet])
async def test_x16_a_restart_between_allocate_and_prestart_costs_nothing(build, restart):
    node = await build(1)
    pod = node.pod("train")
    await node.kubelet.admit(pod)
    await restart(node)
    assert await node.kubelet.sync(pod)
    assert (node.asked("Allocate"), await node.scrubs(node.gpu(pod))) == ([(node.gpu(pod),)], 1)


async def test_x16_a_pod_that_ends_without_the_plugin_is_scrubbed(build):
    node = await build(1)
    pod = await node.run("train")
    uuid = node.gpu(pod)
    await node.stage.plugin.end(signal.SIGKILL)
    await node.offered(0)
    await node.kubelet.delete(pod)
    await node.clean(uuid)
    assert not node.memory(uuid)
    await node.stage.plugin.start()
    await node.offered(1)
    assert node.gpu(await node.run("next")) == uuid
    assert await node.scrubs(uuid) == 2


async def test_a_pod_that_ends_without_the_service_is_scrubbed_first(build):
    node = await build(1, brisk("budgets: {silence: 0s}"))
    pod = await node.run("train")
    uuid = node.gpu(pod)
    await node.kill_service()
    await node.kubelet.delete(pod)
    left = node.memory(uuid)
    assert (await node.kubelet.admit(node.pod("early"))).phase is Phase.FAILED
    assert node.memory(uuid) == left
    await node.stage.start()
    await node.clean(uuid)
    await node.health(uuid, "Healthy")
    assert not node.memory(uuid)
    await node.run("next")


async def test_x20_after_a_reboot_early_pods_fail(node):
    pod = await node.run("train")
    await node.reboot()
    assert await node.kubelet.readmit() == [pod]
    assert (pod.phase, "no healthy devices present" in pod.message) == (Phase.FAILED, True)
    await node.stage.plugin.start()
    await node.offered(2)
    await node.clean()
    for uuid in node.stage.uuids:
        assert await node.scrubs(uuid) == 2
        assert not node.memory(uuid)


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


async def test_x23_a_pod_deleted_during_prestart_is_scrubbed_after(gated):
    node = await gated(1)
    first = await node.run("first")
    uuid = await node.leave(first)
    second = node.pod("second")
    await node.kubelet.admit(second)
    start = asyncio.create_task(node.kubelet.sync(second))
    await node.within("PreStartContainer")
    delete = asyncio.create_task(node.kubelet.delete(second))
    node.heal(uuid)
    await asyncio.gather(start, delete)
    assert [start.pod for start in node.kubelet.starts] == [first.uid, second.uid]
    assert node.memory(uuid)
    await node.run("third")
    assert await node.scrubs(uuid) == 3


async def test_x31_the_grant_of_a_failed_pod_serves_the_next(node):
    held = await node.run("held")
    await node.kubelet.force_delete(held)
    failed = node.pod("failed", Container("a", ONE), Container("b", ONE))
    status = await node.kubelet.run(failed)
    [free] = set(node.stage.uuids) - set(*node.asked("Allocate")[:1])
    assert (status.phase, node.asked("Allocate")[1]) == (Phase.FAILED, (free,))
    assert (await node.status(free)).state == "granted"
    assert node.gpu(await node.run("next")) == free
    assert await node.scrubs(free) == 1


async def test_x32_over_the_budget_unhealthy_is_sent_before_the_refusal(build):
    node = await build(1, brisk("budgets: {allocate: 300ms, owner_wait: 0s}"))
    uuid = await node.leave(await node.run("first"))
    refused = asyncio.create_task(node.kubelet.admit(node.pod("second")))
    call = await node.within("Allocate")
    await node.kubelet.until(lambda: call.outcome or node.kubelet.devices(RESOURCE)[uuid] == "Unhealthy")
    assert not call.outcome, "the list comes before the error"
    status = await refused
    assert (status.phase, "it is being scrubbed" in status.message) == (Phase.FAILED, True)
    node.heal(uuid)
    await node.health(uuid, "Healthy")
    await node.run("third")


def asking(*uuids: str) -> wire.AllocateRequest:
    """What the kubelet sends for one container."""
    return wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=uuids)])
