"""Claims of all GPUs, from NVIDIA's own DRA driver: alone, and behind ours."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.resource_v1 import DeviceClass, ResourceSlice

from plugin.dra.config import VENDOR_DRIVER as DRIVER
from tests.cluster import files
from tests.cluster.autoclave import GPUS
from tests.cluster.claims import Claims, device_class, request
from tests.cluster.nvidia import ROOT, SPECS, install, mounted
from tests.cluster.programs import KUBECONFIG, NODE, Program
from tests.patience import WITHIN

PROGRAM = "gpu-kubelet-plugin"
# Below the directory that the operator mounts with GPUCluster. The kubelet does not look there.
GATED = Path("/var/lib/kubelet/plugins/containers_wait")


def program(pytestconfig):
    """The driver; the test is skipped where nobody has built it."""
    found = (Path(__file__).parents[2] / pytestconfig.getoption("--programs") / PROGRAM).resolve()
    if not found.exists():
        pytest.skip(f"{found} not found: see docs/real-nodes.md")
    return found


class NvidiaClaims(Claims):
    """Pods with claims of all GPUs, from NVIDIA's driver."""

    def __init__(self, cluster, vendor, ours=None) -> None:
        super().__init__(cluster)
        self.vendor = vendor
        self.ours = ours

    async def put(self, name, spec, indices=range(GPUS)):
        """Create a pod that mounts the nodes of all GPUs, or of some."""
        [its] = spec["containers"]
        await super().put(name, mounted(self.cluster.spec() | spec, its, indices))

    async def published(self):
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


@asynccontextmanager
async def alone(pods, autoclave, program, logs):
    """NVIDIA's driver without ours, and without a service."""
    autoclave.uninstall()
    vendor = Program("nvidia-dra-alone", _command(program, install()), logs)
    async with _offering(NvidiaClaims(pods, vendor)) as claims:
        yield claims


@asynccontextmanager
async def behind(pods, autoclave, program, logs, *flags):
    """NVIDIA's driver, and ours in front with these flags, in place of the device plugin."""
    autoclave.down()
    environment = install() | {"KUBELET_REGISTRAR_DIRECTORY_PATH": str(GATED)}  # as by a GPUCluster
    await asyncio.to_thread(GATED.mkdir, parents=True, exist_ok=True)
    vendor = Program("nvidia-dra", _command(program, environment), logs)
    ours = [sys.executable, "-m", "autoclave", "dra", "--vendor-registry-dir", GATED, *flags]
    in_front = Program("autoclave-dra", [*_environment(environment), *ours], logs)
    autoclave.serve()
    before = _registered(in_front)
    in_front.start()
    try:
        async with _offering(NvidiaClaims(pods, vendor, in_front)) as claims:
            # The kubelet tries a pod again only after a minute if it does not know the driver yet.
            await files.until(in_front.log, lambda: _registered(in_front) > before)
            yield claims
    finally:
        for it in (in_front, autoclave.service):
            it.end()


@asynccontextmanager
async def _offering(claims) -> AsyncIterator[NvidiaClaims]:
    client = claims.cluster.client
    await asyncio.to_thread(SPECS.mkdir, exist_ok=True)
    claims.vendor.start()
    await client.create(device_class(DRIVER))
    await claims.template(f"gpus-{GPUS}", request(GPUS, of=DRIVER))
    try:
        await claims.published()
        yield claims
    finally:
        await claims.clear()
        claims.vendor.end()
        await client.delete(DeviceClass, DRIVER)
        await client.deletecollection(ResourceSlice)


def _command(program, environment) -> list[str | Path]:
    flags = ["--image-name", "none", "--cdi-root", SPECS, "--nvidia-cdi-hook-path", "/bin/true"]
    flags += ["--nvidia-driver-root", ROOT, "--container-driver-root", ROOT, "-v", "4"]
    return [*_environment(environment), program, *flags]


def _environment(more: dict[str, str]) -> list[str]:
    known = more | {"KUBECONFIG": str(KUBECONFIG), "NODE_NAME": NODE}
    return ["env", *(f"{key}={value}" for key, value in known.items())]


def _registered(ours) -> int:
    """How often our driver has registered."""
    return ours.log.read_text().count('"event": "registered"') if ours.log.exists() else 0
