"""The life of a device, as a table: which event is legal in which state, and what it leads to.

Rule 1: every change of a device's state is an event in ``TABLE``. An event that is not in the row of the present state
        is an error and changes nothing.
Rule 2: GRANTED is entered by ``Granted`` from CLEAN only. The only exception is ``GrantedUnproven``. It is a separate
        event, so that the ledger shows every exception.
Rule 3: CLEAN is entered by ``ScrubPassed`` from SCRUBBING only, with the receipt of that very job.
Rule 4: a device that was quarantined when its job began leaves SCRUBBING for CLEAN or QUARANTINED, nothing else.
Rule 5: a device that needs a reset (``due_path``) enters CLEAN only with a receipt that names one.
Rule 6: a device is never quarantined while it is in use: ``AilmentFound`` records the ailment until the release.

The ledger replays its rows through the same ``apply``: there is no other way to change anything. The documentation
shows this table as a diagram.

The table does not show everything: ``changes`` says what an event changes beside the state, and ``owners`` has the
table of owners.

Devices are not independent: a reset takes down all devices of a reset domain. ``reset_domains`` and the facts
``siblings_busy`` and ``domain_resetting`` couple them; no event of this table concerns more than one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scrubber.core import changes, closing, owners
from scrubber.core import events as ev
from scrubber.core.model import State
from scrubber.core.record import Record

TABLE: dict[State, dict[type[ev.Event], State]] = {
    State.UNKNOWN: {
        ev.Described: State.UNKNOWN,
        ev.OpenAttempted: State.UNKNOWN,
        ev.FenceMissed: State.UNKNOWN,
        ev.Deferred: State.UNKNOWN,
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
        ev.OpenAttempted: State.DIRTY,
        ev.FenceMissed: State.DIRTY,
        ev.LetIn: State.DIRTY,
        ev.Deferred: State.DIRTY,
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
        ev.OpenAttempted: State.SCRUBBING,
        ev.FenceMissed: State.SCRUBBING,
        ev.LetIn: State.SCRUBBING,
        ev.Deferred: State.SCRUBBING,
        ev.StepsRecorded: State.SCRUBBING,
        ev.Escalated: State.SCRUBBING,
        ev.ScrubPassed: State.CLEAN,
        ev.ScrubFailed: State.DIRTY,
        ev.ScrubInterrupted: State.DIRTY,
        ev.Released: State.SCRUBBING,
        ev.Quarantined: State.QUARANTINED,
    },
    State.CLEAN: {
        ev.Described: State.CLEAN,
        ev.OpenAttempted: State.CLEAN,
        ev.FenceMissed: State.CLEAN,
        ev.LetIn: State.CLEAN,
        ev.Deferred: State.CLEAN,
        ev.ErrorsNoted: State.CLEAN,
        ev.Distrusted: State.UNKNOWN,
        ev.Soiled: State.DIRTY,
        ev.ScrubStarted: State.SCRUBBING,
        ev.Granted: State.GRANTED,
        ev.GrantedUnproven: State.GRANTED,  # its proof is not valid, and policy observe does not scrub
        ev.TenancyClosed: State.CLEAN,
        ev.Released: State.CLEAN,
        ev.Quarantined: State.QUARANTINED,
    },
    State.GRANTED: {
        ev.Described: State.GRANTED,
        ev.OpenAttempted: State.GRANTED,
        ev.FenceMissed: State.GRANTED,
        ev.LetIn: State.GRANTED,
        ev.Deferred: State.GRANTED,
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
        ev.OpenAttempted: State.IN_USE,
        ev.FenceMissed: State.IN_USE,
        ev.LetIn: State.IN_USE,
        ev.Deferred: State.IN_USE,
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
        ev.OpenAttempted: State.QUARANTINED,
        ev.FenceMissed: State.QUARANTINED,
        ev.LetIn: State.QUARANTINED,
        ev.Deferred: State.QUARANTINED,
        ev.ErrorsNoted: State.QUARANTINED,
        ev.Distrusted: State.QUARANTINED,
        ev.ProbationStarted: State.SCRUBBING,
        ev.Released: State.QUARANTINED,
        ev.Quarantined: State.QUARANTINED,
        ev.Reinstated: State.DIRTY,
    },
}


SIGHTINGS = (ev.Soiled, ev.Distrusted, ev.PutInUse)  # they end a proof: if one is forgotten, the proof stays valid


def apply(record: Record | None, entry: ev.LedgerEntry) -> Record:
    """The record after one more event. Raises IllegalEventError if the event must not happen."""
    event = entry.event
    if isinstance(event, ev.Discovered):
        if record is not None:
            raise ev.IllegalEventError(f"{entry.device} was discovered twice")
        if event.device.uuid != entry.device:
            raise ev.IllegalEventError(f"{entry.device} cannot be discovered as {event.device.uuid}")
        return changes.first(event, entry.at)
    if record is None:
        raise ev.IllegalEventError(f"{type(event).__name__} for {entry.device}, which was never discovered")
    target = TABLE[record.state].get(type(event))
    if target is None:
        raise ev.IllegalEventError(f"{type(event).__name__} cannot happen to a device that is {record.state.value}")
    changed = changes.after(record, event, entry.at)
    moved = replace(changed, state=target, since=entry.at) if target is not record.state else changed
    return closing.remembered(record, moved, event, entry.at)


def replay(records: Sequence[Record], entries: Sequence[ev.LedgerEntry]) -> tuple[Record, ...]:
    """The records after these entries. Events of the node do not change any record."""
    result = {record.device.uuid: record for record in records}
    for entry in entries:
        if isinstance(entry.event, ev.OF_NODE):
            continue
        result[entry.device] = apply(result.get(entry.device), entry)
    return tuple(result.values())


def to_record_later(earlier: ev.Event | None, event: ev.Event) -> ev.Event | None:
    """The event that must be recorded when the ledger can be written again: the newest sighting of the device.

    Neither ``event`` nor ``earlier`` could be recorded. A sighting of the owner alone does not replace one that shows
    another process.
    """
    if not isinstance(event, SIGHTINGS):
        return earlier
    return event if earlier is None or _shows_others(event) or not _shows_others(earlier) else earlier


def _shows_others(sighting: ev.Event) -> bool:
    return not isinstance(sighting, ev.PutInUse) or sighting.owner.unannounced or sighting.owner.crowded


def late(record: Record | None, sighting: ev.Event) -> ev.Event | None:
    """How to record a late sighting now; None if it must not be recorded, or says nothing new.

    The write that reported an error may still have reached the disk, with the events after it.
    """
    if record is None or type(sighting) not in TABLE[record.state]:
        return None
    if not isinstance(sighting, ev.PutInUse):
        return sighting
    owner = owners.late(record.tenancy.owner, sighting.owner)
    return None if owner is None else ev.PutInUse(owner)
