"""The chart's DRA driver in front of another one. The other one is ours too, under another name and as a process."""

import json
import sys
from pathlib import Path

import pytest
from lightkube.resources.resource_v1 import DeviceClass, ResourceSlice

from deploy import generate
from plugin.dra import resource_slices
from plugin.dra.config import PLUGINS_DIR
from tests.cluster.claims import Claims, device_class, request
from tests.cluster.conftest import LOGS
from tests.cluster.installed import GPUS
from tests.cluster.programs import KUBECONFIG, NODE, Program

VENDOR = "gpu.vendor.example"
REGISTRAR = Path("/var/lib/kubelet/plugins/containers_wait")
VALUES = {
    **generate.OVERLAYS["simulated"],
    "policy": {"afterObserve": True},  # nothing uses the GPUs before the other one is here
    "dra": {"enabled": True, "inFrontOf": {"registrarDirectory": str(REGISTRAR), "driverName": VENDOR}},
}
FENCE = None  # behind one, the other driver names block devices, and ours lets containers have no such node
SLICE = resource_slices.slice_name(VENDOR, NODE)


@pytest.fixture(scope="module")
def vendor(node):  # noqa: ARG001 - it runs
    """The other driver. It waits for the scrub service, and without it the pod of the chart is not ready."""
    for folder in (REGISTRAR, Path(PLUGINS_DIR)):
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["--driver-name", VENDOR, "--registry-dir", str(REGISTRAR), "--run-dir", "/run/autoclave/doors"]
    vendor = Program(
        "vendor-dra",
        ["env", f"KUBECONFIG={KUBECONFIG}", f"NODE_NAME={NODE}", sys.executable, "-m", "autoclave", "dra", *flags],
        LOGS,
    )
    vendor.start()
    yield vendor
    vendor.end()


@pytest.fixture
async def claims(bare, vendor, installed):  # noqa: ARG001 - it runs
    """Clean GPUs in the slice of the other driver, and no pods."""
    await installed.ready()
    claims = Claims(bare)
    await bare.client.create(device_class(VENDOR))
    await claims.template(f"gpus-{GPUS}", request(GPUS, of=VENDOR))
    await bare.until(ResourceSlice, SLICE, lambda it: it is not None and len(it.spec.devices or []) == GPUS)
    yield claims
    await claims.clear()
    await bare.client.delete(DeviceClass, VENDOR)
    assert bare.faults() == []


async def test_the_gate_of_the_chart_answers_for_the_other_driver(claims, installed):
    cluster = claims.cluster
    await claims.hold("first", GPUS)
    await claims.end("first")
    await claims.hold("second", GPUS)
    assert cluster.words("second").count("CLEAN") == GPUS
    [pod] = await installed.pods("autoclave-dra")
    lines = [json.loads(line) async for line in cluster.client.log(pod, namespace=generate.NAMESPACE)]
    done = {line["name"] for line in lines if line["event"] == "claim done" and line["call"] == "prepare"}
    for pod in ("first", "second"):  # their claims are named after them; other tests may have had claims before
        assert any(name.startswith(f"default/{pod}-") for name in done)


async def test_a_claim_survives_an_update_of_our_driver(claims, installed):
    cluster = claims.cluster
    await claims.hold("holder", GPUS)
    await installed.update("autoclave-dra")
    await cluster.said("holder", "INTACT", more=4)
    await claims.end("holder")
    await claims.hold("next", GPUS)
    assert cluster.words("next").count("CLEAN") == GPUS
