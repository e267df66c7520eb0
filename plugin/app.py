"""Builds the plugin and runs it. All long-running tasks of the process are named here.

The door for figures and probes is open before anything else begins, so that it can say what is waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc.aio
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from plugin import config, response
from plugin.cluster import starting, threads
from plugin.cluster.reporter import ClusterReporter
from plugin.config import Config, Way
from plugin.device_plugin import DevicePlugin
from plugin.gate import Gate
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.metrics.collector import PluginCollector
from plugin.metrics.counters import PluginCounters
from plugin.registration import kubelet, registry, sockets
from scrubber.api import client
from scrubber.ground.errors import FatalError
from scrubber.ground.http_server import HttpServer

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
    except BaseExceptionGroup as group:  # no except*: what is raised in one comes out as a group, by Python's version
        fatal = group.subgroup(FatalError)
        if fatal is None:
            raise
        raise _first(fatal) from None


async def _serve(chosen: Config, reporter: ClusterReporter | None) -> int:
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
    except FatalError:
        raise
    except Exception as error:  # whatever ends the program is told before it does
        rest = error.split(FatalError)[1] if isinstance(error, ExceptionGroup) else error
        if rest is not None:
            logger.exception("a fault inside the device plugin: it ends", exc_info=rest)
        raise


async def _work(chosen: Config, reporter: ClusterReporter | None) -> None:
    """Follow the scrub service, and register each resource as soon as it has a device."""
    async with client.ScrubberClient(chosen.scrubber_socket) as scrubber:
        listing = Listing(scrubber, chosen.resource_prefix, chosen.mig_strategy)
        async with _shown(chosen, listing) as counters, asyncio.TaskGroup() as tasks:
            tasks.create_task(listing.follow(), name="listing")
            if reporter is not None:
                tasks.create_task(reporter.run(listing), name="reports to the cluster")
            await _register(chosen, listing, Gate(scrubber, listing), counters, tasks)


@asynccontextmanager
async def _shown(chosen: Config, listing: Listing) -> AsyncIterator[PluginCounters]:
    """Whatever is told to this tally is shown where the flag says, if it says anything."""
    figures = CollectorRegistry()
    counters = PluginCounters(figures)
    if not chosen.metrics_address:
        yield counters
        return
    now = PluginCollector(listing, counters, chosen.version)
    figures.register(now)
    ProcessCollector(registry=figures)
    async with HttpServer(figures, now.obstacles).serve(chosen.metrics_address):
        yield counters


async def _register(
    chosen: Config, listing: Listing, gate: Gate, counters: PluginCounters, tasks: asyncio.TaskGroup
) -> None:
    """Each resource that there is, and each that comes to be."""
    known: frozenset[str] = frozenset()
    shared_nodes = partial(_shared_nodes, chosen.driver_root)
    while True:
        for resource in sorted(await listing.more(known)):
            counters.expect(resource)
            plugin = DevicePlugin(resource, listing, gate, counters, chosen.style, shared_nodes)
            staying = _registration(chosen, resource, plugin, counters).run()
            tasks.create_task(staying, name=f"registration of {resource}")
        known = listing.resources()


def _registration(chosen: Config, resource: str, plugin: DevicePlugin, counters: PluginCounters) -> _Registered:
    def add(server: grpc.aio.Server) -> None:
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(plugin, server)

    if chosen.registration is Way.REGISTRY:
        return registry.RegistryRegistration(resource, add, chosen.kubelet_dir, chosen.registry_dir, counters.heard)
    return kubelet.KubeletRegistration(resource, add, chosen.kubelet_dir, counters.heard)


def _shared_nodes(root: Path) -> list[str]:
    """Looked up for each answer: the driver may have been loaded after we were."""
    return [node for node in response.SHARED_NODES if Path(root, node.lstrip("/")).exists()]


def _first(group: BaseExceptionGroup[FatalError]) -> FatalError:
    """One line is told; the next one will be when this is mended."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
