"""Who opens a GPU that it was not given, on the real node: each way of a pod, watched and refused.

One way is missing: a pod with ``NVIDIA_VISIBLE_DEVICES=all`` gets its GPUs from NVIDIA's runtime, which knows no
simulated ones. It then opens them as every pod here does, in its own control group.
"""

from __future__ import annotations

import os

import pytest

from scrubber.devices.simulated import layout
from tests.cluster.autoclave import SIMULATED
from tests.cluster.cluster import container
from tests.cluster.isolated import second_version

ESCAPES = (
    "its own /dev",
    "a node of its own",
    "the host's node",
    "the node by the process of the host",
    "the node in the mounts of the host",
)


@pytest.fixture
def gpu(pods) -> layout.GpuFiles:  # noqa: ARG001 - the service has made it
    place = layout.places(SIMULATED)[0]
    if not place.memory.is_block_device():
        pytest.skip("takes root, and loop devices, and control groups of version 2")
    return place


async def escapes(pods, name: str, way: str, gpu: layout.GpuFiles, *, privileged: bool = True) -> list[str]:
    """Run a pod to its end that opens this GPU in some way; what it said."""
    number = gpu.memory.stat().st_rdev
    mount = {"name": "host", "mountPath": "/host"}
    flags = {
        "its own /dev": ("-open", f"/dev/loop{os.minor(number)}"),
        "a node of its own": ("-open", "/gpu", "-number", str(number)),
        "the host's node": ("-open", f"/host/{gpu.memory.name}"),
        "the node by the process of the host": ("-open", f"/proc/1/root{gpu.memory}"),
        "the node in the mounts of the host": ("-enter", "-open", str(gpu.memory)),
    }[way]
    escape = container(*flags, "-for", "300ms", gpus=0)
    escape |= {"securityContext": {"privileged": privileged}, "volumeMounts": [*escape["volumeMounts"], mount]}
    host = {"name": "host", "hostPath": {"path": str(gpu.memory.parent)}}
    await pods.create(name, escape, volumes=[*pods.spec()["volumes"], host], hostPID=True)
    await pods.ended(name)
    words: list[str] = pods.words(name)
    return words


async def handed_out(autoclave) -> str:
    """How this GPU was handed out last, and with which receipt."""
    texts: list[str] = [row.text for row in await autoclave.history("0")]
    return [text for text in texts if text.startswith("handed out")][-1]


@pytest.mark.parametrize("way", ESCAPES)
async def test_who_opens_a_foreign_gpu_ends_its_proof(pods, autoclave, gpu, way) -> None:
    before = (await autoclave.clean())[0].receipt
    assert "OPENED" in await escapes(pods, "escape", way, gpu)
    await autoclave.devices(lambda device: device.state == "clean" and device.receipt != before, 0)
    await pods.hold("next", gpus=4)
    assert pods.words("next").count("CLEAN") == 4


@pytest.mark.parametrize("way", ESCAPES)
async def test_a_pod_that_was_not_given_a_gpu_is_refused(pods, autoclave, gpu, way) -> None:
    autoclave.rule(fence={"mode": "refuse"})
    before = (await autoclave.clean())[0].receipt
    await autoclave.devices(lambda device: device.fence == "refuse")
    assert "REFUSED" in await escapes(pods, "early", way, gpu)
    await pods.hold("owner", gpus=4)
    assert pods.words("owner").count("CLEAN") == 4
    assert before.id in await handed_out(autoclave)
    assert "REFUSED" in await escapes(pods, "late", way, gpu)
    await pods.said("owner", "INTACT", more=2)


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
