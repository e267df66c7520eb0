"""Whose a GPU is, as people call it, on a whole node: the kubelet stand-in makes the directories that tell."""

from __future__ import annotations

import os
from contextlib import suppress

from demo.handout import RESOURCE
from demo.standins.pods import Container, ContainerKind
from scrubber.node import checkpoint


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


async def test_a_file_that_does_not_answer_costs_only_the_name(node):
    pod = await node.run("train")
    uuid = node.gpu(pod)
    file = node.stage.kubelet_dir / checkpoint.NAME
    aside = file.rename(file.with_name("aside"))
    os.mkfifo(file)  # whoever reads it waits for a writer
    try:
        assert (await node.status(uuid)).owner == pod.uid
        assert (await node.status(uuid)).pod == ""
        assert await node.history(uuid, "in-use")
    finally:
        with suppress(OSError):
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))  # whoever waits reads that there is nothing
        aside.replace(file)
    await node.reach(uuid, lambda device: device.pod == "default/train/main")
