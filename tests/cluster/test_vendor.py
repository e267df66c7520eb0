"""NVIDIA's own DRA driver behind the gate. Its NVML is our stand-in; each of its GPUs is a simulated one.

NVIDIA's driver gives a container device nodes, and the simulated memory is a file: so each pod mounts the memory of all
GPUs itself, and its claim has all of them.
"""

import asyncio
import json
import os
import stat
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaimTemplate, ResourceSlice

from plugin.dra.config import VENDOR_DRIVER as DRIVER
from scrubber.devices.simulated import layout
from tests.cluster import files
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.cluster import container
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE
from tests.cluster.programs import KUBECONFIG, NODE, Program
from tests.fakes.nvml import build
from tests.fakes.nvml.machine import Machine
from tests.patience import WITHIN

PROGRAM = "gpu-kubelet-plugin"
GATED = Path("/var/lib/kubelet/plugins_gated")
ROOT = STATE / "nvidia"  # of NVIDIA's libraries and device nodes
SPECS = Path("/var/run/cdi")
MAJOR = 195  # of NVIDIA's device nodes


def gpus():
    """The simulated GPUs, in the order of their indices."""
    return sorted(layout.places(SIMULATED), key=lambda gpu: gpu.info().index)


def install():
    """A node with NVIDIA's library and device nodes; returns its environment."""
    machine = Machine.h200(ROOT / "state", GPUS)
    (ROOT / "dev").mkdir(exist_ok=True)
    (ROOT / "usr/bin").mkdir(parents=True, exist_ok=True)
    (ROOT / "usr/bin/nvidia-smi").touch()
    build.build(ROOT / "usr/lib64", more=[Path(__file__).with_name("nvidia_dra.c")])
    (ROOT / "usr/lib64/libcuda.so.580.95.05").touch()
    for number, gpu in enumerate(gpus()):
        (ROOT / f"dev/nvidia{number}").unlink(missing_ok=True)
        os.mknod(ROOT / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(MAJOR, number))
        machine.set({f"gpu.{number}.uuid": gpu.info().uuid})
        described = json.loads(gpu.device.read_text())
        place = {"nodes": [f"/dev/nvidia{number}"], "minor": number, "pci_address": machine.get(f"gpu.{number}.pci")}
        gpu.device.write_text(json.dumps(described | place))
    return machine.environment


def registered(gate):
    """How often the gate has registered."""
    return gate.log.read_text().count('"event": "registered"') if gate.log.exists() else 0


def claiming(*flags):
    """The container and the other fields of a pod that has a claim of all GPUs."""
    its = container(*flags)
    memories = {f"memory{number}": gpu.memory for number, gpu in enumerate(gpus())}
    mounts = [{"name": name, "mountPath": f"/dev/simulated-gpu{name.removeprefix('memory')}"} for name in memories]
    volumes = [{"name": name, "hostPath": {"path": str(path), "type": "File"}} for name, path in memories.items()]
    its |= {"resources": {"claims": [{"name": "gpus"}]}, "volumeMounts": [*its["volumeMounts"], *mounts]}
    return its, volumes, {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "all"}]}


class Claims:
    """Pods with claims."""

    def __init__(self, cluster, vendor, gate) -> None:
        self.cluster = cluster
        self.vendor = vendor
        self.gate = gate

    async def create(self, name, *flags):
        its, volumes, more = claiming(*flags)
        await self.cluster.create(name, its, volumes=[*self.cluster.spec()["volumes"], *volumes], **more)

    async def hold(self, name, *flags):
        await self.create(name, *flags)
        await self.cluster.said(name, "HOLDING")

    async def sliced(self):
        """Return when NVIDIA's driver has published all GPUs."""
        wanted: Any = {"spec.driver": DRIVER}
        listed = self.cluster.client.list(ResourceSlice, fields=wanted)
        found = [it async for it in listed]
        if any(len(it.spec.devices or []) == GPUS for it in found):
            return
        async with asyncio.timeout(WITHIN):
            version = listed.resourceVersion
            async for _, it in self.cluster.client.watch(ResourceSlice, fields=wanted, resource_version=version):
                if len(it.spec.devices or []) == GPUS:
                    return


@pytest.fixture
async def claims(pods, autoclave, pytestconfig):
    """NVIDIA's driver and our gate, in place of the device plugin."""
    program = (Path(__file__).parents[2] / pytestconfig.getoption("--programs") / PROGRAM).resolve()
    if not program.exists():
        pytest.skip(f"{program} not found: see A real node in CONTRIBUTING.md")
    autoclave.plugin.end()
    autoclave.service.end()
    environment = install() | {"KUBECONFIG": str(KUBECONFIG), "NODE_NAME": NODE}
    assigned = [f"{key}={value}" for key, value in environment.items()]
    for folder in (GATED, SPECS):
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
    flags: list[str | Path] = ["--image-name", "none", "--cdi-root", SPECS, "--nvidia-cdi-hook-path", "/bin/true"]
    flags += ["--nvidia-driver-root", ROOT, "--container-driver-root", ROOT, "-v", "4"]
    vendor = Program(
        "nvidia-dra", ["env", *assigned, program, "--kubelet-registrar-directory-path", GATED, *flags], LOGS
    )
    ours: list[str | Path] = [sys.executable, "-m", "scrubber", "dra", "--vendor-registry-dir", GATED]
    gate = Program("autoclave-dra", ["env", *assigned, *ours], LOGS)
    autoclave.service.start()
    before = registered(gate)
    for it in (gate, vendor):
        it.start()
    claims = Claims(pods, vendor, gate)
    device_class = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    await pods.client.create(DeviceClass.from_dict({"metadata": {"name": DRIVER}, "spec": device_class}))
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": GPUS}}
    template = {"metadata": {"name": "all"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    await pods.client.create(ResourceClaimTemplate.from_dict(template))
    try:
        await claims.sliced()
        # The kubelet tries a pod again only after a minute if it does not know the driver yet.
        await files.until(gate.log, lambda: registered(gate) > before)
        yield claims
        for name in await pods.names():
            await pods.delete(name, grace=1)
            await pods.gone(name)
    finally:
        for it in (gate, vendor):
            it.end()
        await pods.client.delete(DeviceClass, DRIVER)
        await pods.client.deletecollection(ResourceClaimTemplate)
        await pods.client.deletecollection(ResourceSlice)
    assert pods.faults() == []


async def test_nvidias_driver_prepares_what_the_gate_has_proven_clean(claims, autoclave):
    cluster = claims.cluster
    await claims.hold("first")
    [owner] = {device.owner for device in await autoclave.devices(lambda _: True)}
    assert (SPECS / f"k8s.gpu.nvidia.com-claim_{owner}.yaml").exists()
    await cluster.delete("first")
    await claims.hold("second")
    assert cluster.words("second").count("CLEAN") == GPUS
    assert cluster.words("first")[-1] == "TERM"


async def test_a_claim_waits_for_a_pod_that_was_deleted_by_force(claims):
    cluster = claims.cluster
    await claims.hold("first", "-stubborn")
    await cluster.delete("first", grace=0)
    await claims.hold("second")
    assert cluster.words("second").count("CLEAN") == GPUS


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_claim_survives_a_restart_of_nvidias_driver(claims, number):
    cluster = claims.cluster
    await claims.hold("holder")
    claims.vendor.end(number)
    await cluster.said("holder", "INTACT", more=GPUS)
    claims.vendor.start()
    await cluster.delete("holder")
    await claims.hold("next")
    assert cluster.words("next").count("CLEAN") == GPUS


async def test_a_claim_survives_the_death_of_everything(claims, autoclave, node):
    cluster = claims.cluster
    await claims.hold("holder")
    programs = claims.vendor, claims.gate, autoclave.service, node.kubelet
    for program in programs:
        program.end(SIGKILL)
    for program in programs:
        program.start()
    await cluster.said("holder", "INTACT", more=GPUS)
    await cluster.delete("holder")
    await claims.hold("next")
    assert cluster.words("next").count("CLEAN") == GPUS
