"""The slice in the API server, over real HTTP. The test speaks for the API server and the scrub service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from demo.standins.api_server import ApiServer, watch_error
from demo.standins.http_api import Request
from plugin.cluster import apiserver
from plugin.cluster.retry_loop import Pace
from plugin.dra import publisher
from plugin.dra.metrics import DraCounters
from plugin.dra.publisher import SlicePublisher
from plugin.listing import Listing
from tests.patience import WITHIN
from tests.plugin.scrub_server import gpu

NODE, DRIVER = "node-1", "gpu.autoclave.internal"
NAME = f"{NODE}-{DRIVER}"
QUICK = Pace(spacing=0, first=0.001, longest=0.02, slow=0.05)


class Server(ApiServer):
    """The API server of a node with one slice."""

    async def until(self, predicate, within=WITHIN):
        await super().until(predicate, within)

    def devices(self):
        """The names of the devices in the slice, in order; a ``!`` stands for a taint."""
        found = self.find("resourceslices", NAME)
        listed = found["spec"].get("devices", []) if found else []
        return [device["name"] + "!" * bool(device.get("taints")) for device in listed]


@pytest.fixture
async def api(short_tmp):
    api = Server(short_tmp, NODE)
    await api.open()
    yield api
    await api.leave()


@pytest.fixture
def publishing(api, followed, monkeypatch):
    monkeypatch.setattr(publisher, "WATCH_AGAIN", 0.01)

    @asynccontextmanager
    async def publishing(pace: Pace = QUICK) -> AsyncIterator[Listing]:
        server = apiserver.ApiServer(api.kubeconfig, NODE, 5.0)
        async with followed() as listing:
            its = SlicePublisher(server, listing, DRIVER, NODE, DraCounters(CollectorRegistry()), pace)
            task = asyncio.create_task(its.run())
            yield listing
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
        await server.close()

    return publishing


async def test_the_slice_follows_the_devices(api, door, publishing):
    door.say(gpu(0), gpu(1))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000", "gpu-0001"])
        owner = api.find("resourceslices", NAME)["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("Node", NODE)
        assert owner["uid"] == api.find("nodes", NODE)["metadata"]["uid"]
        door.say(gpu(0, healthy=False, clean=False), gpu(1))
        await api.until(lambda: api.devices() == ["gpu-0001", "gpu-0000!"])
        door.say(gpu(0, healthy=False, clean=False), gpu(1, healthy=False, clean=False))
        await api.until(lambda: api.devices() == ["gpu-0000!", "gpu-0001!"])
        door.say(gpu(0), gpu(1))  # in the same order
        await api.until(lambda: api.devices() == ["gpu-0000", "gpu-0001"])


async def test_many_changes_of_devices_are_few_writes(api, door, publishing):
    """One update now, and the next one after the pause, however many changes there are."""
    assert publisher.PACE.spacing == 1.0
    door.say(gpu(0))
    async with publishing(replace(QUICK, spacing=3600)) as listing:
        await api.until(lambda: api.devices() == ["gpu-0000"])
        for index in range(1, 20):
            before = listing.current()
            door.say(gpu(0), gpu(index))
            await listing.until_differs(before)
        assert [request.about for request in api.requests].count("PATCH resourceslices") == 1


async def test_a_slice_that_the_kubelet_deleted_is_written_again(api, door, publishing):
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"])
        api.delete("resourceslices", NAME)
        await api.until(lambda: api.devices() == ["gpu-0000"])


@pytest.mark.parametrize("code", [410, 429, 500])
async def test_an_error_of_a_watch_does_not_end_the_driver(api, door, publishing, code):
    """The API server forgets old states after some minutes: the driver lists again."""
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"] and _watches(api))
        api.fault = lambda request: watch_error(code, "x") if request.query.get("watch") else None
        api.end_watches()
        before = len(_watches(api))
        await api.until(lambda: len(_watches(api)) > before + 1)
        api.fault = lambda _: None
        api.delete("resourceslices", NAME)
        await api.until(lambda: api.devices() == ["gpu-0000"])


def _watches(api: Server) -> list[Request]:
    return [request for request in api.requests if request.query.get("watch")]


async def test_an_api_server_without_taints_gets_no_unhealthy_device(api, door, publishing):
    api.keeps_taints = False
    door.say(gpu(0, healthy=False), gpu(1))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0001"])
        door.say(gpu(0, healthy=False), gpu(1, healthy=False))
        await api.until(lambda: api.devices() == [])
    # Otherwise the slice would differ for ever, and would be written for ever.
    assert len([request for request in api.requests if request.about == "PATCH resourceslices"]) == 3


async def test_an_unreachable_service_leaves_claims_without_devices(api, door, publishing):
    door.silence = 0.05
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"])
        await door.close()
        await api.until(lambda: api.devices() == ["gpu-0000!"])
