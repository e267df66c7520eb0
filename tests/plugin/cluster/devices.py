"""Devices that are reported to the cluster, and the log lines about them."""

from ground.aio import Changed
from plugin.devices import Device
from plugin.listing import Shown
from tests.plugin.scrub_server import gpu

IDLE = Device("GPU-0000", healthy=False, clean=False, numa_node=0, resource="nvidia.com/gpu")


class Source(Changed):
    """Devices that stand as the test says, and how often somebody looked."""

    def __init__(self, *devices: Device) -> None:
        super().__init__()
        self.devices: Shown | None = devices
        self.looks = 0

    async def until_known(self) -> None:
        """They are known."""

    def current(self) -> Shown | None:
        self.looks += 1
        return self.devices

    async def until_differs(self, before: Shown | None) -> None:
        await self.until(lambda: self.devices != before)

    def say(self, devices: Shown | None) -> None:
        self.devices = devices
        self.notify()


def out(index, reason="xid"):
    return gpu(index, healthy=False, clean=False, reason=reason, quarantined=True)


def lines(logs, event):
    return [line for line in logs if line["event"] == event]
