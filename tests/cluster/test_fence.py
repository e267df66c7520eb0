"""Who opens a GPU that it was not given, on the real node: each way of a pod, watched and refused.

One way is missing: a pod with ``NVIDIA_VISIBLE_DEVICES=all`` gets its GPUs from NVIDIA's runtime, which knows no
simulated ones. It then opens them as every pod here does, in its own control group.
"""

from __future__ import annotations

import pytest

from tests.cluster.escapes import WAYS, escapes, stays_shut
from tests.cluster.isolated import second_version


async def handed_out(autoclave) -> str:
    """How this GPU was handed out last, and with which receipt."""
    texts: list[str] = [row.text for row in await autoclave.history("0")]
    return [text for text in texts if text.startswith("handed out")][-1]


@pytest.mark.parametrize("way", WAYS)
async def test_who_opens_a_foreign_gpu_ends_its_proof(pods, autoclave, gpu, way) -> None:
    autoclave.rule(fence={"mode": "watch"})
    await autoclave.devices(lambda device: device.fence == "watch")
    before = (await autoclave.clean())[0].receipt
    assert "OPENED" in await escapes(pods, "escape", way, gpu)
    await autoclave.devices(lambda device: device.state == "clean" and device.receipt != before, 0)
    await pods.hold("next", gpus=4)
    assert pods.words("next").count("CLEAN") == 4


@pytest.mark.parametrize("way", WAYS)
async def test_a_pod_that_was_not_given_a_gpu_is_refused(pods, autoclave, gpu, way) -> None:
    before = (await autoclave.clean())[0].receipt
    assert "REFUSED" in await escapes(pods, "early", way, gpu)
    await pods.hold("owner", gpus=4)
    assert pods.words("owner").count("CLEAN") == 4
    assert before.id in await handed_out(autoclave)
    assert "REFUSED" in await escapes(pods, "late", way, gpu)
    await pods.said("owner", "INTACT", more=2)


async def test_a_monitor_that_no_policy_names_is_held(pods, autoclave, gpu) -> None:
    """From ``mode: observe``, with which a live cluster begins, to the defaults."""
    autoclave.rule(mode="observe")
    await autoclave.devices(lambda device: device.fence == "watch")
    assert "OPENED" in await escapes(pods, "seen", "its own /dev", gpu)
    await autoclave.devices(lambda device: asked(device).get("default/seen") is False, 0)
    autoclave.rule()
    await autoclave.ready()
    assert "REFUSED" in await escapes(pods, "held", "its own /dev", gpu)
    await autoclave.devices(lambda device: asked(device).get("default/held", False), 0)
    await pods.hold("next", gpus=4)
    assert pods.words("next").count("CLEAN") == 4


def asked(device) -> dict[str, bool]:
    """The pods that asked for a device which was not given to them, and whether they were refused."""
    return {opener.pod: opener.refused > 0 for opener in device.openers}


async def test_only_a_pod_that_was_given_a_gpu_opens_it(cluster, autoclave, gpu) -> None:
    await stays_shut(cluster, autoclave, gpu, lambda name: cluster.hold(name, gpus=4))


@pytest.mark.parametrize("way", ["a node of its own", "the host's node"])
async def test_a_pod_without_rights_ends_no_proof(pods, autoclave, gpu, way) -> None:
    if not second_version():
        pytest.skip(
            "where pods are in control groups of version 1, the kernel asks the fence before the container's rules"
        )
    before = (await autoclave.clean())[0].receipt
    assert "REFUSED" in await escapes(pods, "escape", way, gpu, privileged=False)
    await pods.hold("owner", gpus=4)
    assert before.id in await handed_out(autoclave)
