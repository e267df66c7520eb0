"""The life of a device, as a table.

Rule 1: every change of a device's state is an event in ``TABLE``. An event that is not in the row of the present state
        is an error and changes nothing.
Rule 2: GRANTED is entered by ``Granted`` from CLEAN only. The only exception is ``GrantedUnproven``. It is a separate
        event, so that the ledger shows every exception.
Rule 3: CLEAN is entered by ``ScrubPassed`` from SCRUBBING only, with the receipt of that very job.
Rule 4: a device that was quarantined when its job began leaves SCRUBBING for CLEAN or QUARANTINED, nothing else.
Rule 5: a device that needs a reset (``due_path``) enters CLEAN only with a receipt that names one.
Rule 6: a device is never quarantined while it is in use: ``AilmentFound`` records the ailment until the release.

The ledger replays its rows through the same ``apply``: there is no second way to change anything. The documentation
shows this table as a diagram.

The table does not show everything. ``ownership`` has the table of owners. Five small machines run beside it, in
fields of the record:

* ``ailment``: set by ``AilmentFound`` while the device is granted or in use. After the release, ``upkeep`` turns it
  into a quarantine; until then the device is not offered, and no scrub may start on it. ``QuarantineWithdrawn`` ends
  an ailment that an operator has named, no other one.
* ``due_path``: a path stays due from the start of a scrub on it until a scrub passes that is as thorough. The start of
  a burn-in, or of the first look at a device that was proven before, does not change it: such a test may end for a
  request. An ailment makes the path due that ``ailments.path_after`` names, and a grave error from before the first
  observation the path ``reset``. A reboot of the node counts as the reset of the path ``reset``.
* ``setback`` and ``quarantine.probes``: how often a scrub or a probation has failed. Both set the next pause.
* ``owner.unannounced``: a pod was seen on the device without an admitted start. A start, or the kubelet's checkpoint,
  makes it the owner; ``ownership`` says when it has left.
* ``handouts``: grows with each announced grant, and begins anew when a tenant with an admitted start has ended. If the
  kubelet's checkpoint names fewer containers, another pod's container may still start: see ``ownership.contested``.
  An older ledger lacks handouts, so it counts as many.

Devices are not independent: a reset takes down all devices of a reset domain. ``presence`` and the facts
``siblings_busy`` and ``domain_resetting`` couple them; no event of this table concerns more than one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from scrubber.core import ailments, leftover, ownership, pauses
from scrubber.core import events as ev
from scrubber.core.model import (
    AilmentKind,
    Baseline,
    Job,
    Moment,
    Passage,
    Record,
    ScrubPath,
    State,
    Step,
    Trigger,
    most_thorough,
)

TABLE: dict[State, dict[type[ev.Event], State]] = {
    State.UNKNOWN: {
        ev.Described: State.UNKNOWN,
        ev.PastGate: State.UNKNOWN,
        ev.Distrusted: State.UNKNOWN,
        ev.ScrubStarted: State.SCRUBBING,
        ev.ErrorsNoted: State.UNKNOWN,
        ev.PutInUse: State.IN_USE,  # found in use: the service was restarted, or its ledger was lost
        ev.GrantedUnproven: State.GRANTED,
        ev.Quarantined: State.QUARANTINED,
        ev.QuarantineWithdrawn: State.UNKNOWN,
    },
    State.DIRTY: {
        ev.Described: State.DIRTY,
        ev.PastGate: State.DIRTY,
        ev.ErrorsNoted: State.DIRTY,
        ev.Distrusted: State.UNKNOWN,
        ev.ScrubStarted: State.SCRUBBING,
        ev.GrantedUnproven: State.GRANTED,
        ev.Released: State.DIRTY,  # a claim is given back that the device is kept for; so in each state below
        ev.Quarantined: State.QUARANTINED,
        ev.QuarantineWithdrawn: State.DIRTY,
    },
    State.SCRUBBING: {
        ev.Described: State.SCRUBBING,
        ev.PastGate: State.SCRUBBING,
        ev.StepStarted: State.SCRUBBING,
        ev.StepFinished: State.SCRUBBING,
        ev.Escalated: State.SCRUBBING,
        ev.ScrubPassed: State.CLEAN,
        ev.ScrubFailed: State.DIRTY,
        ev.ScrubInterrupted: State.DIRTY,
        ev.Released: State.SCRUBBING,
        ev.Quarantined: State.QUARANTINED,
    },
    State.CLEAN: {
        ev.Described: State.CLEAN,
        ev.PastGate: State.CLEAN,
        ev.ErrorsNoted: State.CLEAN,
        ev.Distrusted: State.UNKNOWN,
        ev.Soiled: State.DIRTY,
        ev.ScrubStarted: State.SCRUBBING,
        ev.Granted: State.GRANTED,
        ev.GrantedUnproven: State.GRANTED,  # its proof is not valid, and policy observe does not scrub
        ev.Released: State.CLEAN,
        ev.Quarantined: State.QUARANTINED,
    },
    State.GRANTED: {
        ev.Described: State.GRANTED,
        ev.PastGate: State.GRANTED,
        ev.ErrorsNoted: State.GRANTED,
        ev.Distrusted: State.UNKNOWN,
        ev.Granted: State.GRANTED,  # an init container and an app container share it in one admission
        ev.GrantedUnproven: State.GRANTED,
        ev.PutInUse: State.IN_USE,
        ev.Released: State.DIRTY,
        ev.AilmentFound: State.GRANTED,
        ev.QuarantineWithdrawn: State.GRANTED,
    },
    State.IN_USE: {
        ev.Described: State.IN_USE,
        ev.PastGate: State.IN_USE,
        ev.ErrorsNoted: State.IN_USE,
        ev.Distrusted: State.UNKNOWN,
        ev.GrantedUnproven: State.GRANTED,
        ev.PutInUse: State.IN_USE,
        ev.Released: State.DIRTY,
        ev.AilmentFound: State.IN_USE,
        ev.QuarantineWithdrawn: State.IN_USE,
    },
    State.QUARANTINED: {
        ev.Described: State.QUARANTINED,
        ev.PastGate: State.QUARANTINED,
        ev.ErrorsNoted: State.QUARANTINED,
        ev.Distrusted: State.QUARANTINED,
        ev.ProbationStarted: State.SCRUBBING,
        ev.Released: State.QUARANTINED,
        ev.Quarantined: State.QUARANTINED,
        ev.Reinstated: State.DIRTY,
    },
}


class IllegalEventError(Exception):
    """An event that must not happen to a device in this state: a bug in the service, or an edited ledger."""


SIGHTINGS = (ev.Soiled, ev.Distrusted, ev.PutInUse)  # they end a proof: if one is forgotten, the proof stays valid
MANY_HANDOUTS = 1000  # more than containers of a checkpoint: how many handouts an older ledger lacks is not known
REMEMBERED = 5  # durations of fast scrubs that show how long one usually takes


def apply(record: Record | None, entry: ev.LedgerEntry) -> Record:
    """The record after one more event. IllegalEventError when the event must not happen."""
    event = entry.event
    if isinstance(event, ev.Discovered):
        if record is not None:
            raise IllegalEventError(f"{entry.device} was discovered twice")
        if event.device.uuid != entry.device:
            raise IllegalEventError(f"{entry.device} cannot be discovered as {event.device.uuid}")
        return Record(event.device, event.incarnation, State.UNKNOWN, entry.at, vacated=_vacated_from(entry.at))
    if record is None:
        raise IllegalEventError(f"{type(event).__name__} for {entry.device}, which was never discovered")
    target = TABLE[record.state].get(type(event))
    if target is None:
        raise IllegalEventError(f"{type(event).__name__} cannot happen to a device that is {record.state.value}")
    guard(record, event)
    moved = replace(fold(record, event, entry.at), state=target)
    return replace(moved, since=entry.at) if target is not record.state else moved


def replay(records: Sequence[Record], entries: Sequence[ev.LedgerEntry]) -> tuple[Record, ...]:
    """The records after these entries."""
    result = {record.device.uuid: record for record in records}
    for entry in entries:
        result[entry.device] = apply(result.get(entry.device), entry)
    return tuple(result.values())


def to_record_later(earlier: ev.Event | None, event: ev.Event) -> ev.Event | None:
    """Which event of a device must be recorded once the ledger can be written again: the newest sighting.

    ``event`` could not be recorded, and ``earlier`` neither. A sighting of the owner alone does not replace one that
    shows another process.
    """
    if not isinstance(event, SIGHTINGS):
        return earlier
    return event if earlier is None or _shows_others(event) or not _shows_others(earlier) else earlier


def _shows_others(sighting: ev.Event) -> bool:
    return not isinstance(sighting, ev.PutInUse) or sighting.owner.unannounced or sighting.owner.crowded


def late(record: Record | None, sighting: ev.Event) -> ev.Event | None:
    """How a sighting that could not be recorded in time is recorded now; None if it must not be, or says nothing new.

    The write that reported an error may have reached the disk, with events that followed.
    """
    if record is None or type(sighting) not in TABLE[record.state]:
        return None
    if not isinstance(sighting, ev.PutInUse):
        return sighting
    owner = ownership.late(record.owner, sighting.owner)
    return None if owner is None else ev.PutInUse(owner)


def guard(record: Record, event: ev.Event) -> None:
    """Reject an event that the table allows but that does not fit the record, such as an event of another job."""
    match event:
        case ev.StepStarted() | ev.StepFinished() | ev.Escalated():
            _demand_job(record, event.job)
        case ev.ScrubPassed(job, receipt):
            _demand_job(record, job)
            _demand(receipt.device == record.device.uuid, "the receipt is for another device")
            _demand(receipt.incarnation == record.incarnation, "the receipt is of another boot or driver")
            _demand(receipt.previous == record.last_receipt, "the receipt does not follow the one before")
            was_reset = any(step is Step.RESET for step, _ in receipt.steps)
            met = was_reset or record.due_path is not ScrubPath.RESET
            _demand(met, "the device needs a reset, and the receipt names none")
        case ev.ScrubFailed() | ev.ScrubInterrupted():
            _demand_job(record, event.job)
            _demand(record.quarantine is None, "the job of a quarantined device ends clean or in quarantine")
        case ev.Described(device):
            _demand(device.uuid == record.device.uuid, "the event describes another device")
        case ev.ScrubStarted():
            _demand(record.ailment is None, "the device has an ailment")
        case ev.Granted(grant):
            _demand(record.receipt is not None and grant.receipt == record.receipt.id, "the grant has another receipt")
            _demand(record.ailment is None, "the device has an ailment")
        case ev.PutInUse(owner):
            _demand(
                ownership.legal(record.owner, owner), "nothing that can be found out leads from its owner to this one"
            )
        case ev.QuarantineWithdrawn():
            asked = record.ailment is not None and record.ailment.kind is AilmentKind.OPERATOR
            _demand(asked, "no operator has asked for its quarantine")
        case ev.Released():
            taken = record.state in (State.GRANTED, State.IN_USE) or record.kept_for != ""
            _demand(taken, "nobody has the device")
        case ev.Discovered() | ev.Distrusted() | ev.GrantedUnproven() | ev.Soiled() | ev.PastGate():
            pass
        case ev.ProbationStarted() | ev.AilmentFound() | ev.Quarantined() | ev.ErrorsNoted() | ev.Reinstated():
            pass
        case _:
            assert_never(event)


def _demand_job(record: Record, job: str) -> None:
    _demand(record.job is not None and job == record.job.id, "the event is about another job")


def _demand(holds: bool, why_not: str) -> None:  # noqa: FBT001 - each call reads as a sentence
    if not holds:
        raise IllegalEventError(f"cannot happen: {why_not}")


def fold(record: Record, event: ev.Event, at: Moment) -> Record:
    """What an event changes besides the state."""
    match event:
        case ev.Discovered() | ev.Described():
            return replace(record, device=event.device)
        case ev.Distrusted():
            return _distrust(record, event, at)
        case ev.Granted() | ev.GrantedUnproven():
            # If no start was admitted so far, the tenancy begins anew: processes from before this grant are foreign.
            began = record.tenancy_began if leftover.span(record) is not None else at.uptime
            ended = _ended(record, at) if record.owner is not None else record.tenancy_ended
            handouts = record.handouts + (event.grant.announced and not event.grant.at_start)
            at_start = event.grant.at_start  # which pod has it now, its start says
            follows = record.awaits != "" and not at_start
            replaced = follows or (record.owner is not None and leftover.start_admitted(record))
            left = replaced or record.kept_for not in ("", event.grant.owner)
            receipt = record.receipt if isinstance(event, ev.Granted) else None
            if receipt is not None and left:
                receipt = replace(receipt, envelope="")  # it names the hand-over that has ended
            return replace(
                record, grant=event.grant, owner=None, tenancy_began=began, tenancy_ended=ended, receipt=receipt,
                handouts=handouts, half_cleared=False, soiled=0, kept_for="", vacated=record.vacated + left,
                awaits=record.awaits if at_start else "", last_owner=record.awaits if follows else record.last_owner,
                held_from=record.held_from if at_start else None,
            )  # fmt: skip
        case ev.PutInUse():
            began = record.tenancy_began if record.tenancy_began is not None else event.owner.since.uptime
            left = ownership.replaced(record, event.owner)
            return replace(
                record, owner=event.owner, tenancy_began=began, receipt=None, half_cleared=False, soiled=0,
                vacated=record.vacated + left, awaits=record.awaits if event.owner.unannounced else "",
                last_owner=(left and record.awaits) or record.last_owner,
            )  # fmt: skip
        case ev.Released() if record.kept_for:
            return replace(record, kept_for="", vacated=record.vacated + 1, held_from=None)
        case ev.Released():
            handouts = record.handouts if event.restart else _unused_handouts(record)
            left = not event.restart and leftover.start_admitted(record)
            last = record.owner.container if left and record.owner is not None else record.last_owner
            return replace(
                record, grant=None, owner=None, receipt=None, tenancy_ended=_ended(record, at), handouts=handouts,
                last_owner=last, left_by=_left_by(record), vacated=record.vacated + left,
                held_from=None if left else record.held_from,
                awaits=_awaits(record) if event.restart else record.awaits,
                kept_for=ownership.acquired_by(record) if event.restart and ownership.until_release(record) else "",
            )  # fmt: skip
        case ev.Soiled():
            return replace(record, receipt=None, tenancy_began=None, tenancy_ended=None, soiled=event.times)
        case ev.PastGate(pod, unproven):
            return replace(
                record, past_gate=Passage(pod, at.uptime), past_pods=(*record.past_pods, pod),
                past_unproven=at.uptime if unproven else record.past_unproven,
            )  # fmt: skip
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
            half = _half_cleared(record)
            return replace(record, job=replace(_job(record), path=event.path), due_path=event.path, half_cleared=half)
        case ev.ScrubPassed():
            return _pass(record, event, at)
        case ev.ScrubFailed():
            setback, job = pauses.setback(record, event.why, at), _job(record)
            due = record.due_path if job.trigger is Trigger.BURN_IN else most_thorough(record.due_path, job.path)
            return replace(record, job=None, setback=setback, half_cleared=_half_cleared(record), due_path=due)
        case ev.ScrubInterrupted():
            return replace(record, job=None, half_cleared=_half_cleared(record))
        case ev.ErrorsNoted():
            due = ScrubPath.RESET if event.grave else record.due_path
            return replace(
                record, baseline=replace(record.baseline, last_xid=event.last), errors_noted=at.uptime, due_path=due
            )  # fmt: skip
        case ev.Reinstated():
            return replace(record, quarantine=None, setback=None, due_path=None, returns=())
        case ev.QuarantineWithdrawn():
            due = None if record.due_path is ScrubPath.FAST else record.due_path  # the ailment has made it FAST
            return replace(record, ailment=None, due_path=due)
        case ev.AilmentFound():
            due = most_thorough(record.due_path, ailments.path_after(event.ailment))
            return replace(record, ailment=event.ailment, due_path=due)
        case ev.Quarantined():
            quarantine = event.quarantine
            due = most_thorough(record.due_path, ailments.path_after(quarantine.ailment))
            return replace(
                record, job=None, receipt=None, ailment=None, quarantine=quarantine, baseline=quarantine.baseline,
                due_path=due, half_cleared=_half_cleared(record),
            )  # fmt: skip


def _half_cleared(record: Record) -> bool:
    """Whether a clear has begun since the last tenancy, at a moment at which nothing proves its end."""
    job = record.job
    begun = () if job is None else (job.step, *(result.step for result in job.results))
    return record.half_cleared or Step.CLEAR in begun


def _ended(record: Record, at: Moment) -> float | None:
    """When the last admitted tenant ended. A process that starts later is not its leftover."""
    return at.uptime if leftover.start_admitted(record) else record.tenancy_ended


def _unused_handouts(record: Record) -> int:
    """The handouts that still count after a release: none if a tenant with an admitted start has ended."""
    return 0 if leftover.start_admitted(record) else record.handouts


def _vacated_from(at: Moment) -> int:
    """Where the count of ended tenancies begins: above each count that a lost or newer ledger can have reached."""
    return int(at.wall * 1000)


def _awaits(record: Record) -> str:
    """The pod whose next container a release is for; empty if a claim has the device (``kept_for``)."""
    owner = record.owner
    return "" if owner is None or owner.container is None or ownership.until_release(record) else owner.container


def _left_by(record: Record) -> str:
    """Who the device was acquired for, at the end of the tenancy. Without a grant, no tenancy ends."""
    return record.grant.owner if record.grant is not None else record.left_by


def _job(record: Record) -> Job:
    if record.job is None:
        raise IllegalEventError(f"cannot happen: {record.device.uuid} has no job")
    return record.job


def _begin(record: Record, job: Job) -> Record:
    """The record with this job. Unless the job may end for a request, its path stays due until a scrub passes."""
    known = job.trigger is Trigger.FIRST_LOOK and record.tested is not None and job.path is not ScrubPath.RESET
    may_end = job.trigger is Trigger.BURN_IN or known
    due = record.due_path if may_end else most_thorough(record.due_path, job.path)
    begun = job.started.wall if job.trigger is Trigger.BURN_IN else record.burn_in_begun
    return replace(record, job=job, receipt=None, grant=None, owner=None, due_path=due, burn_in_begun=begun)


def _distrust(record: Record, event: ev.Distrusted, at: Moment) -> Record:
    """What was known about the memory no longer holds. A quarantine stays, and its next probation is timed anew."""
    quarantine, baseline, due = record.quarantine, record.baseline, record.due_path
    left = leftover.start_admitted(record) or record.awaits != ""
    # The containers of the tenancy that ends may start again, with the mount that the runtime knows.
    held_from = record.vacated if left and record.held_from is None else record.held_from
    if event.incarnation.boot_id != record.incarnation.boot_id:  # a reboot restarts the numbers and counts of errors
        record = replace(record, past_gate=None, past_pods=(), past_unproven=0.0, proven_at=0.0)
        baseline = Baseline()
        due = ScrubPath.SLOW if due is ScrubPath.RESET else due  # and has reset the device
    if quarantine is not None:
        probe = None if quarantine.next_probe is None else at.uptime + pauses.after_interruption(quarantine)
        quarantine = replace(quarantine, next_probe=probe, baseline=baseline)
    return replace(
        record,
        incarnation=event.incarnation,
        receipt=None,
        grant=None,
        owner=None,
        tenancy_began=None,
        tenancy_ended=None,
        quarantine=quarantine,
        setback=None,  # its processes have ended, and its times may be of another boot
        errors_noted=None,
        baseline=baseline,
        due_path=most_thorough(ScrubPath.SLOW, due) if quarantine is not None else due,  # as after a first observation
        handouts=_unused_handouts(record) + (MANY_HANDOUTS if event.older_ledger else 0),
        left_by=_left_by(record),
        kept_for="",
        awaits="",
        vacated=_vacated_from(at) if event.older_ledger else record.vacated + (left or bool(record.kept_for)),
        held_from=None if event.older_ledger else held_from,
    )


def _pass(record: Record, event: ev.ScrubPassed, at: Moment) -> Record:
    """Clean: the receipt is valid from now on. It ends the quarantine, the setback and the tenancy."""
    returns, took = record.returns, record.fast_seconds
    if event.receipt.path is ScrubPath.FAST:
        took = (*took[1 - REMEMBERED :], at.uptime - _job(record).started.uptime)
    if record.quarantine is not None:
        # A reinstatement clears the returns: maintenance does not count as flapping.
        by_itself = _job(record).trigger is Trigger.PROBATION
        returns = record.returns if by_itself else ()
        if by_itself and record.quarantine.ailment.kind not in ailments.BLAMELESS:
            returns = (*returns[-9:], at.wall)
    return replace(
        record,
        job=None,
        receipt=event.receipt,
        last_receipt=event.receipt.digest,
        proven_at=event.receipt.finished.uptime,
        past_pods=(),
        baseline=event.receipt.baseline,
        tenancy_began=None,
        tenancy_ended=None,
        quarantine=None,
        setback=None,
        half_cleared=False,
        due_path=None if most_thorough(record.due_path, event.receipt.path) is event.receipt.path else record.due_path,
        returns=returns,
        fast_seconds=took,
        tested=at.wall if event.receipt.path is not ScrubPath.FAST or record.tested is None else record.tested,
    )
