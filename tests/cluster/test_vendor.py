"""NVIDIA's own DRA driver behind ours, and claims of all GPUs."""

import json
from signal import SIGKILL, SIGTERM

import pytest
from lightkube.resources.core_v1 import Node
from lightkube.resources.resource_v1 import DeviceTaintRule

from plugin.dra import resource_slices
from plugin.dra.config import VENDOR_DRIVER as DRIVER
from plugin.dra.vendor import taint_rules
from tests.cluster import nvidia_claims
from tests.cluster.autoclave import GPUS
from tests.cluster.claims import claiming, request
from tests.cluster.conftest import LOGS
from tests.cluster.escapes import stays_shut
from tests.cluster.nvidia import SPECS, gpus
from tests.cluster.programs import NODE

RULES_GATE = "DRADeviceTaintRules"


@pytest.fixture
async def claims(pods, autoclave, pytestconfig, gate):
    """NVIDIA's driver and ours in front, in place of the device plugin."""
    program = nvidia_claims.program(pytestconfig)
    flags = ["--taint-rules"] if gate(RULES_GATE) else []
    async with nvidia_claims.behind(pods, autoclave, program, LOGS, *flags) as claims:
        yield claims
    assert pods.faults() == []


async def test_nvidias_driver_prepares_what_the_gate_has_proven_clean(claims, autoclave):
    cluster = claims.cluster
    await claims.hold("first", GPUS)
    [owner] = {device.owner for device in await autoclave.devices(lambda _: True)}
    assert (SPECS / f"k8s.gpu.nvidia.com-claim_{owner}.yaml").exists()
    await cluster.delete("first")
    await claims.hold("second", GPUS)
    assert cluster.words("second").count("CLEAN") == GPUS
    assert cluster.words("first")[-1] == "TERM"


async def test_only_its_own_pods_open_the_gpu_of_a_claim(claims, autoclave, gpu):
    await stays_shut(claims.cluster, autoclave, gpu, lambda name: claims.hold(name, GPUS))


async def test_a_claim_waits_for_a_force_deleted_pod(claims):
    cluster = claims.cluster
    await claims.hold("first", GPUS, "-stubborn")
    await cluster.delete("first", grace=0)
    await claims.hold("second", GPUS)
    assert cluster.words("second").count("CLEAN") == GPUS


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
async def test_a_claim_survives_a_restart_of_nvidias_driver(claims, number):
    cluster = claims.cluster
    await claims.hold("holder", GPUS)
    claims.vendor.end(number)
    await cluster.said("holder", "INTACT", more=GPUS)
    claims.vendor.start()
    await cluster.delete("holder")
    await claims.hold("next", GPUS)
    assert cluster.words("next").count("CLEAN") == GPUS


async def test_a_claim_survives_the_death_of_everything(claims, autoclave, node):
    cluster = claims.cluster
    await claims.hold("holder", GPUS)
    programs = claims.vendor, claims.ours, autoclave.service, node.kubelet
    for program in programs:
        program.end(SIGKILL)
    for program in programs:
        program.start()
    await cluster.said("holder", "INTACT", more=GPUS)
    await cluster.delete("holder")
    await claims.hold("next", GPUS)
    assert cluster.words("next").count("CLEAN") == GPUS


async def test_a_pods_event_says_why_its_claim_is_refused(claims, autoclave):
    """A GPU is not where NVIDIA's driver says: the scrub service would wipe another one."""
    [gpu, *_] = gpus()
    described = json.loads(gpu.device.read_text())
    autoclave.service.end()
    gpu.device.write_text(json.dumps(described | {"pci_address": "00000000:FF:00.0"}))
    autoclave.service.start()
    await claims.create("refused", GPUS)
    uuid = described["uuid"]
    assert f"gpu-0 is {uuid}: its ResourceSlice says at 0000:1b:00.0" in await claims.refused("refused")
    await claims.end("refused")
    await autoclave.clean()
    autoclave.service.end()
    gpu.device.write_text(json.dumps(described))
    autoclave.serve()  # the next test asks it at once


@pytest.mark.gate(RULES_GATE)
async def test_the_scheduler_does_not_choose_a_quarantined_gpu(claims, autoclave):
    """NVIDIA's slice lists it first. A pod that finds no other one waits for the end of the quarantine."""
    cluster = claims.cluster
    sick, *well = range(GPUS)
    rule = f"{NODE}-gpu-{sick}-{DRIVER}"
    uuid = gpus()[sick].info().uuid
    await claims.template("gpus-1", request(1, of=DRIVER))
    await claims.template(f"gpus-{len(well)}", request(len(well), of=DRIVER))
    await autoclave.quarantine(uuid)
    await cluster.until(DeviceTaintRule, rule, lambda found: found is not None)
    await claims.put("others", claiming(template=f"gpus-{len(well)}"), well)
    await claims.holds("others")
    await claims.put("next", claiming(template="gpus-1"), [sick])
    assert "cannot allocate all claims" in await claims.event("next", "FailedScheduling")
    await autoclave.reinstate(uuid)
    await cluster.until(DeviceTaintRule, rule, lambda found: found is None)
    await claims.holds("next")
    assert cluster.words("next").count("CLEAN") == 1


@pytest.mark.gate(RULES_GATE)
async def test_a_taint_rule_goes_with_its_node(bare):
    node = await bare.client.create(Node.from_dict({"metadata": {"name": "gone"}}))
    pool = resource_slices.Pool(DRIVER, "gone", node.metadata.uid)
    rule = taint_rules.taint_rule(pool, "gpu-0", {"key": "gpu.autoclave.internal/unhealthy", "effect": "NoSchedule"})
    created = await bare.client.create(DeviceTaintRule.from_dict(rule))
    await bare.client.delete(Node, "gone")
    await bare.until(DeviceTaintRule, created.metadata.name, lambda found: found is None)
