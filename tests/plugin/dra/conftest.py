"""An API server of the test, and drivers that run as processes."""

import pytest

from demo.standins.api_server import ApiServer
from tests.plugin.dra.live_driver import NODE, LiveDriver


@pytest.fixture
async def api(short_tmp):
    api = ApiServer(short_tmp, NODE)
    await api.open()
    yield api
    await api.leave()


@pytest.fixture
async def live_driver(short_tmp, api):
    """Start drivers; all are ended with the test."""
    started: list[LiveDriver] = []

    async def live_driver(*flags: object) -> LiveDriver:
        driver = LiveDriver(short_tmp, api.kubeconfig, *flags)
        started.append(driver)
        await driver.start()
        return driver

    yield live_driver
    for each in started:
        await each.clear_away()
