"""Pods that get their GPUs by ResourceClaims, from our DRA driver. Each pod reads every byte and writes its secret."""

import asyncio
import json
import os
import sys
from signal import SIGKILL, SIGTERM

import pytest
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.resource_v1 import ResourceClaim, ResourceSlice

from plugin.dra import resource_slices
from plugin.dra.config import DRIVER
from scrubber.devices.simulated import drills, layout
from tests.cluster import files
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.claims import EXTENDED, SLICE, OtherDriver, claiming, request
from tests.cluster.cluster import container, health
from tests.cluster.escapes import stays_shut
from tests.cluster.programs import KUBECONFIG, NODE


def allocated(claim):
    """The devices that a claim has."""
    found = claim.status.allocation if claim.status is not None else None
    return found.devices.results if found is not None else []


async def test_the_next_claim_finds_no_byte_of_the_last(claims, autoclave):
    cluster = claims.cluster
    await claims.hold("first", 4)
    owners = {device.owner for device in await autoclave.devices(lambda _: True)}
    assert len(owners) == 1
    await cluster.delete("first")
    await claims.hold("second", 4)
    assert cluster.words("second").count("CLEAN") == 4
    assert cluster.words("first")[-1] == "TERM"


async def test_only_its_own_pods_open_the_gpu_of_a_claim(claims, autoclave, gpu):
    await stays_shut(claims.cluster, autoclave, gpu, lambda name: claims.hold(name, GPUS))


async def test_claims_made_at_once_are_all_prepared(claims):
    """The API server may show them late to the kubelet, which then asks no driver. Our driver refuses none."""
    names = [f"pod-{index}" for index in range(GPUS)]
    await asyncio.gather(*(claims.create(name, 1) for name in names))
    await asyncio.gather(*map(claims.holds, names))
    assert [text for text in await claims.refusals() if "NodePrepareResources" in text] == []


async def test_a_claim_waits_for_a_force_deleted_pod(claims):
    """Its Prepare comes before the Unprepare of the claim before, whose container ignores SIGTERM."""
    cluster = claims.cluster
    await claims.hold("first", 4, "-stubborn")
    await cluster.delete("first", grace=0)
    await claims.hold("second", 4)
    assert cluster.words("second").count("CLEAN") == 4


async def test_two_pods_share_a_claim(claims, autoclave):
    """The GPUs stay with the claim until its last pod has ended."""
    cluster = claims.cluster
    await claims.claim("shared", request(4))
    for name in ("first", "second"):
        await claims.put(name, claiming("-secret", "of both", claim="shared"))
        await claims.holds(name)
    assert "OWN" in cluster.words("second")
    await cluster.delete("first")
    await cluster.gone("first")
    await cluster.said("second", "INTACT", more=4)
    await autoclave.devices(lambda device: device.state == "in_use" and "unauthorised" not in device.why)
    await cluster.delete("second")
    await cluster.gone("second")
    await cluster.client.delete(ResourceClaim, "shared")
    await claims.hold("third", 4)


async def test_a_claims_gpu_is_open_to_its_pods_alone(claims, autoclave):
    """A second pod of the claim comes without a call of the kubelet. The first one leaves while it stays."""
    cluster, place = claims.cluster, layout.places(SIMULATED)[0]
    if not place.memory.is_block_device():
        pytest.skip("takes root, and loop devices, and control groups of version 2")
    autoclave.rule(fence={"mode": "hold"})
    await autoclave.devices(lambda device: device.fence == "hold")
    escape = container("-open", "/gpu", "-number", str(place.memory.stat().st_rdev), "-for", "300ms", gpus=0)
    escape |= {"securityContext": {"privileged": True}}
    await claims.claim("shared", request(4))
    for name in ("first", "second"):
        await claims.put(name, claiming("-secret", "of both", claim="shared"))
        await claims.holds(name)
        await cluster.create(f"beside-{name}", escape)
        await cluster.ended(f"beside-{name}")
        assert "REFUSED" in cluster.words(f"beside-{name}")
    await autoclave.devices(lambda device: device.fence == "hold")
    await claims.end("first")
    await cluster.said("second", "INTACT", more=4)
    await claims.end("second")
    await cluster.client.delete(ResourceClaim, "shared")


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_claim_survives_restarts_of_everything(claims, driver, autoclave, node, number):
    cluster = claims.cluster
    await claims.hold("holder", 4)
    for program in (driver, autoclave.service, node.kubelet):
        program.end(number)
    await cluster.said("holder", "INTACT", more=4)
    for program in (autoclave.service, driver, node.kubelet):
        program.start()
    await cluster.said("holder", "INTACT", more=4)
    await cluster.delete("holder")
    await claims.hold("next", 4)


async def test_the_doctor_names_the_feature_gates_that_are_off(claims, gate):  # noqa: ARG001 - the slice exists
    command = (sys.executable, "-m", "autoclave", "doctor", "-o", "json", "--driver-name", DRIVER)
    doctor = await asyncio.create_subprocess_exec(
        *command, "--only", "feature-gates", env={**os.environ, "KUBECONFIG": str(KUBECONFIG), "NODE_NAME": NODE},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await doctor.communicate()
    found = [it["text"] for it in json.loads(output)["findings"] if it["level"] == "warning"]
    off = [name for name in (resource_slices.TAINTS_GATE,) if not gate(name)]
    assert len(found) == len(off)
    assert all(name in text for name, text in zip(off, found, strict=True))


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
async def test_the_status_of_a_pod_shows_its_claims_sick_gpu(claims, autoclave):
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


@pytest.mark.gate("DRAPrioritizedList")
async def test_a_claim_gets_the_first_alternative_that_there_is(claims):
    """The kubelet knows the request only, not its alternatives."""
    choices = [{"name": name, "deviceClassName": DRIVER, "count": count} for name, count in (("nine", 9), ("two", 2))]
    await claims.template("choice", {"name": "gpus", "firstAvailable": choices})
    await claims.put("first", claiming(template="choice"))
    await claims.holds("first")
    assert claims.cluster.words("first").count("CLEAN") == 2
    await claims.end("first")
    await claims.hold("next", 4)


@pytest.fixture
async def administrators(bare):
    """Pods of the namespace may ask for admin access."""
    label = "resource.kubernetes.io/admin-access"
    await bare.client.patch(Namespace, "default", {"metadata": {"labels": {label: "true"}}})
    yield
    await bare.client.patch(Namespace, "default", {"metadata": {"labels": {label: None}}})


@pytest.mark.gate("DRAAdminAccess")
@pytest.mark.usefixtures("administrators")
async def test_admin_access_takes_no_gpu(claims, driver, autoclave):
    """Its pod sees the memory of the claim, and the claim keeps its GPUs. It holds up the scrub as long as it runs.

    Where the fence keeps pods off, it opens the GPUs because its namespace is exempt.
    """
    cluster = claims.cluster
    autoclave.rule(evict={"operator_namespaces": ["default"]})
    same = ("-secret", "of both")
    await claims.hold("holder", 4, *same)
    owners = {device.owner for device in await autoclave.devices(bool)}
    everything = {"deviceClassName": DRIVER, "allocationMode": "All", "adminAccess": True}
    await claims.template("all", {"name": "gpus", "exactly": everything})
    await claims.put("admin", claiming(*same, template="all"))
    await claims.holds("admin")
    assert cluster.words("admin").count("OWN") == 4
    assert {device.owner for device in await autoclave.devices(bool)} == owners
    await cluster.delete("holder")
    await files.until(driver.log, lambda: "not free yet" in driver.log.read_text())
    await claims.end("admin")
    await cluster.gone("holder")
    await claims.hold("next", 4)


async def test_another_driver_of_a_claim_fails(claims):
    """The kubelet asks the drivers in any order. It asks each one again until all of them have unprepared the claim."""
    other = OtherDriver()
    cluster = claims.cluster
    await claims.template("both", request(4), request(1, "other", other.NAME))
    async with other.serving(cluster):
        other.refuses_prepare = True
        await claims.put("first", claiming(template="both"))
        assert "the other driver refuses" in await claims.refused("first")
        await claims.end("first")
        other.refuses_prepare = False
        await claims.put("second", claiming(template="both"))
        await claims.holds("second")
        other.unprepared, other.unprepare_refusals = 0, 1
        await claims.end("second")
        assert other.unprepared == 2
        await claims.hold("third", 4)
        await claims.end("third")


@pytest.mark.parametrize("killed", [("service",), ("driver",), ("driver", "service")], ids="-".join)
async def test_the_end_of_a_claim_survives_kills(claims, driver, autoclave, killed):
    """They come during the scrub at the end of the claim."""
    cluster = claims.cluster
    await claims.hold("first", 4)
    devices = [device.device for device in await autoclave.devices(bool)]
    for device in devices:
        drills.stall_clears(SIMULATED, device)
    await cluster.delete("first")
    await autoclave.devices(lambda device: device.state == "scrubbing")
    programs = [autoclave.service if name == "service" else driver for name in killed]
    for program in programs:
        program.end(SIGKILL)
    for device in devices:
        drills.heal(SIMULATED, device)
    for program in reversed(programs):
        program.start()
    await claims.hold("second", 4)
    assert cluster.words("second").count("CLEAN") == 4


async def test_a_prepared_claim_survives_a_kill_of_the_service(claims, driver, autoclave):
    """Its Prepare waits for the claim before, whose pod was deleted by force."""
    cluster = claims.cluster
    await claims.hold("first", 4, "-stubborn")
    await cluster.delete("first", grace=0)
    await claims.create("second", 4)
    await files.until(driver.log, lambda: "claim waits" in driver.log.read_text())
    autoclave.service.end(SIGKILL)
    autoclave.service.start()
    await claims.holds("second")
    assert cluster.words("second").count("CLEAN") == 4


async def test_a_claim_of_the_same_name_is_another_claim(claims):
    """As with a StatefulSet, the pod has the same name, too. The first pod, which ignores SIGTERM, is deleted by force.

    The kubelet refuses the second claim until the first one is unprepared.
    """
    cluster = claims.cluster
    await claims.claim("same", request(4))
    await claims.put("pod", claiming("-stubborn", claim="same"))
    await claims.holds("pod")
    await cluster.delete("pod", grace=0)
    await cluster.gone("pod")
    await cluster.client.delete(ResourceClaim, "same")
    await cluster.until(ResourceClaim, "same", lambda claim: claim is None)
    await claims.claim("same", request(4))
    await claims.put("pod", claiming(claim="same"))
    await claims.holds("pod", more=1)
    assert cluster.words("pod").count("CLEAN") == 8


@pytest.mark.long
async def test_claims_follow_each_other_without_a_refusal(claims):
    """A Job of twenty pods, each with all GPUs. A Prepare that fails would cost a minute."""
    spec = claiming("-for", "200ms", template="gpus-4")
    template = {"spec": claims.cluster.spec(*spec.pop("containers"), **spec)}
    await claims.cluster.create_job("many", {"completions": 20, "parallelism": 1, "template": template})
    await claims.cluster.until(Job, "many", lambda job: job.status.succeeded == 20)
    assert await claims.cluster.refused() == []
    assert await claims.refusals() == []


@pytest.mark.gate("DRAExtendedResource")
async def test_a_pod_gets_a_claim_by_a_resource(claims, autoclave):
    """Kubernetes makes the claim, because our class names the resource."""
    cluster = claims.cluster
    await cluster.create("first", container(gpus=3, resource=EXTENDED))
    await claims.holds("first")
    assert cluster.words("first").count("CLEAN") == 3
    assert sum(bool(device.owner) for device in await autoclave.devices(bool)) == 3
    await claims.end("first")
    await claims.hold("next", 4)
