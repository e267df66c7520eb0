"""The gauges of the service, computed at each scrape from records, vitals and sampled readings.

A scrape asks no driver. The gauges show the ledger, the last observations, and what ``BoardSampler`` read last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ground.metric_table import Sample, families
from scrub_api.views import ServiceStatus
from scrubber.core import absence, offering
from scrubber.core.model import Availability, Moment, Quarantine, Receipt, Vitals
from scrubber.core.record import Record
from scrubber.devices.base import Readings
from scrubber.metrics import service_metrics
from scrubber.metrics.counters import NO_TENANT, TENANT, ServiceCounters
from scrubber.observe.observer import Observer
from scrubber.service import report
from scrubber.service.context import ServiceContext
from scrubber.service.report import StatusReporter
from scrubber.service.service import Readiness
from scrubber.words import device_status

REFUSED, COUNTED = "refused", "counted"  # what the fence did with an opening: it failed, or it went on
SAMPLED_EVERY = 15.0  # seconds: metrics are seldom fetched more often


class BoardSampler:
    """Reads the sensors of whole GPUs from time to time, for metrics only: no decision uses them."""

    def __init__(self, observer: Observer, every: float = SAMPLED_EVERY) -> None:
        self._observer = observer
        self._every = every
        self.latest: Mapping[str, Readings] = {}  # by UUID, of the last reading; without GPUs that it could not read

    async def run(self) -> None:
        """Read again and again. At its end it forgets what it read."""
        try:
            while True:
                self.latest = await self._observer.health.readings()
                await asyncio.sleep(self._every)
        finally:
            self.latest = {}


class ServiceCollector(Collector):
    """The service and its devices."""

    def __init__(
        self,
        context: ServiceContext,
        reporter: StatusReporter,
        counters: ServiceCounters,
        readiness: Readiness,
        readings: Callable[[], Mapping[str, Readings]],
        verified: float,
    ) -> None:
        """``verified`` is the wall time at which the ledger was verified."""
        self._context = context
        self._reporter = reporter
        self._counters = counters
        self._readiness = readiness
        self._readings = readings
        self._verified = verified

    def describe(self) -> Iterable[Metric]:
        """Return nothing: metrics are known only at a scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All gauges at one moment."""
        about = self._reporter.about()
        devices = self._of_the_devices(no_guard=about.fence_lacks)
        return families([*self._of_the_service(about), *devices, *self._of_the_boards()])

    def _of_the_service(self, about: ServiceStatus) -> Iterator[Sample]:
        ended, active_policy = self._readiness.round_ended(), self._context.active_policy
        yield service_metrics.BUILD, (about.version, about.backend), 1.0
        yield service_metrics.READY, (), float(not self._readiness.obstacles())
        yield service_metrics.POLICY, (active_policy.name, active_policy.digest), 1.0
        yield service_metrics.POLICY_FAULT, (), float(bool(about.policy_fault))
        yield service_metrics.CONCESSIONS, (), float(len(about.concessions))
        yield service_metrics.LEDGER_ROWS, (), float(about.ledger_rows)
        yield service_metrics.LEDGER_FAULT, (), float(bool(about.ledger_fault))
        yield service_metrics.LEDGER_VERIFIED, (), self._verified
        yield service_metrics.LEDGERS_SET_ASIDE, (), float(len(about.set_aside))
        signing = self._counters.signing
        if signing is not None and signing.last_checkpoint is not None:
            yield service_metrics.SIGNED_CHECKPOINT, (), signing.last_checkpoint
        proofs = [
            receipt for receipt in map(self._last_receipt, self._context.ledger.records.values()) if receipt is not None
        ]
        if proofs:
            yield (
                service_metrics.UNCOVERED,
                (),
                float(max(receipt.allocatable_bytes - receipt.covered_bytes for receipt in proofs)),
            )
        if ended is not None:
            yield service_metrics.ROUND, (), ended.wall

    def _of_the_devices(self, *, no_guard: str) -> Iterator[Sample]:
        records = self._context.ledger.records
        healthy = {device.uuid: device.healthy for device in self._reporter.reported().devices}
        now, vitals = self._context.now(), self._context.seen.vitals
        groups, fences = dict.fromkeys(Availability, 0), Counter[tuple[str, ...]]()
        guard = self._context.observer.driver.guard
        for uuid, record in sorted(records.items()):
            if device_status.is_past(record, vitals.get(uuid), now):
                continue
            for row, more, value in self._of(record, now):
                yield row, (record.device.name, uuid, *more), value
            yield service_metrics.HEALTHY, (record.device.name, uuid), float(healthy[uuid])
            if not absence.taken_away(record):
                facts = self._context.offer_facts(record)
                groups[offering.availability(record, facts, offered=healthy[uuid])] += 1
                mode = self._context.device_policy(uuid).policy.fence_mode
                lacks = "" if absence.is_gone(record) else report.fence_lacks(mode, guard, uuid, no_guard)
                fences[mode.value, report.fence(mode, guard, uuid) or "none", lacks] += 1
        for group, number in groups.items():
            yield service_metrics.DEVICES, (group.value,), float(number)
        for words, number in fences.items():
            yield service_metrics.FENCE_DEVICES, words, float(number)
        if guard is not None and any(stands != "none" for _, stands, _ in fences):
            yield service_metrics.FENCE_SINCE, (), now.wall + guard.rules.stands_since - now.uptime
            yield service_metrics.FENCE_LEASE, (), guard.rules.lease_left

    def _of(self, record: Record, now: Moment) -> Iterator[Sample]:
        """The samples of one device, without its labels gpu and uuid."""
        device, uuid = record.device, record.device.uuid
        about = (
            device.model,
            device.pci_address or "",
            record.incarnation.driver,
            device.resource,
            device.parent or "",
        )
        yield service_metrics.DEVICE, about, 1.0
        yield service_metrics.STATE, (record.state.value,), 1.0
        yield service_metrics.STATE_SINCE, (), record.since.wall
        if self._reporter.was_shared(record):
            yield service_metrics.CROWDED, (), 1.0
        if uuid in self._context.seen.blocked:
            yield service_metrics.BLOCKED, (), 1.0
        if record.health.ailment is not None:
            yield service_metrics.SICK, (record.health.ailment.kind.value,), 1.0
        if record.health.quarantine is not None:
            yield from _quarantine(record.health.quarantine, now)
        running = self._context.jobs.of(uuid)
        if running is not None and running.step is not None:
            yield service_metrics.SCRUB_STEP, (running.step.value,), 1.0
        receipt = self._last_receipt(record)
        if receipt is not None:
            yield service_metrics.LAST_SCRUB, (), receipt.finished.wall
            if receipt.allocatable_bytes:
                yield service_metrics.COVERAGE, (), receipt.covered_bytes / receipt.allocatable_bytes
        yield from _health(self._context.seen.vitals.get(uuid))
        guard = self._context.observer.driver.guard
        for answer, times in (guard.openers.asked(uuid) if guard is not None else {}).items():
            words = REFUSED if answer.refused else COUNTED, TENANT if answer.held else NO_TENANT
            yield service_metrics.FENCE_ATTEMPTS, words, float(times)

    def _last_receipt(self, record: Record) -> Receipt | None:
        return record.scrubs.receipt or self._counters.proven.get(record.device.uuid)

    def _of_the_boards(self) -> Iterator[Sample]:
        for uuid, reading in sorted(self._readings().items()):
            values = (
                (service_metrics.TEMPERATURE, reading.celsius),
                (service_metrics.SLOWDOWN, reading.slowdown_celsius),
                (service_metrics.POWER, reading.watts),
            )
            for row, value in values:
                if value is not None:
                    yield row, (str(reading.index), uuid), value


def _quarantine(out: Quarantine, now: Moment) -> Iterator[Sample]:
    yield service_metrics.QUARANTINED, (out.ailment.kind.value,), 1.0
    yield service_metrics.QUARANTINE_SINCE, (), out.since.wall
    yield service_metrics.QUARANTINE_PROBES, (), float(out.probes)
    if out.next_probe is not None:
        yield service_metrics.QUARANTINE_NEXT, (), now.wall + out.next_probe - now.uptime


def _health(vitals: Vitals | None) -> Iterator[Sample]:
    """The samples of the last full observation. A lost or unresponsive device has none."""
    if vitals is None or vitals.lost or vitals.unresponsive:
        return
    yield service_metrics.LEAKED, (), float(vitals.leaked_bytes)
    for kind in {sign.kind for sign in vitals.signs}:
        yield service_metrics.SIGN, (kind.value,), 1.0
