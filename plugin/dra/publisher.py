"""Keeps the ResourceSlice of the node as it should be, as long as the driver runs.

The slice is written when it differs from what it should be: after a change of a device, after a change by another
client, and after the kubelet has deleted it, which the kubelet does at its start and when it has lost the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ground import log
from ground.aio import Changed
from plugin.cluster.retry_loop import NEVER, Failure, Pace, RetryLoop
from plugin.devices import Device
from plugin.dra import resource_slices
from plugin.dra.metrics import DraCounters
from plugin.dra.resource_slices import Pool
from plugin.listing import Listing

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

logger = log.get("slice")

PACE = Pace(spacing=1.0)  # at most one update a second, however often devices change
WATCH_AGAIN = 1.0  # seconds until a watch that has ended is opened again


class SlicePublisher:
    """Publishes the devices of one node."""

    def __init__(
        self,
        server: ApiServer,
        listing: Listing,
        driver: str,
        node: str,
        counters: DraCounters,
        pace: Pace = PACE,
    ) -> None:
        self._server = server
        self._listing = listing
        self._driver = driver
        self._node = node
        self._pace = pace
        self._counters = counters
        self._changed = Changed()
        self._pool: Pool | None = None
        self._devices: tuple[Device, ...] | None = None
        self._found: Mapping[str, Any] | None = None  # the slice as the API server has it
        self._read = False  # whether ``_found`` is known
        self._taints = True  # whether the API server keeps taints

    async def run(self) -> None:
        """Publish until cancelled. The slice stays: the next process takes it over."""
        loop = RetryLoop("the slice", self._due, self._write, self._changed, self._pace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run(), name="slice")
            tasks.create_task(self._follow_devices(), name="devices for the slice")
            tasks.create_task(self._follow_slice(), name="watch of the slice")

    def _due(self) -> float:
        if self._devices is None:
            return NEVER  # the service has never answered, so nothing is known of the devices
        if self._pool is not None and self._read and resource_slices.covers(self._found, self._wanted(self._pool)):
            return NEVER
        return 0.0

    def _wanted(self, pool: Pool) -> dict[str, Any]:
        return resource_slices.resource_slice(pool, self._devices or (), taints=self._taints)

    async def _write(self) -> None:
        try:
            if self._pool is None:
                self._pool = Pool(self._driver, self._node, (await self._server.read()).uid)
            wanted = self._wanted(self._pool)
            applied = await self._server.apply_slice(wanted)
        except Failure as failure:
            self._counters.slice_written(failure)
            raise
        if resource_slices.has_taint(wanted) and not resource_slices.has_taint(applied):
            self._taints = False
            logger.warning(
                "the API server keeps no device taints: unhealthy devices are left out",
                gate=resource_slices.TAINTS_GATE,
            )
        self._found, self._read = applied, True
        logger.info("slice", devices=len(wanted["spec"].get("devices", ())))
        self._counters.slice_written(None)

    async def _follow_devices(self) -> None:
        await self._listing.until_known()
        while True:
            shown = self._listing.current()
            if shown is not None:
                self._devices = shown
            else:  # nothing is proven: no new claim gets a device of this node
                self._devices = tuple(resource_slices.withdrawn(device) for device in self._devices or ())
            self._changed.notify()
            await self._listing.until_differs(shown)

    async def _follow_slice(self) -> None:
        warned = ""
        while True:
            try:
                async for current in self._server.slices(resource_slices.slice_name(self._driver, self._node)):
                    self._found, self._read, warned = current, True, ""
                    self._changed.notify()
            except Failure as failure:
                if failure.message != warned:  # each cause once, not each attempt
                    warned = failure.message
                    logger.warning("cannot watch the slice", error=warned)
            await asyncio.sleep(WATCH_AGAIN)
