"""The driver's figures and probes: the real process, between a real scrub service and an API server of the test."""

import asyncio

import pytest

from plugin.dra.config import DRIVER
from plugin.metrics import table
from scrubber import __version__
from tests.plugin.cluster.api_server import Answer, Request, status
from tests.plugin.dra.live_driver import LiveDriver
from tests.plugin.dra.test_driver import SOON
from tests.plugin.dra.test_publisher import SliceServer

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"


class ClaimServer(SliceServer):
    """Keeps claims beside the slice."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.claims: dict[str, object] = {}
        self.refuses_slices = False
        self._answer_others, self.fault = self.fault, self._answer_claims

    def allocate(self, name, *devices):
        results = [{"driver": DRIVER, "pool": "node-1", "request": "gpus", "device": it.lower()} for it in devices]
        self.claims[name] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results}}},
        }

    def _answer_claims(self, request: Request) -> Answer | None:
        if request.path.startswith(CLAIMS):
            claim = self.claims.get(request.path.removeprefix(CLAIMS))
            return status(404, "NotFound") if claim is None else Answer(200, claim)
        if self.refuses_slices and request.method == "PATCH":
            return status(503, "busy")
        return self._answer_others(request)


@pytest.fixture
async def api(short_tmp):
    api = ClaimServer(short_tmp)
    await api.open()
    yield api
    await api.leave()


@pytest.fixture
async def driver(short_tmp, api):
    driver = LiveDriver(short_tmp, api.kubeconfig)
    await driver.start()
    yield driver
    await driver.clear_away()


@pytest.mark.usefixtures("scrub_server")
async def test_the_driver_says_what_it_waits_for(api, driver):
    api.refuses_slices = True
    await driver.hear("devices known")
    status, why = await driver.ready()
    assert status == 503
    assert why.splitlines() == [
        f"not ready: the driver {DRIVER} is not registered with the kubelet: the kubelet has not called it yet",
        "not ready: the ResourceSlice of the node is not up to date: it has not been written yet",
    ]
    await driver.register()
    await driver.hear("cannot report to the cluster")
    figures = await driver.scrape()
    assert figures.of(table.REGISTRATIONS, resource=DRIVER, outcome="registered") == 1
    assert figures.of(table.DRA_REGISTERED) == 1
    assert (figures.of(table.DRA_READY), figures.of(table.SLICE_WRITTEN)) == (0, 0)
    assert figures.of(table.SLICE_WRITES, outcome="away") >= 1
    status, why = await driver.ready()
    assert (status, why.count("\n"), "ResourceSlice" in why, "503" in why) == (503, 1, True, True)
    api.refuses_slices = False
    await driver.hear("slice")
    figures = await driver.scrape()
    assert await driver.ready() == (200, "ready\n")
    assert (figures.of(table.DRA_READY), figures.of(table.SLICE_WRITES, outcome="written")) == (1, 1)
    assert figures.of(table.SLICE_DEVICES, health="healthy") == 2


async def test_the_claims_of_a_day_are_counted(service, api, driver):
    gpu = (await asyncio.to_thread(service.settled, 0, "clean")).device
    for name in ("first", "second"):
        api.allocate(name, gpu)
    await driver.register()
    assert await driver.call("prepare", "first") == ""
    assert "another claim" in await driver.call("prepare", "second", SOON)
    assert "does not exist" in await driver.call("prepare", "missing", SOON)
    assert await driver.call("unprepare", "first") == ""
    figures = await driver.scrape()
    assert figures.of(table.CLAIM_TIME, "_count", call="prepare", outcome="ok") == 1
    assert figures.of(table.CLAIM_TIME, "_count", call="prepare", outcome="refused") == 2
    assert figures.of(table.CLAIM_TIME, "_count", call="unprepare", outcome="ok") == 1
    assert figures.of(table.CLAIM_REFUSALS, call="prepare", reason="in-use") == 1
    assert figures.of(table.CLAIM_REFUSALS, call="prepare", reason="api-server") == 1
    assert figures.of(table.CLAIM_REFUSALS, call="unprepare", reason="in-use") == 0
    assert figures.of(table.CLAIMS_WAITING, call="prepare") == 0
    assert figures.of(table.DRA_BUILD, version=__version__) == 1
    assert figures.strangers() == []
