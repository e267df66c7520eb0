"""What the kubelet is shown, whatever the scrub service does."""

import asyncio
import time
from typing import cast

import pytest
from structlog.testing import capture_logs

from plugin import listing as module
from plugin.devices import MigStrategy, own_devices
from scrub_api import client
from scrub_api.device_messages import ReportedDevices
from tests.patience import WITHIN
from tests.plugin.live_plugin import NO_SERVICE
from tests.plugin.scrub_server import gpu

GPU = "nvidia.com/gpu"
A, B = "GPU-0000", "GPU-0001"


def everything(healthy):
    return lambda shown: shown and set(shown.values()) == {healthy}


def exactly(**wanted):
    return lambda shown: shown == {name.replace("_", "-"): healthy for name, healthy in wanted.items()}


async def first(listing):
    async with asyncio.timeout(WITHIN):
        await listing.until_known()


async def test_a_verdict_is_shown_as_soon_as_it_is_sent(door, followed, read, monkeypatch):
    monkeypatch.setattr(module, "ASKED_AGAIN_AFTER", 6 * WITHIN)  # a list that is asked for anew comes too late
    door.say(gpu(0), gpu(1))
    async with followed() as listing:
        reader = read(listing)
        for healthy in (True, False, True):
            door.say(gpu(0), gpu(1, healthy=healthy))
            await reader.until(exactly(GPU_0000=True, GPU_0001=healthy))
            reader.forget()


async def test_a_device_that_was_shown_never_leaves_the_list(door, followed, read):
    door.say(gpu(0), gpu(1))
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        door.say(gpu(0))
        await reader.until(exactly(GPU_0000=True, GPU_0001=False))
        reader.forget()
        door.say()
        await reader.until(everything(False))
        assert all(set(shown) == {A, B} for shown in reader.lists)
        door.say(gpu(0), gpu(1))
        await reader.until(everything(True))


async def test_there_is_no_current_list_while_none_is_valid(door, followed):
    door.say(gpu(0), gpu(1))
    door.silence = 0.0
    async with followed() as listing, asyncio.timeout(WITHIN):
        assert listing.current() is None
        await listing.until_differs(None)
        whole = listing.current()
        assert [device.gone for device in whole] == [False, False]
        door.say(gpu(0))
        await listing.until_differs(whole)
        one_gone = listing.current()
        assert [(device.uuid, device.gone) for device in one_gone] == [(A, False), (B, True)]
        await door.close()
        await listing.until_differs(one_gone)
        assert listing.current() is None


async def test_replaced_devices_stay_listed_only_where_they_were_listed(door, followed, read):
    """Or the kubelet would count the slices of every layout that there ever was."""
    left = gpu(1, reason="relaid", quarantined=True, replaced=True, healthy=False)
    door.say(gpu(0), gpu(1))
    async with followed() as before:
        reader = read(before)
        await reader.until(exactly(GPU_0000=True, GPU_0001=True))
        door.say(gpu(0), left)
        await reader.until(exactly(GPU_0000=True, GPU_0001=False))
        async with followed() as later:
            reader = read(later)
            await reader.until(exactly(GPU_0000=True))
            door.say(gpu(0), gpu(1))
            await reader.until(exactly(GPU_0000=True, GPU_0001=True))


async def test_a_renamed_device_stays_unhealthy_under_its_old_name(door, followed, read):
    door.say(gpu(0), gpu(1, mig=True, resource="nvidia.com/mig-1g.10gb"))
    async with followed(MigStrategy.MIXED) as listing:
        await first(listing)
        old, new = read(listing, "nvidia.com/mig-1g.10gb"), read(listing, "nvidia.com/mig-2g.20gb")
        await old.until(exactly(GPU_0001=True))
        door.say(gpu(0), gpu(1, mig=True, resource="nvidia.com/mig-2g.20gb"))
        await old.until(exactly(GPU_0001=False))
        await new.until(exactly(GPU_0001=True))
        assert listing.resources() == {GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"}


async def test_a_change_invisible_to_the_kubelet_sends_no_list(door, followed, read):
    door.say(gpu(0), gpu(1))
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        await reader.until(everything(True))
        door.say(gpu(0, clean=False), gpu(1))
        async with asyncio.timeout(WITHIN):
            await listing._changed.until(lambda: not listing.shown(GPU)[0].clean)
        door.say(gpu(0, clean=False), gpu(1, healthy=False))
        await reader.until(exactly(GPU_0000=True, GPU_0001=False))
        assert len(reader.lists) == 2


WAITING = gpu(0, waits=True)


@pytest.mark.parametrize("devices", [(), (WAITING, gpu(1))])
async def test_where_no_container_waits_the_service_has_to_answer_first(door, followed, devices):
    await door.close()
    async with followed() as listing:
        listing.begin_with(ReportedDevices(devices, 60.0))
        assert listing.current() is None


async def test_a_list_that_the_service_has_left_expires(door, followed, read):
    await door.close()
    async with followed() as listing:
        listing.begin_with(ReportedDevices((WAITING,), 0.5))
        reader = read(listing)
        await reader.until(everything(True))
        await reader.until(everything(False))
        door.say(WAITING, gpu(1))
        await door.open()
        await reader.until(exactly(GPU_0000=True, GPU_0001=True))


async def test_the_last_list_is_valid_as_long_as_promised(door, followed, read, monkeypatch):
    monkeypatch.setattr(module, "ANSWERS_WITHIN", 60.0)  # what is asked anew would be found out only then
    door.say(gpu(0), gpu(1))
    door.silence = 0.7
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        await reader.until(everything(True))
        begun = time.monotonic()
        await door.close()
        await reader.until(everything(False))
        assert time.monotonic() - begun > 0.6
        reader.forget()
        await door.open()
        await reader.until(everything(True))


async def test_a_short_outage_of_the_service_changes_no_list(door, followed, read):
    door.say(gpu(0))
    door.silence = 60.0
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        await reader.until(everything(True))
        await door.close()
        await door.open()
        watched = door.watched
        await door.until(lambda door: door.watched > watched)
        door.say(gpu(0), gpu(1))
        await reader.until(exactly(GPU_0000=True, GPU_0001=True))
        assert all(everything(True)(shown) for shown in reader.lists)


async def test_a_hanging_service_with_an_open_stream_is_detected(door, followed, read, monkeypatch):
    monkeypatch.setattr(module, "ASKED_AGAIN_AFTER", 0.1)
    monkeypatch.setattr(module, "ANSWERS_WITHIN", 3.0)
    door.say(gpu(0))
    door.silence = 3.0
    with capture_logs() as lines:
        async with followed() as listing:
            await first(listing)
            reader = read(listing)
            await reader.until(everything(True))
            begun = time.monotonic()
            door.mute = True
            await reader.until(everything(False))
            assert 2.9 < time.monotonic() - begun < 5.9  # from the question on, not from the lost patience
            reader.forget()
            door.mute = False
            await reader.until(everything(True))
    logged = [line["event"] for line in lines]
    assert logged.count("the scrub service does not answer") == 1
    assert logged.count("the scrub service answers again") == 1


async def test_a_new_request_is_no_silence(door, followed, read, monkeypatch):
    monkeypatch.setattr(module, "ASKED_AGAIN_AFTER", 0.01)
    door.say(gpu(0))
    door.silence = 0.0
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        await door.until(lambda door: door.watched >= 20)
        assert reader.lists == [{A: True}]


@pytest.mark.parametrize("way", ["away", "brief", "refusing"])
async def test_a_failing_service_is_retried_with_pauses_and_logged_once(door, followed, read, way):
    door.say(gpu(0))
    door.silence = 0.0
    async with followed() as listing:
        await first(listing)
        reader = read(listing)
        await reader.until(everything(True))
        with capture_logs() as lines:
            if way == "away":
                await door.close()
            door.brief = way == "brief"
            door.mute = way == "refusing"
            door.say(gpu(0))
            await asyncio.sleep(0.5)  # the quick tries are over
            watched, logged, shown = door.watched, len(lines), len(reader.lists)
            await asyncio.sleep(2)
        assert door.watched - watched <= 10
        assert len(lines) - logged <= 20
        assert len(reader.lists) - shown <= 20


class Scripted:
    """A scrub service that sends a list when the test says so, with a stream for each request."""

    def __init__(self) -> None:
        self.streams: list[asyncio.Queue[ReportedDevices]] = []

    async def watch(self):
        self.streams.append(asyncio.Queue())
        stream = self.streams[-1]
        while True:
            yield await stream.get()

    def send(self) -> None:
        """A list with one device, to the latest stream."""
        self.streams[-1].put_nowait(ReportedDevices((gpu(0),), 60.0))


@pytest.fixture
async def scripted():
    """A listing that has read one list, and the service that it follows."""
    scrubber = Scripted()
    listing = module.Listing(cast(client.ScrubberClient, scrubber), own_devices("nvidia.com", MigStrategy.NONE))
    task = asyncio.create_task(listing.follow())
    await asyncio.sleep(0)
    scrubber.send()
    await first(listing)
    yield listing, scrubber
    task.cancel()
    await asyncio.wait({task})


async def rest():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_list_from_before_an_unanswered_request_proves_nothing(scripted):
    listing, scrubber = scripted
    await asyncio.sleep(0)
    scrubber.send()  # has come, and is not read yet
    listing.distrust()
    await rest()
    assert not any(device.healthy for device in listing.shown(GPU))
    assert len(scrubber.streams) == 2
    scrubber.send()
    await rest()
    assert all(device.healthy for device in listing.shown(GPU))


async def test_a_list_that_comes_again_changes_nothing(scripted):
    """The service sends its list again every two seconds: that costs next to nothing."""
    listing, scrubber = scripted
    shown = listing.shown(GPU)
    scrubber.send()
    await rest()
    assert scrubber.streams[0].empty()
    assert listing.shown(GPU) is shown


async def test_an_unhealthy_list_takes_effect_after_all_streams_sent_it(door, followed, read):
    door.say(gpu(0), gpu(1))
    async with followed() as listing:
        await first(listing)
        quick = read(listing)
        await quick.until(everything(True))
        slow = listing.changes(GPU)
        await anext(slow)
        door.say(gpu(0), gpu(1, healthy=False))
        await quick.until(exactly(GPU_0000=True, GPU_0001=False))
        assert not await listing.until_unhealthy(GPU, [A, B], 0.05)
        await anext(slow)
        assert not await listing.until_unhealthy(GPU, [A, B], 0.05)  # handed over, not known to be sent
        later = asyncio.create_task(anext(slow))
        assert await listing.until_unhealthy(GPU, [A, B], WITHIN)
        assert not await listing.until_unhealthy(GPU, [A], 0.05)
        later.cancel()
        await asyncio.wait({later})


async def test_without_streams_a_refusal_does_not_wait(door, followed):
    door.say(gpu(0))
    async with followed() as listing:
        await first(listing)
        assert await listing.until_unhealthy(GPU, [A], 0.0)


async def test_no_device_is_known_before_the_first_list(door, followed):
    await door.close()
    with capture_logs() as lines:
        async with followed() as listing:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await listing.until_known()
            assert listing.resources() == frozenset()
            assert [line["event"] for line in lines] == [NO_SERVICE]
            door.say(gpu(0))
            await door.open()
            await first(listing)
            assert listing.resources() == {GPU}
    assert [line["event"] for line in lines][1:] == ["devices known"]


async def test_a_list_is_in_the_order_of_the_node(door, followed):
    door.say(gpu(2), gpu(0), gpu(1))
    async with followed() as listing:
        await first(listing)
        assert [device.index for device in listing.shown(GPU)] == [0, 1, 2]
