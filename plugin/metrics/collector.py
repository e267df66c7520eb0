"""Gauges of the plugin's present state, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from plugin.listing import Listing
from plugin.metrics import table
from plugin.metrics.counters import PluginCounters
from scrubber.ground.metric_table import Sample, families

LONGEST = 300  # characters of a reason, which may quote an error of another program


class PluginCollector(Collector):
    """The lists of devices, and the connections to the scrub service and the kubelet."""

    def __init__(self, listing: Listing, counters: PluginCounters, version: str) -> None:
        self._listing = listing
        self._counters = counters
        self._version = version

    def describe(self) -> Iterable[Metric]:
        """No metric: each scrape makes them."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics at this moment."""
        return families([*self._plugin_samples(), *self._list_samples()])

    def obstacles(self) -> tuple[str, ...]:
        """Why the plugin is not ready, one line each."""
        return tuple(" ".join(why.split())[:LONGEST] for why in self._obstacles())

    def _obstacles(self) -> Iterator[str]:
        if reason := self._listing.silence_reason():
            yield f"the scrub service does not answer: {reason}"
        elif not self._listing.resources():
            yield "there is no device to offer"
        for resource in sorted(self._listing.resources()):
            if why := self._counters.obstacle(resource):
                yield f"{resource} is not registered: {why}"

    def _plugin_samples(self) -> Iterator[Sample]:
        yield table.BUILD, (self._version,), 1.0
        yield table.READY, (), float(not self.obstacles())
        yield table.SCRUBBER, (), float(not self._listing.silence_reason())

    def _list_samples(self) -> Iterator[Sample]:
        for resource in sorted(self._listing.resources()):
            shown = self._listing.shown(resource)
            healthy = sum(device.healthy for device in shown)
            yield table.CONNECTED, (resource,), float(self._listing.is_followed(resource))
            yield table.LISTED, (resource, "healthy"), float(healthy)
            yield table.LISTED, (resource, "unhealthy"), float(len(shown) - healthy)
