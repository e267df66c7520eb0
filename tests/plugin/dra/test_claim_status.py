"""What claims show of their devices, in the API server of the test."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from demo.standins.api_server import CLAIMS
from demo.standins.http_api import Answer, on, silence, status
from ground import boot
from plugin.cluster import node_report
from plugin.cluster.apiserver import ApiServer
from plugin.cluster.retry_loop import Pace
from plugin.dra import claim_status, claims
from plugin.dra.claim_status import ClaimStatusWriter
from plugin.dra.config import DRIVER
from scrub_api.device_messages import GrantedDevice
from scrubber.receipts import key, verification
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import NODE, allocate

QUICK = Pace(spacing=0, first=0.001, longest=0.02, slow=0.001)
MOST_DATA = 10 * 2**10  # bytes, by the rule of the API server
PATCH = "PATCH resourceclaims/status"


def shown(api, name):
    """The status of the devices of a claim."""
    return (api.find(CLAIMS, name, "default").get("status") or {}).get("devices") or []


def receipts(api, *names):
    return [[entry["data"]["receipt"] for entry in shown(api, name)] for name in names]


async def until(api, holds):
    await api.until(holds, WITHIN)


def patches(api):
    return len([request for request in api.requests if request.about == PATCH])


async def answers(server):
    """Time for requests that are on their way."""
    for _ in range(5):
        await server.claim("default", "next")


def take(writer, claim, receipt="r-1"):
    """The driver has prepared a claim."""
    devices = claims.allocated(claim, DRIVER)
    writer.prepared(claim, {device: GrantedDevice(device.name, "grant", receipt) for device in devices})


async def prepared(writer, server, name, receipt="r-1"):
    take(writer, await server.claim("default", name), receipt)


@pytest.fixture
def writing(api):
    @asynccontextmanager
    async def writing() -> AsyncIterator[tuple[ClaimStatusWriter, ApiServer]]:
        server = ApiServer(api.kubeconfig, NODE, 0.2)
        writer = ClaimStatusWriter(server, DRIVER, QUICK)
        task = asyncio.create_task(writer.run())
        yield writer, server
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await server.close()

    return writing


async def test_a_claim_shows_what_was_proven_of_its_device(service, api, live_driver):
    gpu = await asyncio.to_thread(service.settled, 0, "clean")
    driver = await live_driver("--claim-status")
    allocate(api, "job", gpu.device)
    await driver.register()
    assert await driver.call("prepare", "job") == ""
    await until(api, lambda: shown(api, "job"))
    [entry] = shown(api, "job")
    assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, NODE, gpu.device.lower())
    assert {it["type"]: it["status"] for it in entry["conditions"]} == {"Ready": "True", f"{DRIVER}/scrubbed": "True"}
    proof = entry["data"]
    assert len(json.dumps(proof)) < MOST_DATA
    trusted = key.read_key(service.root / "state").public_key
    expected = verification.Expected(gpu.device, boot.boot_id(), proof.pop("handover"))
    statement = verification.statement(proof.pop("envelope"), [trusted], expected)
    assert statement["predicate"]["receipt"]["id"] == gpu.receipt.id
    assert proof.pop("scrubbed") == node_report.api_time(gpu.receipt.finished)
    assert proof == {
        "receipt": gpu.receipt.id,
        "path": gpu.receipt.path,
        "coveredBytes": gpu.receipt.covered_bytes,
        "allocatableBytes": gpu.receipt.allocatable_bytes,
        "policy": gpu.receipt.policy,
    }


async def test_no_claim_waits_for_its_status(service, api, live_driver):
    gpu = await asyncio.to_thread(service.settled, 0, "clean")
    driver = await live_driver("--claim-status")
    allocate(api, "job", gpu.device)
    await driver.register()
    api.fault = on(PATCH, silence)
    assert await driver.call("prepare", "job") == ""
    await until(api, lambda: patches(api) == 1)
    assert await driver.call("unprepare", "job") == ""


async def test_a_claim_that_was_given_back_gets_no_status(service, api, live_driver):
    gpus = [await asyncio.to_thread(service.settled, index, "clean") for index in range(2)]
    driver = await live_driver("--claim-status")
    for name, index in (("first", 0), ("second", 0), ("third", 1)):
        allocate(api, name, gpus[index].device)
    await driver.register()
    api.fault = on(PATCH, lambda _: status(503, "busy"))
    assert await driver.call("prepare", "first") == ""
    await until(api, lambda: patches(api) == 1)
    assert await driver.call("unprepare", "first") == ""
    api.fault = lambda _: None
    for name in ("second", "third"):
        assert await driver.call("prepare", name) == ""
        await until(api, lambda name=name: shown(api, name))
    assert shown(api, "first") == []


async def test_a_status_that_could_not_be_written_is_written_later(api, writing):
    refusals = iter([status(503, "busy"), status(403, "no right"), status(409, "Conflict")])
    api.fault = on(PATCH, lambda _: next(refusals, None))
    allocate(api, "job", "gpu-0")
    async with writing() as (writer, server):
        await prepared(writer, server, "job")
        await until(api, lambda: receipts(api, "job") == [["r-1"]])


async def test_another_claim_of_the_same_name_gets_no_status(api, writing):
    for name in ("job", "next"):
        allocate(api, name, "gpu-0")
    async with writing() as (writer, server):
        claim = api.find(CLAIMS, "job", "default")
        api.put(CLAIMS, {**claim, "metadata": {**claim["metadata"], "uid": "uid-of-another"}})
        take(writer, claim)
        await prepared(writer, server, "next", "r-2")
        await until(api, lambda: receipts(api, "next") == [["r-2"]])
        await answers(server)
        assert shown(api, "job") == []


async def test_a_claim_that_is_gone_is_forgotten(api, writing):
    for name in ("gone", "next"):
        allocate(api, name, "gpu-0")
    async with writing() as (writer, server):
        gone, left = [await server.claim("default", name) for name in ("gone", "next")]
        api.put(CLAIMS, {**api.find(CLAIMS, "gone", "default"), "status": {}})
        api.delete(CLAIMS, "gone", "default")
        take(writer, gone)
        take(writer, left)
        await until(api, lambda: receipts(api, "next") == [["r-1"]])
        await answers(server)
        asked = [request.about for request in api.requests if request.name == "gone"]
        assert asked == ["GET resourceclaims", PATCH, "GET resourceclaims"]


async def test_only_some_claims_wait(api, writing, monkeypatch):
    monkeypatch.setattr(claim_status, "MOST_WAITING", 2)
    for name in ("a", "b", "c"):
        allocate(api, name, "gpu-0")
    async with writing() as (writer, server):
        for claim in [await server.claim("default", name) for name in ("a", "b", "c")]:
            take(writer, claim)
        await until(api, lambda: receipts(api, "b", "c") == [["r-1"], ["r-1"]])
        assert shown(api, "a") == []


async def test_an_api_server_that_drops_the_status_is_asked_once(api, writing):
    for name in ("a", "next"):
        allocate(api, name, "gpu-0")
    dropped = api.find(CLAIMS, "a", "default")
    api.fault = on(PATCH, lambda _: Answer(200, dropped))
    async with writing() as (writer, server):
        for name in ("a", "next"):
            await prepared(writer, server, name)
            await until(api, lambda: patches(api) == 1)
            await answers(server)
        assert patches(api) == 1


def test_a_device_without_a_proof_shows_no_receipt():
    device = claims.AllocatedDevice("gpus", NODE, "gpu-0", admin=False)
    entry = claims.device_status(DRIVER, device, GrantedDevice("GPU-0", "grant", ""), written=0.0)
    assert "data" not in entry
    assert {it["type"]: it["status"] for it in entry["conditions"]} == {"Ready": "True", f"{DRIVER}/scrubbed": "False"}
