"""Builds the DRA driver and runs its tasks: registrar, publisher, vendor, metrics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from ground import log, paths
from ground.errors import FatalError
from plugin import stopping
from plugin.cluster.credentials import Unusable
from plugin.cluster.reporter import connect, make_health_events
from plugin.devices import MigStrategy, own_devices
from plugin.dra import config, dra_driver, registration
from plugin.dra.claim_devices import ClaimDevices
from plugin.dra.claim_pods import ClaimPods
from plugin.dra.config import DraConfig
from plugin.dra.dra_driver import DraDriver, OwnDevices
from plugin.dra.metrics import DraCollector, DraCounters
from plugin.dra.publisher import SlicePublisher
from plugin.dra.vendor import vendor_devices as vendor
from plugin.dra.vendor.registry import VendorRegistry
from plugin.dra.vendor.taint_rules import TaintRules
from plugin.listing import Listing
from plugin.registration import endpoint, sockets
from plugin.registration.registration_state import NotRegistered
from plugin.stopping import InFlight
from scrub_api import client

logger = log.get("dra")

CALL_WITHIN = 5.0  # seconds for a whole call of the API server


def run(chosen: DraConfig) -> int:
    """Serve until a signal stops the program; returns 0."""
    credentials = config.check(chosen)
    os.umask(0o077)
    return stopping.run(partial(_begin, chosen, credentials))


async def _begin(chosen: DraConfig, credentials: Path, in_flight: InFlight) -> None:
    """Work in the kubelet's directories."""
    await sockets.until_made(chosen.plugins_dir, "--plugins-dir")
    await sockets.until_made(chosen.registry_dir, "--registry-dir")
    sockets_dir = chosen.service_socket.parent if chosen.vendor_registry_dir is None else chosen.in_front_dir
    sockets_dir.mkdir(mode=0o750, exist_ok=True)
    await _work(chosen, credentials, in_flight)


async def _work(chosen: DraConfig, credentials: Path, in_flight: InFlight) -> None:
    node = chosen.cluster.node
    try:
        server = connect(credentials, node, CALL_WITHIN)
    except Unusable as error:
        raise FatalError(f"cannot read claims: {error}") from error
    metrics = CollectorRegistry()
    counters = DraCounters(metrics)
    counters.expect(chosen.driver)
    async with AsyncExitStack() as stack:
        scrubber = await stack.enter_async_context(client.ScrubberClient(paths.scrubber_socket(chosen.run_dir)))
        listing = Listing(scrubber, own_devices(chosen.cdi_kind.partition("/")[0], MigStrategy.MIXED))
        collector = DraCollector(listing, counters, chosen.driver, chosen.version)
        await stack.enter_async_context(collector.served(metrics, chosen.metrics_address))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(listing.follow(), name="listing")
        health_events = make_health_events(chosen.cluster)
        if health_events is not None:
            tasks.create_task(health_events.run(listing), name="reports to NVSentinel")
        pods = ClaimPods(server, scrubber, listing)
        tasks.create_task(pods.run(), name="pods of claims")
        parts = chosen, listing, ClaimDevices(scrubber, listing), pods, in_flight
        answer = partial(DraDriver, *parts, counters=counters)
        if chosen.vendor_registry_dir is None:
            await listing.until_known()
            registered = asyncio.Event()
            publisher = SlicePublisher(server, listing, chosen.driver, node, counters)
            tasks.create_task(_publish_once(registered, publisher), name="slice")
            add = partial(_add, dra_driver.handlers(answer(devices=OwnDevices(chosen))))
            places = chosen.service_socket, chosen.registry_socket
            work = registration.stay_registered(chosen.driver, add, *places, partial(_record, registered, counters))
        else:
            counters.slice_obstacle = ""  # the slices are the vendor's
            if chosen.taint_rules:
                tasks.create_task(TaintRules(server, listing, chosen.driver, node).run(), name="taints of devices")

            def make_server(channel: grpc.aio.Channel, versions: Sequence[str]) -> endpoint.Add:
                service = vendor.VendorService(channel, chosen.driver, versions)
                devices = vendor.VendorDevices(service, server, listing, chosen.driver, chosen.cdi_dirs)
                health = vendor.health_handler(channel, versions)
                return partial(_add, dra_driver.handlers(answer(devices=devices), health))

            work = VendorRegistry(chosen, chosen.vendor_registry_dir, make_server, counters).run()
        async with asyncio.TaskGroup() as registrations:
            registrations.create_task(work, name="registration")
            try:
                await asyncio.Event().wait()
            finally:  # the kubelet is still served: its calls are answered last
                await asyncio.create_task(stopping.drain(in_flight, dra_driver.CALL_WITHIN))


def _add(handlers: tuple[grpc.GenericRpcHandler, ...], server: grpc.aio.Server) -> None:
    server.add_generic_rpc_handlers(handlers)


def _record(registered: asyncio.Event, counters: DraCounters, driver_name: str, failure: NotRegistered | None) -> None:
    counters.record(driver_name, failure)
    if failure is None:
        registered.set()


async def _publish_once(registered: asyncio.Event, publisher: SlicePublisher) -> None:
    """Offer no device before the kubelet knows the driver: it would try the first pods again after a minute."""
    await registered.wait()
    await publisher.run()
