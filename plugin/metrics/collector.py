"""The counters of a program, the gauges and obstacles of its present state, and the server that shows them.

The gauges are read at each scrape. ``/readyz`` and a metric show the obstacles: registrations, vendors, rivals and
standby. Every label is a fixed word, a resource that the scrub service offers, or the name of the DRA driver: no
request can add a series.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ground.errors import Reason
from ground.http_server import HttpServer
from ground.logged_calls import CallOutcome
from ground.metric_table import Instruments, Sample, families
from plugin.listing import Listing
from plugin.metrics import plugin_metrics
from plugin.registration.registration_state import Cause, NotRegistered

REGISTERED = "registered"
NOT_YET = "the plugin has not registered yet"
LONGEST_RECEIPT = 100  # characters: a longer exemplar would raise an error within Allocate
LONGEST = 300  # characters of a reason, which may quote an error of another program


class Hook(Enum):
    """The calls of the kubelet, named as in its API."""

    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"
    PREFERRED = "GetPreferredAllocation"


REFUSING = (Hook.ALLOCATE, Hook.PRE_START)  # the calls that may be refused


class RegistrationCounters:
    """Counts registrations, of the plugin or of the DRA driver."""

    def __init__(self, instruments: Instruments, not_yet: str) -> None:
        """``not_yet``: why a resource without any event is not registered."""
        self._instruments = instruments
        self._not_yet = not_yet
        self._obstacles: dict[str, str] = {}

    def expect(self, resource: str) -> None:
        """Export the counters as 0 for a resource that is about to be registered."""
        for outcome in (REGISTERED, *(cause.value for cause in Cause)):
            self._instruments.export_zero(plugin_metrics.REGISTRATIONS, resource, outcome)

    def record(self, resource: str, failure: NotRegistered | None) -> None:
        """Count a registration, or its failure."""
        self._obstacles[resource] = failure.detail if failure is not None else ""
        outcome = failure.cause.value if failure is not None else REGISTERED
        self._instruments.count(plugin_metrics.REGISTRATIONS, resource, outcome)

    def obstacle(self, resource: str) -> str:
        """Why a resource is not registered; empty if it is."""
        return self._obstacles.get(resource, self._not_yet)


class PluginCounters(RegistrationCounters):
    """Counters and histograms of the plugin."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Export every kind of refusal as 0, so that Prometheus sees the first increase."""
        super().__init__(Instruments(plugin_metrics.TABLE, registry), NOT_YET)
        self.standby = False  # another plugin of this node is registered, and this one waits for its end
        self.rival = ""  # the socket of another plugin in the kubelet's directory
        for hook in REFUSING:
            for reason in Reason:
                self._instruments.export_zero(plugin_metrics.HOOK_REFUSALS, hook.value, reason.value)

    def another_plugin(self, socket: str) -> None:
        """Record the socket at which another plugin serves; empty if none does."""
        self.rival = socket

    def obstacle(self, resource: str) -> str:
        """Why a resource is not registered; empty if it is registered, or if it is the turn of another plugin."""
        return "" if self.standby else super().obstacle(resource)

    def answer(self, hook: Hook, outcome: CallOutcome, seconds: float, *, reason: str = "", receipt: str = "") -> None:
        """Count a call of the kubelet that was answered or cancelled. ``reason``: that of a refusal or a fault."""
        shown = receipt if len(receipt) <= LONGEST_RECEIPT else ""
        self._instruments.observe(plugin_metrics.HOOK_TIME, hook.value, outcome.value, value=seconds, receipt=shown)
        if reason and hook in REFUSING:
            self._instruments.count(plugin_metrics.HOOK_REFUSALS, hook.value, reason)

    def unknown_variable(self, resource: str) -> None:
        """Count a variable that is unknown here, and that was let through in an answer of the vendor's plugin."""
        self._instruments.count(plugin_metrics.UNKNOWN_VARIABLES, resource)

    def list_sent(self, resource: str) -> None:
        """Count a list that was sent to the kubelet."""
        self._instruments.count(plugin_metrics.LISTS, resource)

    def expect(self, resource: str) -> None:
        """The plugin is about to register this resource."""
        super().expect(resource)
        self._instruments.export_zero(plugin_metrics.LISTS, resource)


class StateCollector(Collector):
    """Makes the gauges of a program."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    def describe(self) -> Iterable[Metric]:
        """Describe no metric: each scrape makes them."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics at this moment."""
        return families(self._samples())

    @asynccontextmanager
    async def served(self, registry: CollectorRegistry, address: str) -> AsyncIterator[None]:
        """Serve readiness and the metrics of registry, collector and process, if there is an address."""
        if not address:
            yield
            return
        registry.register(self)
        ProcessCollector(registry=registry)
        async with HttpServer(registry, self._readiness.obstacles).serve(address):
            yield

    @abstractmethod
    def _samples(self) -> Iterator[Sample]: ...


class PluginCollector(StateCollector):
    """The lists of devices, and the connections to the scrub service and the kubelet."""

    def __init__(
        self, listing: Listing, counters: PluginCounters, version: str, vendors: Vendors | None = None
    ) -> None:
        """``vendors``: the plugins in front of which this one stands."""
        super().__init__(PluginReadiness(listing, counters, vendors))
        self._listing = listing
        self._counters = counters
        self._version = version
        self._vendors = vendors

    def _samples(self) -> Iterator[Sample]:
        yield plugin_metrics.BUILD, (self._version,), 1.0
        yield plugin_metrics.SCRUBBER, (), float(not self._listing.silence_reason())
        if self._counters.standby:  # the other plugin says what the kubelet knows
            return
        yield plugin_metrics.READY, (), float(not self._readiness.obstacles())
        for resource in sorted(self._listing.resources()):
            shown = self._listing.shown(resource)
            healthy = sum(device.healthy for device in shown)
            yield plugin_metrics.CONNECTED, (resource,), float(self._listing.is_followed(resource))
            yield plugin_metrics.LISTED, (resource, "healthy"), float(healthy)
            yield plugin_metrics.LISTED, (resource, "unhealthy"), float(len(shown) - healthy)
            if self._vendors is not None:
                yield plugin_metrics.VENDOR, (resource,), float(self._vendors.connected(resource))


class Readiness:
    """What prevents a program that serves the kubelet from its work."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def obstacles(self) -> tuple[str, ...]:
        """Why the program is not ready, one line each."""
        return tuple(" ".join(why.split())[:LONGEST] for why in self._obstacles())

    @abstractmethod
    def _obstacles(self) -> Iterator[str]: ...

    def _without_devices(self, *, offers: bool = True) -> Iterator[str]:
        """Why the scrub service has no device to offer. ``offers``: whether there should be one by now."""
        if reason := self._listing.silence_reason():
            yield f"the scrub service does not answer: {reason}"
        elif offers and not self._listing.resources():
            yield "there is no device to offer"


class Registrations(Protocol):
    """What the plugin knows about itself and about others in the kubelet's directory."""

    standby: bool  # another plugin of this node is registered, and this one waits for its end
    rival: str  # the socket of another plugin in the kubelet's directory

    def obstacle(self, resource: str) -> str:
        """Why a resource is not registered; empty if it is."""


class Vendors(Protocol):
    """The plugins of vendors that are there."""

    def connected(self, resource: str) -> bool:
        """Whether the vendor's plugin of this resource is there."""

    def obstacles(self) -> Iterator[str]:
        """Why pods cannot get a vendor's devices."""


class PluginReadiness(Readiness):
    """The readiness of the device plugin."""

    def __init__(self, listing: Listing, registrations: Registrations, vendors: Vendors | None = None) -> None:
        """``vendors``: the plugins in front of which this one stands."""
        super().__init__(listing)
        self._registrations = registrations
        self._vendors = vendors

    def _obstacles(self) -> Iterator[str]:
        # On standby, the vendor's plugin has registered with the other plugin, which knows its devices.
        waits = self._vendors is not None and self._registrations.standby
        yield from self._without_devices(offers=not waits)
        if self._vendors is not None and not waits:
            yield from self._vendors.obstacles()
        if rival := self._registrations.rival:
            yield f"another plugin serves at {rival}: remove it; what it hands out is not proven"
        for resource in sorted(self._listing.resources()):
            if why := self._registrations.obstacle(resource):
                yield f"{resource} is not registered: {why}"
