"""The counters and histograms of the service, which each new entry of the ledger raises.

A ledger row is counted after it is stored, so that metrics and ledger agree. Rows of an earlier process are not counted
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry

from ground.metric_table import Instruments
from policies import xids
from scrubber.core import absence
from scrubber.core import events as ev
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.events import LedgerEntry
from scrubber.core.measured import Cleared
from scrubber.core.model import DeviceInfo, Evicted, Holder, InTheWay, Outcome, Owner, Receipt, Step, StepResult, Vitals
from scrubber.core.record import Record
from scrubber.metrics import service_metrics
from scrubber.receipts.notary import SigningState

RECEIPT, NONE = "receipt", "none"  # whether a grant has a receipt
EVIDENCE, PERSON = "evidence", "person"  # what ended a quarantine
KINDS = ("container", "host", "stuck")
NO_TENANT, TENANT = "nobody", "tenant"  # who had a device that was used without a grant
OTHER = "other"  # an unknown code: a driver must not be able to create endless series


class ServiceCounters:
    """Counters and histograms of the service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Counters with few label values start at zero; the others appear with their first event."""
        self._instruments = Instruments(service_metrics.TABLE, registry)
        self._dirty_since: dict[str, float] = {}  # uptime at which the proof of each device ended
        self._newest_xid: dict[str, int] = {}  # number of the newest counted XID of each device
        self.proven: dict[str, Receipt] = {}  # the last receipt of each device since the start
        self.signing: SigningState | None = None  # None: the service has no key
        for word in (RECEIPT, NONE):
            self._instruments.export_zero(service_metrics.GRANTS, word)
        for word in (EVIDENCE, PERSON):
            self._instruments.export_zero(service_metrics.RETURNS, word)
        for word in KINDS:
            self._instruments.export_zero(service_metrics.PROCESSES, word)

    def watch(self, devices: Iterable[DeviceInfo]) -> None:
        """Start the findings of these devices at zero, so that an alert sees the first one as an increase."""
        for device in devices:
            self._instruments.export_zero(service_metrics.RESIDUE, device.name, device.uuid)
            self._instruments.export_zero(service_metrics.UNAUTHORISED, device.name, device.uuid, NO_TENANT)

    def process_pass(self) -> None:
        """Count a pass over all processes of the node."""
        self._instruments.count(service_metrics.PASSES)

    # -- the ledger

    def recorded(self, entries: Sequence[LedgerEntry], before: Sequence[Record | None], seconds: float) -> None:
        """Count a write to the ledger and its rows; ``before`` has the record before each row."""
        self._instruments.observe(service_metrics.LEDGER_APPEND, value=seconds)
        for entry, record in zip(entries, before, strict=True):
            self.row(entry, record)

    def row(self, entry: LedgerEntry, before: Record | None) -> None:
        """Count a stored row; ``before`` is the record before it."""
        match entry.event:
            case ev.Discovered(device=device):
                self.watch([device])
                self._ended(entry, before)
            case ev.Distrusted() | ev.Released():
                self._ended(entry, before)
            case ev.Soiled(holders=holders, unnamed=unnamed):
                self._ended(entry, before)
                if (holders or unnamed) and before is not None:
                    self._instruments.count(service_metrics.UNAUTHORISED, before.device.name, entry.device, NO_TENANT)
            case ev.PutInUse(Owner(crowded=True)) if before is not None and not before.tenancy.is_crowded:
                if before.fence.grant is None or before.fence.grant.why:  # else the fence counts who opens it
                    self._instruments.count(service_metrics.UNAUTHORISED, before.device.name, entry.device, TENANT)
            case ev.OpenAttempted(opener, held=True, ended=False) if before is not None:
                # The mode hold lets programs of the node through: they page nobody.
                if opener.was_let_through and opener.is_contained:
                    self._instruments.count(service_metrics.UNAUTHORISED, before.device.name, entry.device, TENANT)
            case ev.Granted():
                self._instruments.count(service_metrics.GRANTS, RECEIPT)
            case ev.GrantedUnproven():
                self._instruments.count(service_metrics.GRANTS, NONE)
            case ev.StepsRecorded(results=results) if before is not None:
                for result in results:
                    self._step(result, before)
            case ev.Escalated():
                self._instruments.count(service_metrics.ESCALATIONS)
            case ev.ScrubPassed(receipt=receipt) if before is not None:
                self._passed(entry, receipt, before)
            case ev.ScrubFailed():
                self._scrub_ended(before, "failed")
            case ev.ScrubInterrupted():
                self._scrub_ended(before, "interrupted")
            case ev.Quarantined(quarantine=quarantine):
                self._scrub_ended(before, "quarantined")
                self._dirty_since.pop(entry.device, None)
                if before is None or before.health.quarantine is None:
                    self._instruments.count(service_metrics.QUARANTINES, quarantine.ailment.kind.value)
                if AILMENTS[quarantine.ailment.kind].taken_away:
                    self._forget(entry.device)
            case ev.Reinstated():
                self._instruments.count(service_metrics.RETURNS, PERSON)

    def _forget(self, uuid: str) -> None:
        """Drop the series of a device that was removed on purpose, as slices often are."""
        self._instruments.forget(uuid)
        self._dirty_since.pop(uuid, None)
        self.proven.pop(uuid, None)

    def _ended(self, entry: LedgerEntry, before: Record | None) -> None:
        if before is None or before.health.quarantine is None:  # a quarantined device does not wait for a scrub
            self._dirty_since.setdefault(entry.device, entry.at.uptime)

    def _scrub_ended(self, before: Record | None, outcome: str) -> None:
        job = before.scrubs.job if before is not None else None
        if job is not None:
            self._instruments.count(service_metrics.SCRUB_ENDS, job.path.value, job.trigger.value, outcome)

    def _passed(self, entry: LedgerEntry, receipt: Receipt, before: Record) -> None:
        self._scrub_ended(before, "passed")
        self.proven[entry.device] = receipt
        if self.signing is not None and not receipt.envelope:
            self._instruments.count(service_metrics.UNSIGNED)
        if before.scrubs.job is not None:
            took = entry.at.uptime - before.scrubs.job.started.uptime
            self._instruments.observe(service_metrics.SCRUB_TIME, receipt.path.value, value=took, receipt=receipt.id)
        if before.health.quarantine is not None:
            self._instruments.count(service_metrics.RETURNS, EVIDENCE)
        since = self._dirty_since.pop(entry.device, None)
        if since is not None:
            self._instruments.observe(service_metrics.TIME_TO_CLEAN, value=entry.at.uptime - since, receipt=receipt.id)

    def _step(self, result: StepResult, before: Record) -> None:
        step = result.step
        self._instruments.observe(service_metrics.STEP_TIME, step.value, value=result.seconds)
        if result.outcome is not Outcome.PASSED:
            self._instruments.count(service_metrics.STEP_FAILURES, step.value, result.outcome.value, result.blame.value)
        if step is Step.RESET:
            self._instruments.count(service_metrics.RESETS, result.outcome.value)
        match result.findings:
            case Cleared() as clear:
                self._cleared(clear, before, passed=result.outcome is Outcome.PASSED)
            case Evicted(holders, terminated):
                self._met(holders)
                if terminated:
                    self._instruments.count(service_metrics.TERMINATED, by=len(terminated))
            case InTheWay(holders):
                self._met(holders)

    def _cleared(self, clear: Cleared, before: Record, *, passed: bool) -> None:
        if passed:
            self._instruments.count(service_metrics.SCRUBBED, by=clear.covered_bytes)
        if clear.residue_bytes:
            name, uuid = before.device.name, before.device.uuid
            self._instruments.count(service_metrics.RESIDUE, name, uuid)
            self._instruments.count(service_metrics.RESIDUE_BYTES, name, uuid, by=clear.residue_bytes)

    def _met(self, holders: tuple[Holder, ...]) -> None:
        for holder in holders:
            self._instruments.count(service_metrics.PROCESSES, _kind(holder))

    # -- what the ledger does not hold, or not at once

    def vitals(self, record: Record, vitals: Vitals) -> None:
        """Count the new XIDs of a device."""
        uuid = record.device.uuid
        last = self._newest_xid.get(uuid, record.health.baseline.last_xid)
        gone = vitals.lost and absence.taken_away(record)  # the XIDs then belong to the device in its place
        for xid in vitals.xids:
            if xid.number > last and not gone:
                code = str(xid.code) if xids.ROWS.get(xid.code) is not None else OTHER
                self._instruments.count(service_metrics.XIDS, record.device.name, uuid, code)
        self._newest_xid[uuid] = max((last, *(xid.number for xid in vitals.xids)))

    def answered(self, request: str, outcome: str, reason: str, seconds: float) -> None:
        """Count an answered request of the plugin; ``reason`` is empty for a yes."""
        self._instruments.observe(service_metrics.REQUESTS, request, outcome, value=seconds)
        if reason:
            self._instruments.count(service_metrics.REQUEST_REFUSALS, request, reason)

    def failed(self) -> None:
        """Count an observation of a device or of the node that failed."""
        self._instruments.count(service_metrics.ROUND_FAILURES)


def _kind(holder: Holder) -> str:
    if holder.state == "D":
        return "stuck"
    return "container" if holder.container is not None else "host"
