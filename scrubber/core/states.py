"""The life of a device, as a table.

Rule 1: everything that changes a device's state is an event in ``TABLE``; an event that is not in the row of the
        present state is an error and changes nothing.
Rule 2: GRANTED is entered by ``Granted`` from CLEAN only. The one written exception is ``GrantedUnproven``, an event of
        its own, so that the ledger shows every use of it.
Rule 3: CLEAN is entered by ``ScrubPassed`` from SCRUBBING only, with the receipt of that very job.
Rule 4: a device that was quarantined when its job began leaves SCRUBBING clean or back into quarantine, nothing else.
Rule 5: a device in use is never quarantined under its user: ``AilmentFound`` remembers it until the release.

The ledger replays through the same ``apply``: there is no second way to change anything. The diagram in the
documentation is drawn from this table (``diagram``).
"""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import events as ev
from scrubber.core import leftover, pauses, remedy
from scrubber.core.model import Baseline, Job, Moment, Path, Receipt, Record, State, Trigger

TABLE: dict[State, dict[type[ev.Event], State]] = {
    State.UNKNOWN: {
        ev.Described: State.UNKNOWN,
        ev.Distrusted: State.UNKNOWN,
        ev.ScrubStarted: State.SCRUBBING,
        ev.ErrorsNoted: State.UNKNOWN,
        ev.PutInUse: State.IN_USE,  # found in use: a restart of ours, or a ledger that was lost
        ev.GrantedUnproven: State.GRANTED,
        ev.Quarantined: State.QUARANTINED,
    },
    State.DIRTY: {
        ev.Described: State.DIRTY,
        ev.ErrorsNoted: State.DIRTY,
        ev.Distrusted: State.UNKNOWN,
        ev.ScrubStarted: State.SCRUBBING,
        ev.GrantedUnproven: State.GRANTED,
        ev.Quarantined: State.QUARANTINED,
    },
    State.SCRUBBING: {
        ev.Described: State.SCRUBBING,
        ev.StepStarted: State.SCRUBBING,
        ev.StepFinished: State.SCRUBBING,
        ev.Escalated: State.SCRUBBING,
        ev.ScrubPassed: State.CLEAN,
        ev.ScrubFailed: State.DIRTY,
        ev.ScrubInterrupted: State.DIRTY,
        ev.Quarantined: State.QUARANTINED,
    },
    State.CLEAN: {
        ev.Described: State.CLEAN,
        ev.ErrorsNoted: State.CLEAN,
        ev.Distrusted: State.UNKNOWN,
        ev.Soiled: State.DIRTY,
        ev.ScrubStarted: State.SCRUBBING,
        ev.Granted: State.GRANTED,
        ev.GrantedUnproven: State.GRANTED,  # its proof does not stand, and observe does not scrub
        ev.Quarantined: State.QUARANTINED,
    },
    State.GRANTED: {
        ev.Described: State.GRANTED,
        ev.ErrorsNoted: State.GRANTED,
        ev.Distrusted: State.UNKNOWN,
        ev.Granted: State.GRANTED,  # an init and an app container share it in one admission
        ev.GrantedUnproven: State.GRANTED,
        ev.PutInUse: State.IN_USE,
        ev.Released: State.DIRTY,
        ev.AilmentFound: State.GRANTED,
    },
    State.IN_USE: {
        ev.Described: State.IN_USE,
        ev.ErrorsNoted: State.IN_USE,
        ev.Distrusted: State.UNKNOWN,
        ev.GrantedUnproven: State.GRANTED,
        ev.PutInUse: State.IN_USE,
        ev.Released: State.DIRTY,
        ev.AilmentFound: State.IN_USE,
    },
    State.QUARANTINED: {
        ev.Described: State.QUARANTINED,
        ev.ErrorsNoted: State.QUARANTINED,
        ev.Distrusted: State.QUARANTINED,
        ev.ProbationStarted: State.SCRUBBING,
        ev.Quarantined: State.QUARANTINED,
        ev.Reinstated: State.DIRTY,
    },
}


class IllegalEventError(Exception):
    """An event that must not happen to a device in this state: a fault of ours, or a ledger that was edited."""


REMEMBERED = 5  # times that a scrub took: what it usually takes


def apply(record: Record | None, entry: ev.LedgerEntry) -> Record:
    """The record after one more event, or an error and no change."""
    event = entry.event
    if isinstance(event, ev.Discovered):
        if record is not None:
            raise IllegalEventError(f"{entry.device} was discovered twice")
        if event.device.uuid != entry.device:
            raise IllegalEventError(f"{entry.device} cannot be discovered as {event.device.uuid}")
        return Record(event.device, event.incarnation, State.UNKNOWN, entry.at)
    if record is None:
        raise IllegalEventError(f"{type(event).__name__} for {entry.device}, which was never discovered")
    target = TABLE[record.state].get(type(event))
    if target is None:
        raise IllegalEventError(f"{type(event).__name__} cannot happen to a device that is {record.state.value}")
    guard(record, event)
    moved = replace(fold(record, event, entry.at), state=target)
    return replace(moved, since=entry.at) if target is not record.state else moved


def guard(record: Record, event: ev.Event) -> None:
    """What the table alone cannot say: an event must be about this job, this receipt, this device."""
    match event:
        case ev.StepStarted() | ev.StepFinished() | ev.Escalated():
            _demand_job(record, event.job)
        case ev.ScrubPassed(job, receipt):
            _demand_job(record, job)
            _demand_receipt(record, receipt)
        case ev.ScrubFailed() | ev.ScrubInterrupted():
            _demand_job(record, event.job)
            _demand(record.quarantine is None, "a quarantined device does not leave its probation like this")
        case ev.Described(device):
            _demand(device.uuid == record.device.uuid, "it describes another device")
        case ev.ScrubStarted():
            _demand(record.ailment is None, "the device is sick")
        case ev.Granted(grant):
            _demand(record.receipt is not None and grant.receipt == record.receipt.id, "there is no such receipt")
            _demand(record.ailment is None, "the device is sick")
        case ev.Discovered() | ev.Distrusted() | ev.GrantedUnproven() | ev.PutInUse() | ev.Released() | ev.Soiled():
            pass
        case ev.ProbationStarted() | ev.AilmentFound() | ev.Quarantined() | ev.ErrorsNoted() | ev.Reinstated():
            pass


def _demand_job(record: Record, job: str) -> None:
    _demand(record.job is not None and job == record.job.id, "it is about another job")


def _demand_receipt(record: Record, receipt: Receipt) -> None:
    _demand(receipt.device == record.device.uuid, "the receipt is for another device")
    _demand(receipt.incarnation == record.incarnation, "the receipt is of another boot or driver")
    _demand(receipt.previous == record.last_receipt, "the receipt does not follow the one before")


def _demand(holds: bool, why_not: str) -> None:  # noqa: FBT001 - reads as its sentence
    if not holds:
        raise IllegalEventError(f"cannot happen: {why_not}")


def fold(record: Record, event: ev.Event, at: Moment) -> Record:
    """What an event changes besides the state. One arm an event, so it is as long as there are events.

    Over 50 lines for that reason: splitting it would hide whether every event is answered.
    """
    match event:
        case ev.Discovered() | ev.Described():
            return replace(record, device=event.device)
        case ev.Distrusted():
            return _distrust(record, event, at)
        case ev.Granted() | ev.GrantedUnproven():
            # Who came to a grant that came to nothing is nobody's leftover.
            began = record.tenancy_began if leftover.span(record) is not None else at.uptime
            receipt = record.receipt if isinstance(event, ev.Granted) else None
            ended = _ended(record, at) if record.owner is not None else record.tenancy_ended
            return replace(
                record, grant=event.grant, owner=None, tenancy_began=began, tenancy_ended=ended, receipt=receipt
            )  # fmt: skip
        case ev.PutInUse():
            began = record.tenancy_began if record.tenancy_began is not None else event.owner.since.uptime
            return replace(record, owner=event.owner, tenancy_began=began, receipt=None)
        case ev.Released():
            return replace(record, grant=None, owner=None, receipt=None, tenancy_ended=_ended(record, at))
        case ev.Soiled():
            return replace(record, receipt=None, tenancy_began=None, tenancy_ended=None)
        case ev.ScrubStarted():
            return _begin(record, event.job)
        case ev.ProbationStarted():
            tried = replace(record.quarantine, probes=record.quarantine.probes + 1) if record.quarantine else None
            return replace(_begin(record, event.job), quarantine=tried)
        case ev.StepStarted():
            return replace(record, job=replace(_job(record), step=event.step))
        case ev.StepFinished():
            job = _job(record)
            return replace(record, job=replace(job, step=None, results=(*job.results, event.result)))
        case ev.Escalated():
            return replace(record, job=replace(_job(record), path=event.path), due_path=event.path)
        case ev.ScrubPassed():
            return _pass(record, event, at)
        case ev.ScrubFailed():
            return replace(record, job=None, setback=pauses.setback(record, event.why, at))
        case ev.ScrubInterrupted():
            return replace(record, job=None)
        case ev.ErrorsNoted():
            owed = Path.SLOW if event.grave else record.due_path
            return replace(
                record, baseline=replace(record.baseline, last_xid=event.last), errors_noted=at.uptime, due_path=owed
            )  # fmt: skip
        case ev.Reinstated():
            return replace(record, quarantine=None, setback=None, due_path=None, returns=())
        case ev.AilmentFound():
            return replace(record, ailment=event.ailment)
        case ev.Quarantined():
            quarantine = event.quarantine
            return replace(
                record, job=None, receipt=None, ailment=None, quarantine=quarantine, baseline=quarantine.baseline
            )


def _ended(record: Record, at: Moment) -> float | None:
    """When the last tenant that was let start had to leave: whoever comes later is none of his."""
    return at.uptime if leftover.start_admitted(record) else record.tenancy_ended


def _job(record: Record) -> Job:
    if record.job is None:
        raise IllegalEventError(f"cannot happen: {record.device.uuid} has no job")
    return record.job


def _begin(record: Record, job: Job) -> Record:
    """The job owns the device. A slow path that was begun is owed until one is done, but for one that nobody needs."""
    owed = record.due_path if job.trigger is Trigger.BURN_IN or record.due_path is Path.SLOW else job.path
    begun = job.started.wall if job.trigger is Trigger.BURN_IN else record.burn_in_begun
    return replace(record, job=job, receipt=None, grant=None, owner=None, due_path=owed, burn_in_begun=begun)


def _distrust(record: Record, event: ev.Distrusted, at: Moment) -> Record:
    """Nothing known of the memory holds; a quarantine does, and its next trial is told by the new boot's clock."""
    quarantine, baseline = record.quarantine, record.baseline
    if event.incarnation.boot_id != record.incarnation.boot_id:  # errors are numbered and counted anew
        baseline = Baseline()
    if quarantine is not None:
        due = None if quarantine.next_probe is None else at.uptime + pauses.after_interruption(quarantine)
        quarantine = replace(quarantine, next_probe=due, baseline=baseline)
    return replace(
        record,
        incarnation=event.incarnation,
        receipt=None,
        grant=None,
        owner=None,
        tenancy_began=None,
        tenancy_ended=None,
        quarantine=quarantine,
        setback=None,  # whoever was in the way is gone, and its time was told by another boot's clock
        errors_noted=None,
        baseline=baseline,
        due_path=Path.SLOW if quarantine is not None else record.due_path,  # what is to be done at a first look is due
    )


def _to_blame(record: Record) -> bool:
    return record.quarantine is not None and record.quarantine.ailment.kind not in remedy.BLAMELESS


def _pass(record: Record, event: ev.ScrubPassed, at: Moment) -> Record:
    """Clean: the proof starts to stand, and everything it ends is over."""
    returns, took = record.returns, record.fast_seconds
    if event.receipt.path is Path.FAST:
        took = (*took[1 - REMEMBERED :], at.uptime - _job(record).started.uptime)
    if record.quarantine is not None:
        # Whom a person brings back starts anew: maintenance is no flapping.
        by_itself = _job(record).trigger is Trigger.PROBATION
        returns = () if not by_itself else (*record.returns[-9:], at.wall) if _to_blame(record) else record.returns
    return replace(
        record,
        job=None,
        receipt=event.receipt,
        last_receipt=event.receipt.digest,
        baseline=event.receipt.baseline,
        tenancy_began=None,
        tenancy_ended=None,
        quarantine=None,
        setback=None,
        due_path=record.due_path if record.due_path is Path.SLOW and event.receipt.path is not Path.SLOW else None,
        returns=returns,
        fast_seconds=took,
        tested=at.wall if event.receipt.path is Path.SLOW or record.tested is None else record.tested,
    )


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> unknown: Discovered"]
    for state, row in TABLE.items():
        for target in State:
            names = [kind.__name__ for kind, to in row.items() if to is target and to is not state]
            lines += [f"    {state.value} --> {target.value}: {', '.join(names)}"] if names else []
    return "\n".join(lines) + "\n"
