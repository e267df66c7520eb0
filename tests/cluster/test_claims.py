"""Pods that get their GPUs by ResourceClaims, from our DRA driver. Each pod reads every byte and writes its secret."""

import asyncio
import sys
from signal import SIGKILL, SIGTERM

import pytest
from lightkube.resources.core_v1 import Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

from plugin.dra.config import DRIVER
from scrubber.devices.simulated import drills
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.cluster import container
from tests.cluster.conftest import LOGS
from tests.cluster.programs import KUBECONFIG, NODE, Program
from tests.cluster.test_quarantine import health

SLICE = f"{NODE}-{DRIVER}"


def template(name, count):
    """A template of claims for so many GPUs."""
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": count}}
    return ResourceClaimTemplate.from_dict(
        {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    )


def claiming(of_template, *flags, **more):
    """The fields of a pod whose container has a claim of this template."""
    its = container(*flags) | {"resources": {"claims": [{"name": "gpus"}]}}
    return (its,), {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": of_template}], **more}


class Claims:
    """Pods with claims."""

    def __init__(self, cluster, driver) -> None:
        self.cluster = cluster
        self.driver = driver

    async def create(self, name, count, *flags, **more):
        containers, spec = claiming(f"gpus-{count}", *flags, **more)
        await self.cluster.create(name, *containers, **spec)

    async def hold(self, name, count, *flags, **more):
        await self.create(name, count, *flags, **more)
        holds, ended = (
            asyncio.create_task(self.cluster.said(name, "HOLDING")),
            asyncio.create_task(self.cluster.ended(name)),
        )
        await asyncio.wait({holds, ended}, return_when=asyncio.FIRST_COMPLETED)
        failed = ended.done() and not holds.done()
        for task in (holds, ended):
            task.cancel()
        await asyncio.wait({holds, ended})
        assert not failed, self.cluster.story()

    async def sliced(self, wanted):
        """The slice, as soon as its devices are as wanted."""
        return await self.cluster.until(
            ResourceSlice, SLICE, lambda found: found is not None and wanted(found.spec.devices or [])
        )


@pytest.fixture
async def claims(pods, autoclave):
    """Four clean GPUs in a slice, in place of the device plugin."""
    autoclave.plugin.end()
    driver = Program(
        "autoclave-dra",
        ["env", f"KUBECONFIG={KUBECONFIG}", f"NODE_NAME={NODE}", sys.executable, "-m", "scrubber", "dra"],
        LOGS,
    )
    driver.start()
    claims = Claims(pods, driver)
    device_class = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    await pods.client.create(DeviceClass.from_dict({"metadata": {"name": DRIVER}, "spec": device_class}))
    for count in (1, 4):
        await pods.client.create(template(f"gpus-{count}", count))
    await claims.sliced(lambda devices: len(devices) == GPUS)
    yield claims
    for name in await pods.names():
        await pods.delete(name, grace=1)
        await pods.gone(name)
    driver.end()
    await pods.client.delete(DeviceClass, DRIVER)
    await pods.client.deletecollection(ResourceClaimTemplate)
    await pods.client.delete(ResourceSlice, SLICE)
    assert pods.faults() == []


async def test_the_next_claim_finds_no_byte_of_the_last(claims, autoclave):
    cluster = claims.cluster
    await claims.hold("first", 4)
    owners = {device.owner for device in await autoclave.devices(lambda _: True)}
    assert len(owners) == 1
    await cluster.delete("first")
    await claims.hold("second", 4)
    assert cluster.words("second").count("CLEAN") == 4
    assert cluster.words("first")[-1] == "TERM"


async def test_a_claim_waits_for_a_pod_that_was_deleted_by_force(claims):
    """Its Prepare comes before the Unprepare of the claim before, whose container ignores SIGTERM."""
    cluster = claims.cluster
    await claims.hold("first", 4, "-stubborn")
    await cluster.delete("first", grace=0)
    await claims.hold("second", 4)
    assert cluster.words("second").count("CLEAN") == 4


async def test_two_pods_share_a_claim(claims, autoclave):
    """The GPUs stay with the claim until its last pod has ended."""
    cluster = claims.cluster
    claim = {"metadata": {"name": "shared"}, "spec": template("unused", 4).to_dict()["spec"]["spec"]}
    await cluster.client.create(ResourceClaim.from_dict(claim))
    (its,), _ = claiming("unused", "-secret", "of both")
    named = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "shared"}]}
    for name in ("first", "second"):
        await cluster.create(name, its, **named)
        await cluster.said(name, "HOLDING")
    assert "OWN" in cluster.words("second")
    await cluster.delete("first")
    await cluster.gone("first")
    await cluster.said("second", "INTACT", more=4)
    await autoclave.devices(lambda device: device.state == "in_use" and "unauthorised" not in device.why)
    await cluster.delete("second")
    await cluster.gone("second")
    await cluster.client.delete(ResourceClaim, "shared")
    await claims.hold("third", 4)


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_claim_survives_restarts_of_everything(claims, autoclave, node, number):
    cluster = claims.cluster
    await claims.hold("holder", 4)
    for program in (claims.driver, autoclave.service, node.kubelet):
        program.end(number)
    await cluster.said("holder", "INTACT", more=4)
    for program in (autoclave.service, claims.driver, node.kubelet):
        program.start()
    await cluster.said("holder", "INTACT", more=4)
    await cluster.delete("holder")
    await claims.hold("next", 4)


async def test_a_slice_that_was_deleted_comes_back(claims):
    await claims.cluster.client.delete(ResourceSlice, SLICE)
    await claims.sliced(lambda devices: len(devices) == GPUS)


async def test_no_claim_gets_a_sick_gpu(claims, autoclave, gate):
    """A taint keeps the scheduler away; where there are no taints, the GPU leaves the slice."""
    cluster = claims.cluster
    listed = GPUS if gate("DRADeviceTaints") else GPUS - 1
    [sick] = await autoclave.devices(bool, index=0)
    drills.xid(SIMULATED, sick.device, 79)
    await claims.sliced(
        lambda devices: len(devices) == listed and sum(not device.taints for device in devices) == GPUS - 1
    )
    await asyncio.gather(*(claims.hold(name, 1) for name in ("one", "two", "three")))
    assert set.union(*map(cluster.gpus, ("one", "two", "three"))) == {"1", "2", "3"}
    await autoclave.reinstate(sick.device)
    await claims.sliced(lambda devices: len(devices) == GPUS and not any(device.taints for device in devices))


@pytest.mark.gate("ResourceHealthStatus")
async def test_the_status_of_a_pod_shows_that_the_gpu_of_its_claim_is_sick(claims, autoclave):
    cluster = claims.cluster
    await claims.hold("holder", 1)
    [gpu] = cluster.gpus("holder")
    [device] = await autoclave.devices(bool, index=int(gpu))
    drills.remap(SIMULATED, device.device)
    await cluster.until(Pod, "holder", lambda pod: "Unhealthy" in health(pod).values())
    await cluster.delete("holder")
    await cluster.gone("holder")
    await autoclave.devices(lambda found: found.state == "quarantined", index=int(gpu))
    await autoclave.reinstate(device.device)
