"""The driver's figures and probes: the real process, between a real scrub service and an API server of the test."""

import asyncio

import pytest

from demo.standins.http_api import on, status
from plugin.dra.config import DRIVER
from plugin.metrics import plugin_metrics
from scrubber import __version__
from tests.plugin.dra.live_driver import SOON, allocate


@pytest.mark.usefixtures("scrub_server")
async def test_the_driver_says_what_it_waits_for(api, live_driver):
    driver = await live_driver()
    api.fault = on("PATCH resourceslices", lambda _: status(503, "busy"))
    await driver.hear("devices known")
    code, why = await driver.ready()
    assert code == 503
    assert why.splitlines() == [
        f"not ready: the driver {DRIVER} is not registered with the kubelet: the kubelet has not called it yet",
        "not ready: the ResourceSlice of the node is not up to date: it has not been written yet",
    ]
    await driver.register()
    await driver.hear("cannot send")
    scraped = await driver.scrape()
    assert scraped.of(plugin_metrics.REGISTRATIONS, resource=DRIVER, outcome="registered") == 1
    assert scraped.of(plugin_metrics.DRA_REGISTERED) == 1
    assert (scraped.of(plugin_metrics.DRA_READY), scraped.of(plugin_metrics.SLICE_WRITTEN)) == (0, 0)
    assert scraped.of(plugin_metrics.SLICE_WRITES, outcome="away") >= 1
    code, why = await driver.ready()
    assert (code, why.count("\n"), "ResourceSlice" in why, "503" in why) == (503, 1, True, True)
    api.fault = lambda _: None
    await driver.hear("slice")
    scraped = await driver.scrape()
    assert await driver.ready() == (200, "ready\n")
    assert (scraped.of(plugin_metrics.DRA_READY), scraped.of(plugin_metrics.SLICE_WRITES, outcome="written")) == (1, 1)
    assert scraped.of(plugin_metrics.SLICE_DEVICES, health="healthy") == 2


async def test_the_claims_of_a_day_are_counted(service, api, live_driver):
    driver = await live_driver()
    gpu = (await asyncio.to_thread(service.settled, 0, "clean")).device
    for name in ("first", "second"):
        allocate(api, name, gpu)
    await driver.register()
    assert await driver.call("prepare", "first") == ""
    assert gpu in await driver.call("prepare", "second", SOON)
    assert "does not exist" in await driver.call("prepare", "missing", SOON)
    assert await driver.call("unprepare", "first") == ""
    scraped = await driver.scrape()
    assert scraped.of(plugin_metrics.CLAIM_TIME, "_count", call="prepare", outcome="ok") == 1
    assert scraped.of(plugin_metrics.CLAIM_TIME, "_count", call="prepare", outcome="refused") == 2
    assert scraped.of(plugin_metrics.CLAIM_TIME, "_count", call="unprepare", outcome="ok") == 1
    assert scraped.of(plugin_metrics.CLAIM_REFUSALS, call="prepare", reason="in-use") == 1
    assert scraped.of(plugin_metrics.CLAIM_REFUSALS, call="prepare", reason="api-server") == 1
    assert scraped.of(plugin_metrics.CLAIM_REFUSALS, call="unprepare", reason="in-use") == 0
    assert scraped.of(plugin_metrics.CLAIMS_WAITING, call="prepare") == 0
    assert scraped.of(plugin_metrics.DRA_BUILD, version=__version__) == 1
    assert scraped.unknown() == []
