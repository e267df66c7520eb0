"""The counters and collector of the DRA driver, and the obstacles to its readiness.

Every label is a fixed word or the name of the driver: no claim can add a series.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from prometheus_client import CollectorRegistry

from ground.errors import Reason
from ground.logged_calls import CallOutcome
from ground.metric_table import Instruments, Sample
from plugin.cluster.retry_loop import Failure, FailureKind
from plugin.listing import Listing
from plugin.metrics import plugin_metrics
from plugin.metrics.collector import Readiness, RegistrationCounters, StateCollector

API_SERVER = "api-server"  # the reason of a refusal because a claim could not be read
VENDOR = "vendor"  # the driver behind ours has refused
WRITTEN = "written"
NOT_FOUND_YET = "the kubelet has not called it yet"
NOT_WRITTEN_YET = "it has not been written yet"


class Call(Enum):
    """The calls of the kubelet for claims."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class DraCounters(RegistrationCounters):
    """Counters and histograms of the DRA driver, and the claims that wait."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Export every kind of refusal as 0, so that Prometheus sees the first increase."""
        super().__init__(Instruments(plugin_metrics.DRA_TABLE, registry), NOT_FOUND_YET)
        self.waiting = dict.fromkeys(Call, 0)
        self.bypass = ""  # the socket by which the kubelet calls another vendor's driver past this program
        self.slice_obstacle = NOT_WRITTEN_YET  # empty: the last attempt to write the slice succeeded
        for call in Call:
            for reason in (API_SERVER, VENDOR, *(reason.value for reason in Reason)):
                self._instruments.export_zero(plugin_metrics.CLAIM_REFUSALS, call.value, reason)
        for outcome in (WRITTEN, *(kind.value for kind in FailureKind)):
            self._instruments.export_zero(plugin_metrics.SLICE_WRITES, outcome)

    @contextmanager
    def waits(self, call: Call) -> Iterator[None]:
        """Count a claim that waits for an answer while this context is open."""
        self.waiting[call] += 1
        try:
            yield
        finally:
            self.waiting[call] -= 1

    def answer(self, call: Call, outcome: CallOutcome, seconds: float, reason: str) -> None:
        """Count a call for one claim that was answered or cancelled. ``reason``: that of a refusal or a fault."""
        self._instruments.observe(plugin_metrics.CLAIM_TIME, call.value, outcome.value, value=seconds)
        if reason:
            self._instruments.count(plugin_metrics.CLAIM_REFUSALS, call.value, reason)

    def slice_written(self, failure: Failure | None) -> None:
        """Record the end of an attempt to write the slice."""
        self._instruments.count(plugin_metrics.SLICE_WRITES, WRITTEN if failure is None else failure.kind.value)
        self.slice_obstacle = "" if failure is None else failure.message


class DraReadiness(Readiness):
    """The readiness of the DRA driver."""

    def __init__(self, listing: Listing, counters: DraCounters, driver: str) -> None:
        super().__init__(listing)
        self._counters = counters
        self._driver = driver

    def _obstacles(self) -> Iterator[str]:
        yield from self._without_devices()
        if why := self._counters.obstacle(self._driver):
            yield f"the driver {self._driver} is not registered with the kubelet: {why}"
        if socket := self._counters.bypass:
            yield f"nothing is proven: the kubelet finds {self._driver}, and not Autoclave, by {socket} in its registry"
        if why := self._counters.slice_obstacle:
            yield f"the ResourceSlice of the node is not up to date: {why}"


class DraCollector(StateCollector):
    """The devices, the claims that wait, and the connections to scrub service, kubelet and API server."""

    def __init__(self, listing: Listing, counters: DraCounters, driver: str, version: str) -> None:
        super().__init__(DraReadiness(listing, counters, driver))
        self._listing = listing
        self._counters = counters
        self._driver = driver
        self._version = version

    def _samples(self) -> Iterator[Sample]:
        yield plugin_metrics.DRA_BUILD, (self._version,), 1.0
        yield plugin_metrics.DRA_READY, (), float(not self._readiness.obstacles())
        yield plugin_metrics.SCRUBBER, (), float(not self._listing.silence_reason())
        yield plugin_metrics.DRA_REGISTERED, (), float(not self._counters.obstacle(self._driver))
        for call, waiting in self._counters.waiting.items():
            yield plugin_metrics.CLAIMS_WAITING, (call.value,), float(waiting)
        yield plugin_metrics.SLICE_WRITTEN, (), float(not self._counters.slice_obstacle)
        shown = self._listing.current() or ()
        healthy = sum(device.healthy for device in shown)
        yield plugin_metrics.SLICE_DEVICES, ("healthy",), float(healthy)
        yield plugin_metrics.SLICE_DEVICES, ("unhealthy",), float(len(shown) - healthy)
