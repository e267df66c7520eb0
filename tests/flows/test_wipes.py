"""Memory in use is never wiped, nor given to anybody else, whatever the kubelet, a person or an intruder asks for.

The ids are those of the cases in which a naive implementation wipes memory in use. Not here:

* W4, W5, W6 are cases of the DRA interface, which this plugin does not serve.
* W7 and W9: a GPU has one id, and one resource offers it; there are no replicas, and two plugins exclude each other
  (``test_a_second_instance_is_refused_and_the_first_goes_on``).
* W8: simulated GPUs have no MIG slices; reset domains are tested in ``tests/jobs/test_jobs.py`` and by
  ``test_w8_no_device_is_handed_out_during_a_siblings_reset``.
* W11: ``test_x29_w11_a_killed_kubelet_joins_the_same_job``. W14: ``test_w14_a_pod_in_the_checkpoint_owns_the_device``.
* W16 would need a pid namespace: ``test_w16_without_whole_node_nothing_happens``.
* W19: ``test_another_process_with_the_same_pid_is_not_signalled``.
* W20: memory of a simulated GPU that is shared is a file that is open, whoever made it: W2, W15, and W20 in
  ``test_releases``.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from demo.installation import RESOURCE
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrubber.node import assignments
from tests.flows.node import WATCHES, brisk

ONE = {RESOURCE: 1}
AT_ONCE = brisk("budgets: {allocate: 500ms}")  # a tenant is not given time to leave
REFUSES = brisk("budgets: {allocate: 500ms}", WATCHES)  # the same, and Allocate refuses


async def test_w1_r8_of_two_pods_on_one_gpu_neither_starts(build):
    node = await build(2)
    first, other = await node.run("first"), await node.run("other")
    uuid, spare = await node.leave(first), node.gpu(other)
    victim, thief = node.pod("victim"), node.pod("thief", gpus=2)
    admission = asyncio.create_task(node.kubelet.admit(victim))
    await node.within("Allocate")
    await node.kubelet.finish(other)
    node.kubelet.list_pod_resources()
    node.heal(uuid)
    assert (await admission).phase is Phase.PENDING, (await admission).message
    await node.clean(spare)
    for each in (uuid, spare):
        await node.health(each, "Healthy")
    admitted = await node.kubelet.admit(thief)
    assert admitted.phase is Phase.PENDING, admitted.message
    assert (node.gpu(victim), uuid in node.kubelet.held(thief)["main"][RESOURCE]) == (uuid, True)
    for pod in (victim, thief):
        assert not await node.kubelet.sync(pod)
        assert "names more than one pod for it" in node.waiting(pod)
    await node.kubelet.delete(thief)
    await node.run("spare", Container("main"), Container("more", ONE))  # the kubelet writes its checkpoint anew
    assert await node.kubelet.sync(victim)


async def test_w2_r4_a_force_deleted_pod_keeps_its_gpu(build):
    node = await build(1, REFUSES)
    pod = await node.run("forced")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    await node.kubelet.force_delete(pod)
    status = await node.kubelet.run(node.pod("early"))
    assert (status.phase, "it is still in use" in status.message) == (Phase.FAILED, True)
    assert node.kubelet.devices(RESOURCE)[uuid] == "Unhealthy", "no further pod is tried on it"
    assert (node.memory(uuid), await node.scrubs(uuid)) == (left, 1)
    await node.kubelet.end_orphan(pod)
    await node.health(uuid, "Healthy")
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_w3_without_checkpoint_the_kubelet_takes_no_used_gpu(build):
    node = await build(1, REFUSES)
    pod = await node.run("forgotten")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    await node.kubelet.kill()
    (node.stage.kubelet_dir / assignments.NAME).unlink()
    await node.kubelet.start()
    await node.offered(1)
    status = await node.kubelet.run(node.pod("next"))
    assert node.asked("Allocate")[-1] == (uuid,), "the kubelet believes it free"
    assert (status.phase, "it is still in use" in status.message) == (Phase.FAILED, True)
    assert (node.memory(uuid), await node.scrubs(uuid)) == (left, 1)
    assert (await node.status(uuid)).owner == pod.uid


async def test_w10_w15_a_process_of_the_host_is_left_alone(build):
    node = await build(1, AT_ONCE)
    [uuid] = node.stage.uuids
    async with node.foreign_process(uuid, secret=b"a job of the host"):
        status = await node.kubelet.run(node.pod("early"))
        assert status.phase is Phase.FAILED
        await node.health(uuid, "Unhealthy")
        await node.reach(uuid, lambda device: device.state == "dirty")
        assert node.memory(uuid).startswith(b"a job of the host")
    await node.health(uuid, "Healthy")
    await node.run("next")
    assert await node.scrubs(uuid) == 2


async def test_w12_an_ended_init_containers_gpu_stays_in_use(node):
    pod = await node.run("prepare", Container("fetch", ONE, ContainerKind.INIT), Container("main"))
    uuid = node.gpu(pod, "fetch")
    [spare] = set(node.stage.uuids) - {uuid}
    shown = node.kubelet.list_pod_resources()
    assert not [device for of in shown.pod_resources for it in of.containers for device in it.devices]
    left = node.memory(uuid)
    await node.a_round(spare)
    assert ((await node.status(uuid)).state, await node.scrubs(uuid)) == ("in_use", 1)
    assert node.memory(uuid) == left


async def test_w13_an_empty_pod_resources_answer_releases_no_gpu(node):
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    [spare] = set(node.stage.uuids) - {uuid}
    known = dict(node.kubelet.pods)
    await node.kubelet.kill()
    node.kubelet.pods.clear()  # the API server has not told this kubelet of any pod yet
    await node.kubelet.start()
    await node.offered(2)
    assert not node.kubelet.list_pod_resources().pod_resources
    await node.a_round(spare)
    assert ((await node.status(uuid)).owner, await node.scrubs(uuid)) == (pod.uid, 1)
    assert node.memory(uuid) == left
    node.kubelet.pods.update(known)
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING


async def test_w17_the_plugins_socket_gives_away_no_gpu_in_use(build):
    node = await build(2, REFUSES)
    pod = await node.run("train")
    uuid, left = node.gpu(pod), node.memory(node.gpu(pod))
    [spare] = set(node.stage.uuids) - {uuid}
    async with node.door() as plugin:
        for ids in ([uuid], [uuid, spare]):
            with pytest.raises(grpc.aio.AioRpcError, match="it is still in use"):
                await plugin.Allocate(
                    wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
                )
        await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=[uuid]))
        with pytest.raises(grpc.aio.AioRpcError, match="the kubelet's checkpoint names no pod for it"):
            await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=[spare]))
    assert ((await node.status(uuid)).owner, (await node.status(spare)).state) == (pod.uid, "clean")
    assert (node.memory(uuid), await node.scrubs(uuid)) == (left, 1)


async def test_w18_a_restart_waits_for_a_live_container_beside_it(build):
    node = await build(1, brisk("model: per-container"), soon=True)
    pod = await node.run("pair")
    uuid = node.gpu(pod)
    async with node.foreign_process(uuid, pod.uid, f"<{pod.uid}>".encode()):
        left = node.memory(uuid)
        assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.WAITING
        assert "it is still in use" in node.waiting(pod)
        assert (node.memory(uuid), await node.scrubs(uuid)) == (left, 1)
    await node.kubelet.keep_trying(pod)
    assert await node.scrubs(uuid) == 2


async def test_w21_a_container_that_starts_during_a_scrub_ends_it(build):
    node = await build(1, brisk("model: per-container", WATCHES), soon=True)
    pod = await node.run("train")
    uuid = node.gpu(pod)
    node.stall(uuid)
    restart = asyncio.create_task(node.kubelet.restart_container(pod, "main"))
    await node.job(uuid)
    async with node.foreign_process(uuid, pod.uid, b"written by one that did not ask"):
        await node.reach(uuid, lambda device: device.job is None)
        node.heal(uuid)
        assert (await restart).state is ContainerState.WAITING
        assert b"written by one that did not ask" in node.memory(uuid)
        assert await node.scrubs(uuid) == 1
    await node.clean(uuid)
    await node.kubelet.keep_trying(pod)
    assert await node.scrubs(uuid) == 2
