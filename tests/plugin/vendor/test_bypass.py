"""A vendor's plugin that registers with the kubelet itself is found."""

import asyncio
from typing import Any, cast

import pytest

from demo.standins.vendor_plugin import VendorPlugin
from plugin.listing import Listing
from plugin.registration import sockets
from plugin.vendor import directory as module
from plugin.vendor.directory import VendorDirectory
from plugin.vendor.offer import VendorOffer
from tests.patience import WITHIN


@pytest.fixture
async def vendors(short_tmp, monkeypatch):
    """What registers in a directory below the kubelet's, where a plugin has no time to register."""
    monkeypatch.setattr(module, "BYPASS_AFTER", 0.0)
    monkeypatch.setattr(sockets, "POLL_EVERY", 0.1)
    (short_tmp / "vendor").mkdir()
    offer = VendorOffer()
    listing = Listing(cast(Any, None), offer)  # the scrub service is not asked
    it = VendorDirectory(short_tmp / "vendor", short_tmp, "nvidia.com", offer, listing)
    running = asyncio.create_task(it.run(took_over=False))
    yield it
    running.cancel()
    await asyncio.wait({running})


async def test_a_plugin_that_registers_with_the_kubelet_is_reported(vendors, short_tmp):
    def reported() -> bool:
        return any(f"{vendor.path} has not registered" in line for line in vendors.obstacles())

    vendor = VendorPlugin(short_tmp, short_tmp, ["GPU-0000"])
    await vendor.begin()
    async with asyncio.timeout(WITHIN):
        await vendors._watch.until(reported)
        await vendor.stop()
        await vendors._watch.until(lambda: not reported())
