"""What looks like the end of a tenancy and is none, and what is one and does not look like it.

Most of these stories are told in ``test_scenarios``, ``test_wipes`` and ``test_skips``. Here are those that take their
time: somebody looks while nothing happens.
"""

from __future__ import annotations

import signal

import grpc
import pytest

from demo.handout import RESOURCE
from demo.standins.pods import Container, Phase
from plugin.kubelet_api import deviceplugin_pb2 as wire
from scrubber.devices.simulated import layout
from scrubber.ground.errors import Refused
from tests.flows.node import Node, brisk
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
    assert ((await node.status(granted)).state, node.kubelet.devices(RESOURCE)[granted]) == ("granted", "Healthy")
    assert await node.kubelet.sync(pod)
    assert [node.memory(uuid) for uuid in gpus] == before
    async with node.door() as plugin:
        await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=[granted]))
    await kept(node, slow.uid, granted)
    await node.kubelet.delete(slow)
    await node.clean(granted)
    assert await node.scrubs(granted) == 2


async def test_an_unannounced_user_is_reported_and_never_ended(build):
    """Looks like a release: the owner is gone, but a process of another pod has imported its memory.

    No tenancy at all: that pod uses one more GPU, and the host another one, and one that was granted a moment before.
    """
    node = await build(5, brisk("budgets: {owner_wait: 0s, start: 2s}", "evict: {leftovers: wait}"))
    owner, other, waits = await node.run("owner"), await node.run("other"), node.pod("waits")
    await node.kubelet.admit(waits)
    left, own, given = (node.gpu(pod) for pod in (owner, other, waits))
    free, bare = (uuid for uuid in node.stage.uuids if uuid not in {left, own, given})
    kept_here, theirs = node.memory(left), node.memory(own)
    async with (
        node.foreign_process(left, other.uid) as importer,
        node.foreign_process(given, secret=b"a shell") as shell,
        node.foreign_process(free, other.uid, b"a second one") as greedy,
        node.foreign_process(bare, secret=b"a job of the host") as job,
    ):
        await node.kubelet.delete(owner)
        for uuid, name in ((free, other.uid), (bare, "no container")):
            await node.health(uuid, "Unhealthy")
            [alarm] = await node.history(uuid, "soiled")
            assert "without a grant" in alarm.text
            assert name in alarm.text
        assert not await node.kubelet.sync(waits)
        assert "it is still in use" in node.waiting(waits)
        async with node.door() as plugin:
            for uuid in (left, free, bare):
                with pytest.raises(grpc.aio.AioRpcError, match="it is still in use"):
                    await plugin.Allocate(asking(uuid))
        assert [it.lives() for it in (importer, shell, greedy, job)] == [True] * 4
        await kept(node, owner.uid, left)
        assert [node.memory(uuid) for uuid in (left, given)] == [kept_here, b"a shell"]
        assert (node.memory(free)[:12], node.memory(bare)) == (b"a second one", b"a job of the host")
    await node.clean(left, free, bare, given)
    assert await node.kubelet.sync(waits), node.waiting(waits)
    assert [await node.scrubs(uuid) for uuid in (left, free, bare, given, own)] == [2, 2, 2, 2, 1]
    assert node.memory(own) == theirs


async def test_an_unkillable_leftover_quarantines_its_gpu_until_it_ends(build, tmp_path):
    """A release that is never over: it hangs for longer than policy waits for, and is named as the reason."""
    words = ("budgets: {owner_wait: 0s}", "evict: {grace: 10ms, give_up: 0s}", "quarantine: {probation: {first: 1s}}")
    node = await build(1, brisk(*words))
    pod = await node.run("train")
    uuid = node.gpu(pod)
    with hanging(layout.find(node.stage.simulated, uuid).memory, tmp_path / "nowhere") as leftover:
        await node.kubelet.delete(pod)
        out = (await node.reach(uuid, lambda device: device.quarantine is not None)).quarantine
        assert out is not None
        assert (out.reason, out.next_path, out.sticky) == ("stuck-process", "fast", False)
        assert f'pid {leftover.pid} ("python' in out.detail
        assert "in no container, stuck in the kernel (state D)" in out.detail
        async with node.stage.admin() as admin:
            [advice] = (await admin.explain(uuid)).advice
        assert "look at the kernel stack (/proc/PID/stack)" in advice
        await node.health(uuid, "Unhealthy")
        assert (leftover.state, await node.scrubs(uuid)) == ("D", 1)
        leftover.let_go()
        await node.clean(uuid)
    assert await node.scrubs(uuid) == 2
    assert len(await node.history(uuid, "probation-started")) == 1, "tried only once nobody was on it"
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


def asking(*uuids: str) -> wire.AllocateRequest:
    """What the kubelet sends for one container."""
    return wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=uuids)])
