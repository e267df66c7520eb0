"""The end of a reporter: the condition says that the plugin has stopped, and waiting Events are sent."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from demo.standins.http_api import Fault
from plugin.cluster import apiserver
from plugin.cluster.reporter import ClusterReporter
from plugin.listing import Listing
from tests.patience import WITHIN
from tests.plugin.cluster.api_server import CONDITION, EVENTS, NODE, on, silence, status
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.devices import IDLE, Source, lines, out
from tests.plugin.scrub_server import gpu


@pytest.mark.parametrize("way", ["down", "hangs"])
async def test_the_server_stops_quickly(api, door, reporting, way):
    with capture_logs() as logs:
        async with asyncio.timeout(WITHIN), reporting(pace=replace(QUICK, stop_within=0.3), within=3600):
            door.say(gpu(0))
            await api.until(lambda: api.says("True"))
            if way == "down":
                await api.close()
            api.fault = silence
    assert len(lines(logs, "the stop was not reported to the cluster")) == 1


class HangingServer(apiserver.ApiServer):
    """A connection that cannot be let go of."""

    came = ""  # what came first once the last words were said

    async def close(self) -> None:
        def late() -> None:
            self.came = self.came or "more time"

        asyncio.get_running_loop().call_later(0.05, late)
        try:
            await asyncio.Event().wait()
        finally:
            self.came = self.came or "the end"


async def test_closing_the_connection_stays_within_the_stop_limit(api, monkeypatch):
    """Where these took all of it, there is none."""
    monkeypatch.setattr(apiserver, "ApiServer", HangingServer)
    server = apiserver.ApiServer(api.kubeconfig, NODE, 3600)
    task = asyncio.create_task(
        ClusterReporter(server, NODE, pace=replace(QUICK, stop_within=0.3)).run(cast(Listing, Source(IDLE)))
    )
    await api.until(lambda: api.says("Unknown", "DevicesNotReady"))
    api.fault = silence
    with capture_logs() as logs:
        task.cancel()
        await asyncio.wait({task})
    assert isinstance(server, HangingServer)
    assert server.came == "the end"
    assert [line["error"] for line in lines(logs, "cannot close the connection to the API server")] == ["no time left"]


NO_EVENTS: dict[str, Fault] = {"hang": silence, "are forbidden": lambda _request: status(403, "Forbidden")}


@pytest.mark.parametrize("events", NO_EVENTS)
async def test_the_stop_is_reported_without_the_last_events(api, door, reporting, events):
    api.fault = on(EVENTS, NO_EVENTS[events])
    door.say(out(0), gpu(1))
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, slow=3600, stop_within=0.3)):
            await api.until(lambda: api.says("False") and api.bodies(EVENTS))
            door.say(gpu(0), gpu(1))
            await api.until(lambda: api.says("True"))
    assert api.says("Unknown", "PluginStopped")
    (warning,) = lines(logs, "the stop was not reported to the cluster")
    assert (warning["about"], warning["events_unsent"]) == ("Events", 2)


async def test_the_last_events_are_sent_without_the_condition(api, door, reporting):
    api.fault = on(EVENTS, lambda _request: status(500, "InternalError"))
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, first=3600, longest=3600)):
            await api.until(lambda: api.says("False") and api.bodies(EVENTS))
            api.fault = on(CONDITION, lambda _request: status(403, "Forbidden"))
    assert api.counts() == {("DeviceQuarantined", "GPU 0"): 1}
    (warning,) = lines(logs, "the stop was not reported to the cluster")
    assert warning["about"] == "the condition"
