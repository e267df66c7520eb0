"""What the rows of the ledger count as, and what else is counted while it happens.

A row is counted when it has become true, so that figures and ledger tell the same story; what was written by an earlier
process is not counted again.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from policies import xids
from scrubber.core import events as ev
from scrubber.core import presence
from scrubber.core.events import LedgerEntry
from scrubber.core.model import DeviceInfo, Holder, Outcome, Receipt, Record, Step, StepResult, Vitals
from scrubber.ground.metric_table import Instruments
from scrubber.metrics import table

RECEIPT, NONE = "receipt", "none"  # what a grant rests on
EVIDENCE, PERSON = "evidence", "person"  # who brings back what was taken out
KINDS = ("container", "host", "stuck")
FINDINGS = (table.RESIDUE, table.UNAUTHORISED)  # of each device: somebody is told of the first one
OTHER = "other"  # a code that no table knows: what a driver may say must not make series without end


class ServiceCounters:
    """Counters and histograms of the service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """What few words can tell apart begins at nothing; the rest shows up when it first happens."""
        self._instruments = Instruments(table.TABLE, registry)
        self._exposed_since: dict[str, float] = {}  # uptime at which what was proven of a device ended
        self._heard: dict[str, int] = {}  # of each device the number of the newest error that was counted
        self.proven: dict[str, Receipt] = {}  # the last proof of each device that was given since the start
        for word in (RECEIPT, NONE):
            self._instruments.known(table.GRANTS, word)
        for word in (EVIDENCE, PERSON):
            self._instruments.known(table.RETURNS, word)
        for word in KINDS:
            self._instruments.known(table.PROCESSES, word)

    def watch(self, devices: Iterable[DeviceInfo]) -> None:
        """Findings of these begin at nothing, so that the first one is one more, also in a process that is new."""
        for device in devices:
            for row in FINDINGS:
                self._instruments.known(row, device.name, device.uuid)

    # -- the ledger

    def row(self, entry: LedgerEntry, before: Record | None) -> None:
        """This has become true of a device that stood so before."""
        match entry.event:
            case ev.Discovered(device=device):
                self.watch([device])
                self._ended(entry, before)
            case ev.Distrusted() | ev.Released():
                self._ended(entry, before)
            case ev.Soiled(holders=holders):
                self._ended(entry, before)
                if holders and before is not None:
                    self._instruments.count(table.UNAUTHORISED, before.device.name, entry.device)
            case ev.Granted():
                self._instruments.count(table.GRANTS, RECEIPT)
            case ev.GrantedUnproven():
                self._instruments.count(table.GRANTS, NONE)
            case ev.StepFinished(result=result) if before is not None:
                self._step(result, before)
            case ev.Escalated():
                self._instruments.count(table.ESCALATIONS)
            case ev.ScrubPassed(receipt=receipt) if before is not None:
                self._passed(entry, receipt, before)
            case ev.ScrubFailed():
                self._scrub_ended(before, "failed")
            case ev.ScrubInterrupted():
                self._scrub_ended(before, "interrupted")
            case ev.Quarantined(quarantine=quarantine):
                self._scrub_ended(before, "quarantined")
                self._exposed_since.pop(entry.device, None)
                if before is None or before.quarantine is None:
                    self._instruments.count(table.QUARANTINES, quarantine.ailment.kind.value)
                if quarantine.ailment.kind in presence.TAKEN_AWAY:
                    self._forget(entry.device)
            case ev.Reinstated():
                self._instruments.count(table.RETURNS, PERSON)

    def _forget(self, uuid: str) -> None:
        """What is taken away on purpose, as slices are again and again, must not leave its series behind."""
        self._instruments.forget(uuid)
        self._exposed_since.pop(uuid, None)
        self.proven.pop(uuid, None)

    def _ended(self, entry: LedgerEntry, before: Record | None) -> None:
        if before is None or before.quarantine is None:  # what is out waits for other things than a scrub
            self._exposed_since.setdefault(entry.device, entry.at.uptime)

    def _scrub_ended(self, before: Record | None, outcome: str) -> None:
        job = before.job if before is not None else None
        if job is not None:
            self._instruments.count(table.SCRUB_ENDS, job.path.value, job.trigger.value, outcome)

    def _passed(self, entry: LedgerEntry, receipt: Receipt, before: Record) -> None:
        self._scrub_ended(before, "passed")
        self.proven[entry.device] = receipt
        if before.job is not None:
            took = entry.at.uptime - before.job.started.uptime
            self._instruments.time(table.SCRUB_TIME, receipt.path.value, value=took, receipt=receipt.id)
        if before.quarantine is not None:
            self._instruments.count(table.RETURNS, EVIDENCE)
        since = self._exposed_since.pop(entry.device, None)
        if since is not None:
            self._instruments.time(table.TIME_TO_CLEAN, value=entry.at.uptime - since, receipt=receipt.id)

    def _step(self, result: StepResult, before: Record) -> None:
        step, found = result.step, result.findings
        self._instruments.time(table.STEP_TIME, step.value, value=result.seconds)
        if result.outcome is not Outcome.PASSED:
            self._instruments.count(table.STEP_FAILURES, step.value, result.outcome.value, result.blame.value)
        if step is Step.RESET:
            self._instruments.count(table.RESETS, result.outcome.value)
        if step is Step.CLEAR and result.outcome is Outcome.PASSED:
            self._instruments.count(table.SCRUBBED, by=found.covered_bytes or 0)
        if found.residue_bytes:
            self._instruments.count(table.RESIDUE, before.device.name, before.device.uuid)
            self._instruments.count(table.RESIDUE_BYTES, before.device.name, before.device.uuid, by=found.residue_bytes)
        for holder in found.holders:
            self._instruments.count(table.PROCESSES, _kind(holder))
        self._instruments.count(table.TERMINATED, by=len(found.terminated))

    def written(self, seconds: float) -> None:
        """The ledger took so long to make something durable."""
        self._instruments.time(table.LEDGER_APPEND, value=seconds)

    # -- what is in no row, or in none at once

    def vitals(self, record: Record, vitals: Vitals) -> None:
        """What a device says of itself: errors are counted when they are first told."""
        uuid = record.device.uuid
        last = self._heard.get(uuid, record.baseline.last_xid)
        gone = vitals.lost and presence.taken_away(record)  # what is told then is of others in its place
        for xid in vitals.xids:
            if xid.number > last and not gone:
                code = str(xid.code) if xids.row(xid.code) is not None else OTHER
                self._instruments.count(table.XIDS, record.device.name, uuid, code)
        self._heard[uuid] = max((last, *(xid.number for xid in vitals.xids)))

    def answered(self, request: str, outcome: str, reason: str, seconds: float) -> None:
        """Somebody who hands devices out was answered; ``reason`` is empty for a yes."""
        self._instruments.time(table.REQUESTS, request, outcome, value=seconds)
        if reason:
            self._instruments.count(table.REQUEST_REFUSALS, request, reason)

    def failed(self) -> None:
        """A look after a device, or at the node, came to nothing."""
        self._instruments.count(table.ROUND_FAILURES)


def _kind(holder: Holder) -> str:
    if holder.state == "D":
        return "stuck"
    return "container" if holder.container is not None else "host"
