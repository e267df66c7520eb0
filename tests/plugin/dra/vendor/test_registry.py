"""The sockets that the driver in front shows to the kubelet."""

import asyncio
import os
import socket
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from ground.unix_sockets import MAX_PATH_BYTES
from plugin.devices import MigStrategy, own_devices
from plugin.dra.config import DraConfig
from plugin.dra.metrics import DraCounters, DraReadiness
from plugin.dra.vendor import registry as vendor_registry
from plugin.listing import Listing
from scrub_api import client
from tests.patience import WITHIN

UID = "0f3c9f6e-6a7e-4c53-9d0c-6f1a2b3c4d5e"


@pytest.mark.parametrize(
    "vendor", ["gpu.nvidia.com-reg.sock", "compute-domain.nvidia.com-reg.sock", f"{'v' * 63}-{UID}-reg.sock"]
)
def test_names_fit_and_differ(vendor):
    names = {vendor_registry.socket_name(DraConfig(instance=instance), Path(vendor)) for instance in ("", UID)}
    assert len(names) == 2
    assert len({*names, vendor_registry.socket_name(DraConfig(), Path(f"x{vendor}"))}) == 3
    for name in names:
        assert len(os.fsencode(DraConfig().registry_dir / f"{name}-reg.sock")) <= MAX_PATH_BYTES
        assert len(os.fsencode(DraConfig().in_front_dir / f"{name}.sock")) <= MAX_PATH_BYTES


async def test_a_driver_that_bypasses_autoclave_is_named(short_tmp):
    """Its registry directory was not moved: the kubelet calls it, and nothing is proven."""
    chosen = DraConfig(driver="gpu.nvidia.com", plugins_dir=short_tmp, registry_dir=short_tmp / "registry")
    vendor = short_tmp / "vendor"
    for folder in (chosen.in_front_dir, chosen.registry_dir, vendor):
        folder.mkdir()
    left = [chosen.registry_dir / "autoclave-a-1-reg.sock", chosen.in_front_dir / "autoclave-a-1.sock"]
    for path in left:  # of a driver that was killed: the kubelet would call it for ever
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    counters = DraCounters(CollectorRegistry())
    registry = vendor_registry.VendorRegistry(chosen, vendor, lambda *_: lambda _: None, counters)
    running = asyncio.create_task(registry.run())
    direct = chosen.registry_dir / "gpu.nvidia.com-reg.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(direct))
        server.listen()
        async with asyncio.timeout(WITHIN):
            await registry._watch.until(lambda: counters.bypass == direct.name)
        assert not any(path.exists() for path in left)
        direct.unlink()
        async with asyncio.timeout(WITHIN):
            await registry._watch.until(lambda: not counters.bypass)
    running.cancel()
    await asyncio.wait({running})


def test_a_driver_that_is_bypassed_is_not_ready():
    counters = DraCounters(CollectorRegistry())
    counters.bypass = "gpu.nvidia.com-reg.sock"
    listing = Listing(cast(client.ScrubberClient, None), own_devices("nvidia.com", MigStrategy.MIXED))
    why = DraReadiness(listing, counters, "gpu.nvidia.com").obstacles()
    assert any("nothing is proven: the kubelet finds gpu.nvidia.com, and not Autoclave," in line for line in why)
