"""What is true of the plugin just now, as figures: looked up when it is asked for, so that nothing stays that left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from plugin.listing import Listing
from plugin.metrics import table
from plugin.metrics.counters import PluginCounters
from scrubber.ground.metric_table import Sample, families

LONGEST = 300  # characters of a reason: what others said stands in it


class PluginCollector(Collector):
    """The lists, and where they come from and go to."""

    def __init__(self, listing: Listing, counters: PluginCounters, version: str) -> None:
        """Ask these two whenever somebody asks."""
        self._listing = listing
        self._counters = counters
        self._version = version

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what there is to say shows when it is asked for."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All of it, of one moment."""
        return families([*self._of_the_plugin(), *self._of_the_lists()])

    def obstacles(self) -> tuple[str, ...]:
        """What is in the way of handing anything out, one line each."""
        return tuple(" ".join(why.split())[:LONGEST] for why in self._obstacles())

    def _obstacles(self) -> Iterator[str]:
        if silent := self._listing.silent():
            yield f"the scrub service is not heard: {silent}"
        elif not self._listing.resources():
            yield "there is no device to offer"
        for resource in sorted(self._listing.resources()):
            if why := self._counters.obstacle(resource):
                yield f"{resource} is not registered: {why}"

    def _of_the_plugin(self) -> Iterator[Sample]:
        yield table.BUILD, (self._version,), 1.0
        yield table.READY, (), float(not self.obstacles())
        yield table.SCRUBBER, (), float(not self._listing.silent())

    def _of_the_lists(self) -> Iterator[Sample]:
        for resource in sorted(self._listing.resources()):
            shown = self._listing.shown(resource)
            healthy = sum(device.healthy for device in shown)
            yield table.CONNECTED, (resource,), float(self._listing.followed(resource))
            yield table.LISTED, (resource, "healthy"), float(healthy)
            yield table.LISTED, (resource, "unhealthy"), float(len(shown) - healthy)
