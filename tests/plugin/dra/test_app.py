"""The program ``autoclave dra``, with the real scrub service. No kubelet finds it."""

import asyncio

from plugin.cluster.credentials import ReportChoice
from plugin.dra import app, driver
from plugin.dra.config import DraConfig
from plugin.registration.sockets import FileWatch
from plugin.stopping import InFlight
from tests.patience import WITHIN


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
    monkeypatch.setattr("plugin.dra.app.connect", lambda *_: None)
    chosen = DraConfig(
        plugins_dir=short_tmp, registry_dir=short_tmp, run_dir=service.run_dir, cluster=ReportChoice(node="node-1")
    )
    chosen.service_socket.parent.mkdir()
    calls, watch = Asked(), FileWatch(short_tmp)
    watching = asyncio.create_task(watch.run())
    program = asyncio.create_task(app._work(chosen, short_tmp, calls))
    async with asyncio.timeout(WITHIN):
        await watch.until(chosen.registry_socket.exists)
    for task in (program, watching):
        task.cancel()
    await asyncio.wait({program, watching})
    assert calls.within == [driver.CALL_WITHIN]
