"""Gauges of a program's present state, read at each scrape, and the server that shows them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from plugin.listing import Listing
from plugin.metrics import table
from plugin.metrics.counters import PluginCounters
from scrubber.ground.http_server import HttpServer
from scrubber.ground.metric_table import Sample, families

LONGEST = 300  # characters of a reason, which may quote an error of another program


class StateCollector(Collector):
    """Makes the gauges of a program, and says why the program is not ready."""

    def describe(self) -> Iterable[Metric]:
        """No metric: each scrape makes them."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics at this moment."""
        return families(self._samples())

    def obstacles(self) -> tuple[str, ...]:
        """Why the program is not ready, one line each."""
        return tuple(" ".join(why.split())[:LONGEST] for why in self._obstacles())

    @asynccontextmanager
    async def served(self, registry: CollectorRegistry, address: str) -> AsyncIterator[None]:
        """Serve the metrics of the registry, of this collector and of the process, if there is an address."""
        if not address:
            yield
            return
        registry.register(self)
        ProcessCollector(registry=registry)
        async with HttpServer(registry, self.obstacles).serve(address):
            yield

    @abstractmethod
    def _samples(self) -> Iterator[Sample]: ...

    @abstractmethod
    def _obstacles(self) -> Iterator[str]: ...


def service_obstacles(listing: Listing) -> Iterator[str]:
    """Why the scrub service gives no device to offer."""
    if reason := listing.silence_reason():
        yield f"the scrub service does not answer: {reason}"
    elif not listing.resources():
        yield "there is no device to offer"


class PluginCollector(StateCollector):
    """The lists of devices, and the connections to the scrub service and the kubelet."""

    def __init__(self, listing: Listing, counters: PluginCounters, version: str) -> None:
        self._listing = listing
        self._counters = counters
        self._version = version

    def _obstacles(self) -> Iterator[str]:
        yield from service_obstacles(self._listing)
        for resource in sorted(self._listing.resources()):
            if why := self._counters.obstacle(resource):
                yield f"{resource} is not registered: {why}"

    def _samples(self) -> Iterator[Sample]:
        yield table.BUILD, (self._version,), 1.0
        yield table.READY, (), float(not self.obstacles())
        yield table.SCRUBBER, (), float(not self._listing.silence_reason())
        for resource in sorted(self._listing.resources()):
            shown = self._listing.shown(resource)
            healthy = sum(device.healthy for device in shown)
            yield table.CONNECTED, (resource,), float(self._listing.is_followed(resource))
            yield table.LISTED, (resource, "healthy"), float(healthy)
            yield table.LISTED, (resource, "unhealthy"), float(len(shown) - healthy)
