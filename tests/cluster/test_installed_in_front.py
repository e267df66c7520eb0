"""The chart in front of NVIDIA's own device plugin: updates of the DaemonSet, one after the other."""

import asyncio
from pathlib import Path

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from deploy import generate
from ground.errors import Unreachable
from tests.cluster import files
from tests.cluster.autoclave import DEVICE_PLUGINS
from tests.cluster.conftest import LOGS, ROOT
from tests.cluster.in_front import DIRECTORY, InFront
from tests.cluster.installed import GPUS, SIMULATED, Installed
from tests.cluster.nvidia import SPECS, install
from tests.patience import WITHIN

VALUES = {
    **generate.OVERLAYS["simulated"],
    "policy": {"afterObserve": True},  # nothing uses the GPUs before the other one is here
    "plugin": {"inFrontOf": {"directory": str(DIRECTORY)}},
    "directories": {"cdi": "/var/run/cdi"},  # /etc is not the node's own
}


@pytest.fixture
async def installed(bare, node, autoclave, pytestconfig):
    """Both DaemonSets, and NVIDIA's plugin, which needs the directory that ours makes and the GPUs of the service."""
    archive = ROOT / pytestconfig.getoption("--image")
    program = (Path(__file__).parents[2] / pytestconfig.getoption("--programs") / "nvidia-device-plugin").resolve()
    if not (archive.exists() and program.exists()):
        pytest.skip(f"{archive} or {program} not found: see docs/real-nodes.md")
    autoclave.uninstall()
    node.load(archive)
    SPECS.mkdir(exist_ok=True)
    it = Installed(LOGS / "installed-in-front", VALUES, pytestconfig.getoption("--fence"))
    coming, vendor = asyncio.create_task(it.up()), None
    try:
        await files.until(DEVICE_PLUGINS, lambda: DIRECTORY.exists() or None)
        await files.until(DIRECTORY, lambda: (DIRECTORY / "kubelet.sock").exists() or None)
        served = retry_if_exception_type(Unreachable)
        async for attempt in AsyncRetrying(retry=served, wait=wait_fixed(0.2), stop=stop_after_delay(WITHIN)):
            with attempt:
                await it.devices(lambda device: device.state == "clean")
        vendor = InFront(bare, program, await asyncio.to_thread(install, SIMULATED, GPUS), LOGS).vendor
        vendor.start()
        await coming
        yield it
    finally:
        coming.cancel()
        if vendor is not None and vendor.process is not None:
            vendor.end()
        it.keep_logs()
        await it.down()


async def test_updates_in_a_row_stop_at_no_node(bare, installed):
    """A standby that waits for the other plugin for ever would stop the first update, with maxUnavailable 0."""
    await bare.offered(GPUS)
    for _ in range(2):
        await installed.update("autoclave-plugin")
        await bare.offered(GPUS)
