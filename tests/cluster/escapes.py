"""Pods that open a GPU that they were not given."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from signal import SIGKILL

from scrubber.devices.simulated import layout
from tests.cluster.autoclave import GPUS, Autoclave
from tests.cluster.cluster import Cluster, container

WAYS = (
    "its own /dev",
    "a node of its own",
    "the host's node",
    "the node by the process of the host",
    "the node in the mounts of the host",
)


async def escapes(pods: Cluster, name: str, way: str, gpu: layout.GpuFiles, *, privileged: bool = True) -> list[str]:
    """Run a pod to its end that opens this GPU in some way; what it said."""
    number = gpu.memory.stat().st_rdev
    flags = {
        "its own /dev": ("-open", f"/dev/loop{os.minor(number)}"),
        "a node of its own": ("-open", "/gpu", "-number", str(number)),
        "the host's node": ("-open", f"/host/{gpu.memory.name}"),
        "the node by the process of the host": ("-open", f"/proc/1/root{gpu.memory}"),
        "the node in the mounts of the host": ("-enter", "-open", str(gpu.memory)),
    }[way]
    escape = container(*flags, "-for", "300ms", gpus=0)
    escape["securityContext"] = {"privileged": privileged}
    volumes = pods.spec()["volumes"]
    if way == "the host's node":
        escape["volumeMounts"].append({"name": "host", "mountPath": "/host"})
        volumes.append({"name": "host", "hostPath": {"path": str(gpu.memory.parent)}})
    await pods.create(name, escape, volumes=volumes, hostPID=True)
    await pods.ended(name)
    words: list[str] = pods.words(name)
    return words


async def stays_shut(
    pods: Cluster, autoclave: Autoclave, gpu: layout.GpuFiles, hold: Callable[[str], Awaitable[None]]
) -> None:
    """A pod gets all GPUs, keeps them while the service is killed, and ends; others are refused, and counted.

    ``hold``: create a pod, and return when it has filled the GPUs with its secret.
    """

    async def refused(name: str, way: str = "its own /dev") -> None:
        assert "REFUSED" in await escapes(pods, name, way, gpu), way

    await refused("before")
    await hold("owner")
    for number, way in enumerate(WAYS):
        await refused(f"beside-{number}", way)
    await autoclave.refused(0, 1 + len(WAYS))
    autoclave.service.end(SIGKILL)
    await refused("without-the-service")
    autoclave.serve()
    await refused("beside-again")
    await pods.said("owner", "INTACT", more=GPUS)
    await pods.delete("owner")
    await pods.gone("owner")
    said = (await autoclave.closing(0)).ended.guarded
    assert (said.let_through, said.refused, said.gaps, said.open_to_all) == (0, len(WAYS) + 2, 0, False), said
    await refused("after")
    await autoclave.refused(0, 2)
    await hold("next")
    assert pods.words("next").count("CLEAN") == GPUS
