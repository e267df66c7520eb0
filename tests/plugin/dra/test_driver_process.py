"""The program ``autoclave dra``, with the real scrub service. No kubelet finds it."""

import asyncio

import pytest

from plugin.cluster.report_choice import ReportChoice
from plugin.dra import dra_driver, driver_process
from plugin.dra.config import DraConfig
from plugin.stopping import InFlight
from tests.plugin.cluster.devices import out
from tests.plugin.cluster.platform_connector import PlatformConnector
from tests.plugin.dra.live_driver import NODE
from tests.plugin.live_plugin import NO_DIRECTORY, until_files
from tests.plugin.scrub_server import gpu


class Asked(InFlight):
    """Remembers how long a stop would wait for calls, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.within: list[float] = []

    async def none(self, within):
        self.within.append(within)
        return True


async def test_a_stop_waits_as_long_as_the_kubelet(service, short_tmp, monkeypatch):
    """A Prepare that is cut off is repeated after a minute only."""
    monkeypatch.setattr("plugin.dra.driver_process.connect", lambda *_: None)
    chosen = DraConfig(
        plugins_dir=short_tmp, registry_dir=short_tmp, run_dir=service.run_dir, cluster=ReportChoice(node="node-1")
    )
    chosen.service_socket.parent.mkdir()
    calls = Asked()
    program = asyncio.create_task(driver_process._work(chosen, short_tmp, calls))
    await until_files(chosen.registry_socket.exists, short_tmp)
    program.cancel()
    await asyncio.wait({program})
    assert calls.within == [dra_driver.CALL_WITHIN]


@pytest.mark.usefixtures("scrub_server")
async def test_the_driver_waits_for_the_first_kubelet_of_a_node(live_driver, short_tmp):
    """A unit of systemd may start before a kubelet has ever made its directories."""
    root = short_tmp / "kubelet"
    waiting = await live_driver("--plugins-dir", root / "plugins", "--registry-dir", root / "registry")
    for times, name in enumerate(("plugins", "registry"), 1):
        assert (await waiting.hear(NO_DIRECTORY, times))["directory"] == str(root / name)
        (root / name).mkdir(parents=True)
    waiting.root = root
    await waiting.register()


async def test_the_driver_reports_to_nvsentinel(scrub_server, live_driver, short_tmp):
    connector = PlatformConnector(short_tmp / "nvsentinel.sock")
    await connector.open()
    scrub_server.say(gpu(0), out(1))
    await live_driver("--nvsentinel-socket", connector.socket)
    await connector.until(lambda: len(connector.events) == 2)
    assert connector.reported() == [("GPU-0000", "healthy"), ("GPU-0001", "xid")]
    assert {(event.nodeName, event.isFatal) for event in connector.events} == {(NODE, False)}
    await connector.close()
