"""Builds the plugin and runs it. All long-running tasks of the process are named here."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc.aio
import structlog

from plugin import config, response
from plugin.cluster import starting, threads
from plugin.cluster.reporter import Reporter
from plugin.config import Config, Way
from plugin.device_plugin import DevicePlugin
from plugin.gate import Gate
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.registration import kubelet, registry, sockets
from scrubber.api import client
from scrubber.errors import FatalError

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="app")


class _Registered(Protocol):
    async def run(self) -> None:
        """Serve and stay registered until cancelled."""


def run(chosen: Config) -> int:
    """Serve until told to stop; 0 is a clean stop."""
    config.check(chosen)
    os.umask(0o077)
    try:
        with sockets.sole_instance(chosen.kubelet_dir):
            return asyncio.run(_serve(chosen, starting.reporter(chosen.cluster)))
    except* FatalError as group:
        raise _first(group) from None


async def _serve(chosen: Config, reporter: Reporter | None) -> int:
    """Until a signal comes, or a task fails: its error ends the program."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # There is nothing to load again, and ending would take the node's devices away for a moment.
    loop.add_signal_handler(signal.SIGHUP, partial(logger.info, "nothing to load again: SIGHUP is ignored"))
    if reporter is not None:
        loop.set_default_executor(threads.Forgetful())
    work = asyncio.create_task(_work(chosen, reporter), name="plugin")
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not work.done():
        logger.info("stopping")
        work.cancel()
        await asyncio.wait({work})
    if not work.cancelled():
        await _tell(work)
    logger.info("stopped")
    return 0


async def _tell(work: asyncio.Task[None]) -> None:
    """End with the error of a task; one that nobody can mend from outside is told in full, as nothing else holds it."""
    try:
        await work
    except* FatalError:
        raise
    except* Exception:
        logger.exception("a fault inside the device plugin: it ends")
        raise


async def _work(chosen: Config, reporter: Reporter | None) -> None:
    """Follow the scrub service, and register each resource as soon as it has a device."""
    async with client.Scrubber(chosen.scrubber_socket) as scrubber, asyncio.TaskGroup() as tasks:
        listing = Listing(scrubber, chosen.resource_prefix, chosen.mig_strategy)
        gate = Gate(scrubber, listing)
        tasks.create_task(listing.follow(), name="listing")
        if reporter is not None:
            tasks.create_task(reporter.run(listing), name="reports to the cluster")
        await listing.first()
        known: frozenset[str] = frozenset()
        while True:
            for resource in sorted(await listing.more(known)):
                plugin = DevicePlugin(resource, listing, gate, chosen.style, partial(_shared_nodes, chosen.driver_root))
                tasks.create_task(_registration(chosen, resource, plugin).run(), name=f"registration of {resource}")
            known = listing.resources()


def _registration(chosen: Config, resource: str, plugin: DevicePlugin) -> _Registered:
    def add(server: grpc.aio.Server) -> None:
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(plugin, server)

    if chosen.registration is Way.REGISTRY:
        return registry.RegistryRegistration(resource, add, chosen.kubelet_dir, chosen.registry_dir)
    return kubelet.Registration(resource, add, chosen.kubelet_dir)


def _shared_nodes(root: Path) -> list[str]:
    """Looked up for each answer: the driver may have been loaded after we were."""
    return [node for node in response.SHARED_NODES if Path(root, node.lstrip("/")).exists()]


def _first(group: BaseExceptionGroup[FatalError]) -> FatalError:
    """One line is told; the next one will be when this is mended."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
