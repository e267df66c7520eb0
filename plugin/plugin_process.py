"""Builds the plugin and runs its tasks: listing, registrations, vendors, cluster reports, metrics.

The HTTP server for metrics and probes starts first, so that ``/readyz`` can say what the plugin waits for. The program
waits only for the kubelet's directory before that: without the directory there is no kubelet, and no probe.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from ground import log
from ground.errors import Unreachable
from plugin import config, stopping
from plugin.cluster.reporter import ClusterReporter, make_health_events, make_reporter
from plugin.config import Config
from plugin.device_plugin import DevicePlugin, OwnResponses, Responses
from plugin.devices import own_devices
from plugin.hooks import Hooks
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.metrics.collector import PluginCollector, PluginCounters
from plugin.registration import kubelet, other_plugins, sockets
from plugin.registration.succession import Turn
from plugin.stopping import DRAINED_WITHIN, InFlight
from plugin.vendor import responses as vendor
from plugin.vendor.directory import VendorDirectory
from plugin.vendor.offer import VendorOffer
from scrub_api import client

if TYPE_CHECKING:
    from plugin.cluster.nvsentinel import HealthEvents

logger = log.get("plugin process")


def run(chosen: Config) -> int:
    """Serve until a signal stops the program; returns 0."""
    config.check(chosen)
    os.umask(0o077)
    reporters = make_reporter(chosen.cluster), make_health_events(chosen.cluster)
    return stopping.run(partial(_begin, chosen, [each for each in reporters if each is not None]))


async def _begin(chosen: Config, reporters: Sequence[ClusterReporter | HealthEvents], in_flight: InFlight) -> None:
    """Work in the kubelet's directory."""
    await sockets.until_made(chosen.kubelet_dir, "--kubelet-dir")
    config.make_vendor_dir(chosen)
    with nullcontext() if chosen.standby else sockets.sole_instance(chosen.kubelet_dir):
        await _work(chosen, reporters, in_flight)


async def _work(chosen: Config, reporters: Sequence[ClusterReporter | HealthEvents], in_flight: InFlight) -> None:
    """Follow the scrub service, and register each resource as soon as it has a device."""
    async with client.ScrubberClient(chosen.scrubber_socket) as scrubber:
        listing, vendors = _listing(chosen, scrubber)
        try:
            reported = scrubber.last_list()
        except Unreachable as error:
            logger.warning("no last list of devices", error=str(error))
        else:
            if reported is not None:
                listing.begin_with(reported)
        metrics = CollectorRegistry()
        counters = PluginCounters(metrics)
        collector = PluginCollector(listing, counters, chosen.version, vendors)
        async with collector.served(metrics, chosen.metrics_address), asyncio.TaskGroup() as tasks:
            tasks.create_task(listing.follow(), name="listing")
            async with _turn(chosen, counters, tasks) as turn, asyncio.TaskGroup() as registrations:
                registrations.create_task(_release_last(turn, listing), name="release of the last plugin")
                if vendors is not None:
                    registrations.create_task(vendors.run(took_over=turn.took_over), name="vendor's plugins")
                    registrations.create_task(vendors.end_proofs(scrubber), name="doubts")
                else:
                    watch = other_plugins.watch_rivals(
                        chosen.kubelet_dir, chosen.resource_prefix, counters.another_plugin
                    )
                    registrations.create_task(watch, name="search for another plugin")
                try:
                    async with asyncio.TaskGroup() as reports:
                        for reporter in reporters:
                            reports.create_task(reporter.run(listing), name="reports to the cluster")
                        await _register(chosen, listing, scrubber, in_flight, counters, vendors, registrations)
                finally:
                    # The reports have ended, and the kubelet is still served: its calls are answered last. In its own
                    # task: in a cancelled task, timeouts do not work in early releases of Python 3.11.
                    await asyncio.create_task(_leave(chosen, turn, in_flight))


def _listing(chosen: Config, scrubber: client.ScrubberClient) -> tuple[Listing, VendorDirectory | None]:
    """The lists of devices. With a directory for a vendor's plugin, that plugin decides which devices are offered."""
    if chosen.vendor_dir is None:
        return Listing(scrubber, own_devices(chosen.resource_prefix, chosen.mig_strategy)), None
    offer = VendorOffer()
    listing = Listing(scrubber, offer)
    return listing, VendorDirectory(chosen.vendor_dir, chosen.kubelet_dir, chosen.resource_prefix, offer, listing)


@asynccontextmanager
async def _turn(chosen: Config, counters: PluginCounters, tasks: asyncio.TaskGroup) -> AsyncIterator[Turn]:
    """Be the plugin of this node within the context. With ``--standby``, first wait until another one ends.

    The next plugin waits here with all its preparations done, so that it registers at once. ``tasks`` watch for others
    that hang.
    """

    def waits() -> None:
        counters.standby = True
        logger.info("waiting for another plugin of Autoclave on this node to stop", directory=str(chosen.kubelet_dir))

    turn = Turn(chosen.kubelet_dir)
    try:
        if chosen.standby:  # otherwise ``_begin`` holds the lock
            tasks.create_task(turn.watch(), name="watch for plugins that hang")
            await turn.begin(waits)
        counters.standby = False
        yield turn
    finally:
        turn.end()


async def _release_last(turn: Turn, listing: Listing) -> None:
    """Let the last plugin stop as soon as the kubelet has a list of each resource from this one."""
    await listing.until(lambda: bool(listing.resources()) and all(map(listing.is_followed, listing.resources())))
    turn.registered()
    logger.info("the kubelet follows this plugin")


async def _leave(chosen: Config, turn: Turn, in_flight: InFlight) -> None:
    if chosen.standby and chosen.vendor_dir is None:  # the vendor's plugin sends its list to one only
        await turn.hand_over()
    await stopping.drain(in_flight, DRAINED_WITHIN if chosen.vendor_dir is None else vendor.DRAINED_WITHIN)


async def _register(
    chosen: Config,
    listing: Listing,
    scrubber: client.ScrubberClient,
    in_flight: InFlight,
    counters: PluginCounters,
    vendors: VendorDirectory | None,
    tasks: asyncio.TaskGroup,
) -> None:
    """Register each resource, now and when the service adds one."""
    registered, hooks = frozenset[str](), Hooks(scrubber, listing)
    while True:
        for resource in sorted(await listing.new_resources(registered)):
            counters.expect(resource)
            responses: Responses[Any] = OwnResponses(chosen.style)
            if vendors is not None:
                more = (chosen.cdi_dirs, chosen.vendor_variables, counters.unknown_variable)
                responses = vendor.VendorResponses(resource, vendors, listing, scrubber, *more)
            plugin = DevicePlugin(resource, listing, hooks, in_flight, counters, responses)
            add = partial(deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server, plugin)
            registration = kubelet.KubeletRegistration(resource, add, chosen.kubelet_dir, counters.record)
            tasks.create_task(registration.run(), name=f"registration of {resource}")
        registered = listing.resources()
