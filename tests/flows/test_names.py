"""Whose a GPU is, as people call it, on a whole node: the kubelet stand-in makes the directories that tell."""

from __future__ import annotations

from demo.handout import RESOURCE
from demo.standins.pods import Container, ContainerKind


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
