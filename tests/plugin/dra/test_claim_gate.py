"""What the gate of claims asks a scrub service that the test speaks for."""

import asyncio

from plugin.dra.claim_gate import ClaimGate
from scrubber.api import client
from tests.patience import WITHIN
from tests.plugin.scrub_server import gpu


async def test_a_device_that_an_old_list_shows_free_is_released(door, followed):
    """A claim may end before the list shows that it has a device."""
    door.say(gpu(0), gpu(1))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        gate, until = ClaimGate(scrubber, listing), asyncio.get_running_loop().time() + WITHIN
        await gate.take("a", {"gpu-0000"}, until, "")
        await gate.give_back("a", until, "")
        await gate.give_back("a", until, "")
    assert door.asked == [("acquire", ("GPU-0000",)), ("release", ("GPU-0000",))]


async def test_devices_are_not_clean_while_the_service_is_away(door, followed):
    door.say(gpu(0))
    async with followed() as listing, client.ScrubberClient(door.socket) as scrubber:
        await listing.until_known()
        gate = ClaimGate(scrubber, listing)
        assert await gate.until_clean("a", {"GPU-0000"}, 0.1)
        await door.close()
        listing.distrust()
        assert not await gate.until_clean("a", {"GPU-0000"}, 0.1)
