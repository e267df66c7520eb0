"""The DRA driver as the chart installs it, from the image: pods with claims, updates, and what an uninstall leaves."""

import asyncio

import pytest
from lightkube.resources.resource_v1 import ResourceSlice

from deploy import generate
from tests.cluster.claims import EXTENDED, SLICE, Claims
from tests.cluster.cluster import container
from tests.cluster.installed import GPUS

VALUES = {
    **generate.OVERLAYS["dra-simulated"],
    "dra": {"enabled": True, "deviceClass": {"extendedResourceName": EXTENDED}},
}
DRIVER = "autoclave-dra"


@pytest.fixture
async def claims(bare, installed):
    """Clean GPUs in a slice, and no pods."""
    await installed.ready()
    claims = Claims(bare)
    await claims.offer(1, GPUS)
    await claims.sliced(lambda devices: len(devices) == GPUS)
    yield claims
    await claims.clear()
    assert bare.faults() == []


async def test_the_driver_of_the_chart_prepares_clean_gpus(claims):
    await claims.hold("first", GPUS)
    await claims.end("first")
    await claims.hold("second", GPUS)
    assert claims.cluster.words("second").count("CLEAN") == GPUS


@pytest.mark.gate("DRAExtendedResource")
async def test_a_pod_gets_a_claim_by_the_charts_resource(claims):
    await claims.cluster.create("pod", container(gpus=GPUS, resource=EXTENDED))
    await claims.holds("pod")
    assert claims.cluster.words("pod").count("CLEAN") == GPUS


async def test_the_kubelet_always_finds_a_driver_during_an_update(claims, installed, node):
    """One pod has a claim, and on the other GPU one pod follows another. Two drivers serve for a while."""
    cluster = claims.cluster
    await claims.hold("holder", 1)
    before = node.kubelet.log.stat().st_size

    async def update() -> None:
        for _ in range(3):
            await installed.update(DRIVER)

    updates = asyncio.create_task(update())
    number = 0
    while not updates.done():
        number += 1
        await claims.create(f"pod-{number}", 1, "-for", "100ms")
        await cluster.ended(f"pod-{number}")
    await updates
    assert await cluster.refused() == []
    assert await claims.refusals() == []
    assert b"driver gpu.autoclave.internal is not registered" not in node.kubelet.log.read_bytes()[before:]
    await cluster.said("holder", "INTACT", more=4)
    await claims.end("holder")
    await claims.hold("last", GPUS)


async def test_a_claim_keeps_its_gpus_while_the_service_is_updated(claims, installed):
    cluster = claims.cluster
    await claims.hold("holder", 1)
    await installed.update("autoclave-scrubber")
    await cluster.said("holder", "INTACT", more=4)
    await claims.end("holder")
    await claims.hold("next", GPUS)


async def test_an_uninstall_leaves_no_slice(claims, installed):
    """A pod that has a claim goes on; it can end when the driver is installed again."""
    cluster = claims.cluster
    await claims.hold("holder", GPUS)
    await installed.uninstall()
    await cluster.until(ResourceSlice, SLICE, lambda found: found is None)
    await cluster.said("holder", "INTACT", more=4)
    await cluster.delete("holder")
    await cluster.said("holder", "TERM")
    await installed.up()
    await cluster.gone("holder")
    await claims.hold("next", GPUS)
    assert cluster.words("next").count("CLEAN") == GPUS
