"""Hands out a vendor's devices, proven clean: first the service answers, then the vendor, whose answer is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from pathlib import Path

from ground import aio, log
from ground.errors import VENDOR_LOG, AutoclaveError, NotReady, Reason, Refused
from plugin import preferred
from plugin.devices import Device
from plugin.hooks import SHOWN_WITHIN
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.listing import Listing
from plugin.vendor import answer as vendor_answer
from plugin.vendor import offer
from plugin.vendor.connection import VendorPlugin
from plugin.vendor.directory import VendorDirectory
from scrub_api import client

logger = log.get("vendor")

ALLOCATE_WITHIN = 5.0  # seconds for the vendor's part of Allocate, also if its plugin restarts meanwhile
ANSWERS_WITHIN = 1.0  # seconds of these, at least, for the call itself
PREFER_WITHIN = 1.0  # seconds for a preference, which no pod needs
START_WITHIN = 29.0  # seconds: the kubelet gives up after 30 s
DRAINED_WITHIN = 11.0  # seconds for calls that are being answered at a stop: our part and the vendor's


class VendorResponses:
    """Implements ``device_plugin.Responses`` for one resource."""

    def __init__(
        self,
        resource: str,
        directory: VendorDirectory,
        listing: Listing,
        scrubber: client.ScrubberClient,
        cdi_dirs: Collection[Path],
        variables: Collection[str],
        count: Callable[[str], None],
    ) -> None:
        """``variables``: the variables that may be in an answer with any value.

        ``count`` is called if an answer had an unknown one.
        """
        self._resource = resource
        self._directory = directory
        self._listing = listing
        self._scrubber = scrubber
        self._cdi_dirs = cdi_dirs
        self._variables = variables
        self._count = count
        self._unknown: frozenset[str] = frozenset()  # variables that are logged

    async def prepare(self, groups: Sequence[Sequence[Device]]) -> float:
        """Wait for the vendor's plugin. Returns the seconds that remain for its part."""
        ids = [device.uuid for device in chain(*groups)]
        for name in ids:
            if why := offer.refusal(name, self._listing.on_node()):
                raise Refused(Reason.VENDOR, why, "docs/in-front.md says which devices are handed out")
        _, left = await self._there(ids, ALLOCATE_WITHIN)
        return left

    async def complete(
        self, prepared: float, request: wire.AllocateRequest, groups: Sequence[Sequence[Device]]
    ) -> wire.AllocateResponse:
        """The vendor's answer, unchanged. After an error there is no grant."""
        ids = [device.uuid for device in chain(*groups)]
        try:
            plugin, left = await self._there(ids, prepared)  # it may have registered again meanwhile
            self._expect_healthy(ids)
            answer = await plugin.allocate(request, max(left, ANSWERS_WITHIN))
            on_node = self._listing.on_node()
            unknown = await asyncio.to_thread(
                vendor_answer.check, answer, groups, on_node, self._cdi_dirs, self._variables
            )
        except BaseException:  # a call that is cancelled keeps no grant either
            await aio.finish(self._give_back(ids))
            raise
        self._report(unknown)
        return answer

    async def start(self, request: wire.PreStartContainerRequest, within: float | None) -> None:
        """The vendor's part of a start, if its plugin asks for it."""
        if not self._directory.wants_start(self._resource):
            return
        plugin, _ = await self._there(request.devices_ids, ALLOCATE_WITHIN)
        await plugin.start(request, START_WITHIN if within is None else min(within, START_WITHIN))

    async def prefer(self, shown: Sequence[Device], request: wire.ContainerPreferredAllocationRequest) -> list[str]:
        """The vendor's choice among clean devices, if it comes in time; otherwise our own choice."""
        available, must = set(request.available_deviceIDs), set(request.must_include_deviceIDs)
        clean = {device.uuid for device in shown if device.clean and device.healthy and device.uuid in available}
        plugin = await self._directory.plugin(self._resource, 0)
        if (
            plugin is not None
            and plugin.options.get_preferred_allocation_available
            and len(clean | must) >= request.allocation_size
        ):
            asked = wire.ContainerPreferredAllocationRequest()
            asked.CopyFrom(request)
            del asked.available_deviceIDs[:]
            asked.available_deviceIDs.extend(name for name in request.available_deviceIDs if name in clean | must)
            chosen = await self._asked(plugin, asked)
            if len(chosen) == request.allocation_size == len(set(chosen)) and must <= set(chosen) <= clean | must:
                return chosen
        return preferred.prefer(shown, list(request.available_deviceIDs), list(must), request.allocation_size)

    async def _asked(self, plugin: VendorPlugin, asked: wire.ContainerPreferredAllocationRequest) -> list[str]:
        try:
            answer = await plugin.prefer(asked, PREFER_WITHIN)
        except AutoclaveError:
            return []  # logged; the kubelet gets our own choice
        return [name for response in answer.container_responses for name in response.deviceIDs]

    async def _there(self, ids: Collection[str], within: float) -> tuple[VendorPlugin, float]:
        """The vendor's plugin, and the remaining time for its part.

        Raises NotReady if it is away. Before the error, the list shows the devices as unhealthy, so the kubelet stops
        asking.
        """
        began = _now()
        plugin = await self._directory.plugin(self._resource, within - ANSWERS_WITHIN)
        if plugin is None:
            self._directory.distrust(self._resource)
            await self._listing.until_unhealthy(self._resource, ids, SHOWN_WITHIN)
            raise NotReady(Reason.VENDOR, f"the vendor's plugin of {self._resource} is away", VENDOR_LOG)
        return plugin, within - (_now() - began)

    def _expect_healthy(self, ids: Collection[str]) -> None:
        for name in ids:
            if not self._directory.healthy(self._resource, name):
                raise NotReady(Reason.VENDOR, f"the vendor's plugin calls {name} unhealthy", VENDOR_LOG)

    def _report(self, unknown: frozenset[str]) -> None:
        """Count the answer, and log each new name once."""
        if unknown:
            self._count(self._resource)
        for name in sorted(unknown - self._unknown):
            logger.warning(
                "the vendor's plugin sets an unknown variable: it passes", resource=self._resource, variable=name
            )
        self._unknown |= unknown

    async def _give_back(self, ids: Sequence[str]) -> None:
        try:
            await self._scrubber.release(ids)
        except AutoclaveError as error:  # the service finds out by itself that no pod has them
            logger.warning("the devices are not given back", devices=ids, error=str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
