"""Who opens a GPU that it was not given, on the real node: each way of a pod, watched and refused."""

from __future__ import annotations

import pytest

from scrubber.devices.simulated import layout
from tests.cluster.autoclave import SIMULATED
from tests.cluster.cluster import container

ESCAPES = ("a node of its own", "the host's node", "the node by the process of the host")


@pytest.fixture
def gpu(pods) -> layout.GpuFiles:  # noqa: ARG001 - the service has made it
    place = layout.places(SIMULATED)[0]
    if not place.memory.is_block_device():
        pytest.skip("takes loop devices, and control groups of version 2")
    return place


async def escapes(pods, way: str, gpu: layout.GpuFiles) -> list[str]:
    """Run a privileged pod to its end that opens this GPU in some way; what it said."""
    mount = {"name": "host", "mountPath": "/host"}
    flags = {
        "a node of its own": ("-open", "/gpu", "-number", str(gpu.memory.stat().st_rdev)),
        "the host's node": ("-open", f"/host/{gpu.memory.name}"),
        "the node by the process of the host": ("-open", f"/proc/1/root{gpu.memory}"),
    }[way]
    escape = container(*flags, "-for", "300ms", gpus=0)
    escape |= {"securityContext": {"privileged": True}, "volumeMounts": [*escape["volumeMounts"], mount]}
    host = {"name": "host", "hostPath": {"path": str(gpu.memory.parent)}}
    await pods.create("escape", escape, volumes=[*pods.spec()["volumes"], host], hostPID=True)
    await pods.ended("escape")
    words: list[str] = pods.words("escape")
    return words


@pytest.mark.parametrize("way", ESCAPES)
async def test_who_opens_a_foreign_gpu_ends_its_proof(pods, autoclave, gpu, way) -> None:
    before = (await autoclave.clean())[0].receipt
    assert "OPENED" in await escapes(pods, way, gpu)
    await autoclave.devices(lambda device: device.state == "clean" and device.receipt != before, 0)
    await pods.hold("next", gpus=4)
    assert pods.words("next").count("CLEAN") == 4


@pytest.mark.parametrize("way", ESCAPES)
async def test_a_pod_that_was_not_given_a_gpu_is_refused(pods, autoclave, gpu, way) -> None:
    autoclave.rule("{fence: {mode: refuse}}")
    before = (await autoclave.clean())[0].receipt
    await autoclave.devices(lambda device: device.fence == "refuse")
    assert "REFUSED" in await escapes(pods, way, gpu)
    assert (await autoclave.clean())[0].receipt == before
    await pods.hold("owner", gpus=4)
    assert pods.words("owner").count("CLEAN") == 4
