"""What is asked for claims of a scrub service that the test speaks for."""

import asyncio

import pytest

from ground.errors import NotReady, Reason, Refused
from plugin.dra.claim_devices import ClaimDevices
from scrub_api import client
from tests.patience import WITHIN
from tests.plugin.scrub_server import gpu, no


async def test_a_claim_gives_back_what_the_service_says_it_has(door, followed):
    """A claim may end before the list shows that it has a device."""
    door.say(gpu(0), gpu(1))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        claim_devices, until = ClaimDevices(scrubber, listing), asyncio.get_running_loop().time() + WITHIN
        await claim_devices.take("a", {"gpu-0000"}, ("pod",), until, "")
        await claim_devices.give_back("a", until, "")
        await claim_devices.give_back("a", until, "")
    assert door.asked == [("acquire", ("GPU-0000",)), ("release", ()), ("release", ())]


async def test_an_older_list_gives_a_claim_no_device(door, followed):
    """The claim has given the device back a moment ago. The service does not grant it again before its scrub."""
    door.say(gpu(0, clean=False, owner="a"))
    door.answer = no(Refused(Reason.SCRUB_FAILED, "cannot hand out GPU-0000: its scrub failed"))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        claim_devices, until = ClaimDevices(scrubber, listing), asyncio.get_running_loop().time() + WITHIN
        with pytest.raises(Refused, match="its scrub failed"):
            await claim_devices.take("a", {"gpu-0000"}, (), until, "")


async def test_a_device_of_another_claim_is_not_asked_for(door, followed):
    door.say(gpu(0, owner="b"))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        deadline = asyncio.get_running_loop().time() + 0.1
        with pytest.raises(NotReady, match="GPU-0000 still belongs to another claim"):
            await ClaimDevices(scrubber, listing).take("a", {"gpu-0000"}, (), deadline, "")
    assert door.asked == []


async def test_devices_are_not_clean_while_the_service_is_away(door, followed):
    door.say(gpu(0))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        claim_devices = ClaimDevices(scrubber, listing)
        assert await claim_devices.until_clean("a", {"GPU-0000"}, 0.1)
        await door.close()
        listing.distrust()
        assert not await claim_devices.until_clean("a", {"GPU-0000"}, 0.1)
