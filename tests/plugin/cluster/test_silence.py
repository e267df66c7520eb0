"""What is reported while the state of the devices is unknown, and when they are seen again."""

import asyncio
from typing import cast

from structlog.testing import capture_logs

from plugin.cluster import apiserver, node_report
from plugin.cluster.reporter import ClusterReporter
from plugin.listing import Listing
from tests.patience import WITHIN
from tests.plugin.cluster.api_server import NODE
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.devices import IDLE, Source, lines, out
from tests.plugin.scrub_server import gpu


async def slots(number=50):
    """Let the loop do whatever it can do without time."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_silent_service_causes_no_busy_loop(api, monkeypatch):
    source = Source(IDLE)
    reporter = ClusterReporter(apiserver.ApiServer(api.kubeconfig, NODE, 5.0), NODE, pace=QUICK)
    task = asyncio.create_task(reporter.run(cast(Listing, source)))
    await api.until(lambda: api.says("Unknown", "DevicesNotReady"))
    monkeypatch.setattr(node_report, "NOT_READY_AFTER", 0.0)  # the device has been idle for too long from now on
    source.say(None)
    await slots()
    assert source.looks == 2
    task.cancel()
    await asyncio.wait({task})


async def test_a_device_not_offered_for_too_long_is_reported(api, door, reporting, monkeypatch):
    monkeypatch.setattr(node_report, "NOT_READY_AFTER", 0.05)
    door.say(gpu(0, healthy=False, clean=False))
    async with reporting():
        await api.until(lambda: api.says("False", "AllDevicesOut") and ("DeviceNotReady", "GPU 0") in api.counts())


async def test_a_silence_ends_what_was_proven_healthy(api, door, reporting):
    door.say(gpu(0), gpu(1))
    door.silence = 0.0
    async with reporting():
        await api.until(lambda: api.says("True"))
        await door.close()
        await api.until(lambda: api.says("Unknown", "ScrubServiceSilent"))
        door.say(*(gpu(index, healthy=False, clean=False) for index in range(2)))
        await door.open()
        await api.until(lambda: not api.says("Unknown", "ScrubServiceSilent"))
        assert api.says("Unknown", "DevicesNotReady")
        door.say(gpu(0), gpu(1))
        await api.until(lambda: api.says("True"))


async def test_an_internal_fault_is_reported_and_proves_no_device(api, door, reporting, monkeypatch):
    door.say(gpu(0), gpu(1))
    with capture_logs() as logs:
        async with reporting() as listing:
            await api.until(lambda: api.says("True"))
            monkeypatch.setattr(node_report, "report", None)
            door.say(gpu(0), out(1))
            await api.until(lambda: api.says("Unknown", "PluginFault"))
            before = listing.current()
            door.say(*(gpu(index, healthy=False, clean=False) for index in range(2)))
            async with asyncio.timeout(WITHIN):
                await listing.until_differs(before)  # otherwise the next report may be about the list before
            monkeypatch.undo()
            await api.until(lambda: not api.says("Unknown", "PluginFault"))
            assert api.says("Unknown", "DevicesNotReady")
    assert lines(logs, "a fault inside what is sent")


async def test_a_change_before_a_fault_is_reported_after_it(api, door, reporting, monkeypatch):
    door.say(gpu(0))
    async with reporting():
        await api.until(lambda: api.says("True"))
        monkeypatch.setattr(node_report, "node_events", None)
        door.say(out(0))
        await api.until(lambda: api.says("Unknown", "PluginFault"))
        monkeypatch.undo()
        await api.until(lambda: ("DeviceQuarantined", "GPU 0") in api.counts())


async def test_each_silence_of_the_service_is_logged(door, followed):
    with capture_logs() as logs:
        async with followed() as listing:
            for number in (1, 2):
                door.say(gpu(0))
                await listing.until_differs(None)
                before = listing.current()
                door.say(gpu(0), gpu(number))  # it goes on
                await listing.until_differs(before)
                before = listing.current()
                door.silence = 0.0
                door.say(gpu(0, clean=False), gpu(number))
                await listing.until_differs(before)
                await door.close()
                async with asyncio.timeout(WITHIN):
                    while listing.current() is not None:
                        await listing.until_differs(listing.current())
                await door.open()
    assert len(lines(logs, "the scrub service does not answer")) == 2
