"""The last words of a reporter: that nobody looks any more, and the Events that still wait."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from plugin.cluster import words
from tests.plugin.cluster.api_server import on, silence, status
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.test_reporter import CONDITION, EVENTS, lines, out
from tests.plugin.scrub_door import gpu


async def test_the_end_is_told(api, door, reporting):
    door.say(gpu(0))
    async with reporting():
        await api.until(lambda: api.says("True"))
    assert api.says("Unknown", "PluginStopped")


@pytest.mark.parametrize("way", ["down", "hangs"])
async def test_the_end_waits_for_nobody_for_long(api, door, reporting, way):
    clock = asyncio.get_running_loop().time
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, farewell=0.3)):
            door.say(gpu(0))
            await api.until(lambda: api.says("True"))
            if way == "down":
                await api.close()
            api.fault = silence
            began = clock()
        assert clock() - began < 1.5
    assert len(lines(logs, "the cluster was not told of the end")) == 1


NO_EVENTS = {"hang": silence, "are forbidden": lambda _request: status(403, "Forbidden")}


@pytest.mark.parametrize("events", NO_EVENTS)
async def test_the_end_is_told_also_where_the_last_events_are_not(api, door, reporting, events):
    api.fault = on(EVENTS, NO_EVENTS[events])
    door.say(out(0), gpu(1))
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, slow=3600, farewell=0.3)):
            await api.until(lambda: api.says("False") and api.told(EVENTS))
            door.say(gpu(0), gpu(1))
            await api.until(lambda: api.says("True"))
    assert api.says("Unknown", "PluginStopped")
    (told,) = lines(logs, "the cluster was not told of the end")
    assert (told["about"], told["events_untold"]) == ("Events", 2)


async def test_the_end_is_told_also_after_a_fault_of_ours(api, door, reporting, monkeypatch):
    monkeypatch.setattr(words, "event", None)
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, slow=3600)):
            await api.until(lambda: api.says("False"))
    assert api.says("Unknown", "PluginStopped")
    assert lines(logs, "a fault inside the reports to the cluster")


async def test_the_last_events_go_out_also_where_the_end_cannot_be_told(api, door, reporting):
    api.fault = on(EVENTS, lambda _request: status(500, "InternalError"))
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting(pace=replace(QUICK, first=3600, longest=3600)):
            await api.until(lambda: api.says("False") and api.told(EVENTS))
            api.fault = on(CONDITION, lambda _request: status(403, "Forbidden"))
    assert api.counts() == {("DeviceQuarantined", "GPU 0"): 1}
    (told,) = lines(logs, "the cluster was not told of the end")
    assert told["about"] == "the condition"
