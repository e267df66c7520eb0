"""Another plugin that serves in the kubelet's directory is found while ours runs, and forgotten when it has gone."""

import asyncio

import structlog

from demo.standins.vendor_plugin import VendorPlugin
from plugin.registration import other_plugins
from tests.patience import WITHIN


async def test_a_plugin_that_comes_later_is_reported_until_it_goes(short_tmp, monkeypatch):
    monkeypatch.setattr(other_plugins, "RIVALS_EVERY", 0.01)
    reported: asyncio.Queue[str] = asyncio.Queue()
    elsewhere = short_tmp / "elsewhere"
    elsewhere.mkdir()

    async def until(socket: str) -> None:
        async with asyncio.timeout(WITHIN):
            while await reported.get() != socket:
                pass

    with structlog.testing.capture_logs() as logs:
        watching = asyncio.create_task(other_plugins.watch_rivals(short_tmp, "nvidia.com", reported.put_nowait))
        await until("")
        for _ in range(2):
            rival = await VendorPlugin(short_tmp, elsewhere, ["GPU-0000"]).begin()
            await until(str(rival.path))
            await until(str(rival.path))
            await rival.stop()
            await until("")
        watching.cancel()
        await asyncio.wait({watching})
    assert [(line["event"], line["log_level"]) for line in logs] == [(other_plugins.NOT_PROVEN, "error")] * 2
