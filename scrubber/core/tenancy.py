"""Who was given a device, who uses it, and who had it last: one part of the record, with the table of owners.

Rule 1: ``PutInUse`` is the only event that sets an owner. It carries one ``OwnerFact``; ``TABLE`` says from which
        standing to which other each fact leads, and ``_fits`` what it leaves as it was. ``guard`` rejects all else.
Rule 2: an owner with a known container is never replaced by one without a known container.
Rule 3: an owner that was given the device, or that the checkpoint confirmed, never becomes unannounced again.
Rule 4: an owner that was seen counts as not seen only after another admitted start, because only the absence of an
        owner that was seen means its end.
Rule 5: a crowded device stays crowded as long as its owner has it.

A grant, a release, a distrusted record and the start of a scrub end the ownership. Two more rules stand beside the
table:

* ``owner.unannounced``: a pod was seen on the device without an admitted start. A start, or the kubelet's checkpoint,
  makes it the owner; ``ownership`` says when it has left.
* ``allocations``: grows with each announced grant, and begins anew when a tenant with an admitted start has ended. If
  the kubelet's checkpoint names fewer containers, another pod's container may still start: see ``ownership.contested``.
  An older ledger lacks allocations, so it counts as many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from scrubber.core import events as ev
from scrubber.core.leftover import Span
from scrubber.core.model import Grant, Moment, Owner

MANY_ALLOCATIONS = 1000  # more than containers of a checkpoint: how many an older ledger lacks is not known


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who was given the device, who uses it, and who had it last."""

    # Counts the tenancies, from the milliseconds of the device's discovery on: the ids of hand-overs are made from it.
    # So the id of the next one is known before the present one ends, and none comes twice, also after a lost ledger.
    number: int = 0
    grant: Grant | None = None
    owner: Owner | None = None
    began: float | None = None  # uptime; kept until the next proof
    ended: float | None = None  # uptime; when the last tenant with an admitted start released the device
    allocations: int = 0  # how often Allocate has handed it out since its last tenant ended
    last_owner: str | None = None  # the last tenant with an admitted start that has ended
    left_by: str = ""  # ``Grant.owner`` of the last tenancy that has ended
    kept_for: str = ""  # the claim that has the device while it is scrubbed once more before its first container
    awaits: str = ""  # the pod that the device is scrubbed for once more before its next container: its tenancy goes on
    held_from: int | None = None  # ``number`` of the first hand-over whose directory a pod may have; None: the present

    @property
    def container(self) -> str | None:
        """The container of the owner, as in ``Holder.container``. None: it is not known, or there is no owner."""
        return self.owner.container if self.owner is not None else None

    @property
    def start_admitted(self) -> bool:
        """Whether the device has an owner whose start was admitted.

        A grant that announces no start counts as an admitted start.
        """
        if self.owner is not None and not self.owner.unannounced:
            return True
        return self.grant is not None and not self.grant.announced

    @property
    def span(self) -> Span | None:
        """When the last admitted tenant had the device; None where no start was admitted."""
        if self.began is None:
            return None
        ended = math.inf if self.start_admitted else self.ended
        return None if ended is None else (self.began, ended)

    @property
    def until_release(self) -> bool:
        """Whether the device was granted until its release, so that any container may use it meanwhile."""
        return self.grant is not None and self.grant.until_release

    @property
    def acquired_by(self) -> str:
        """Who has acquired the device; empty if nobody has, or somebody without a name."""
        return self.grant.owner if self.grant is not None else self.kept_for

    def acquired_for(self, owner: str) -> bool:
        """Whether the device was granted to this owner, or is kept for it. An owner without a name has no device."""
        return owner != "" and self.acquired_by == owner


class Standing(Enum):
    """What is known about the owner of a device."""

    NONE = "no owner"
    WITHOUT_CONTAINER = "an owner without a known container"
    UNANNOUNCED = "an unannounced pod"
    AWAITED = "an owner that was not seen yet"
    PRESENT = "an owner that was seen"


class OwnerFact(Enum):
    """What ``PutInUse`` says about the owner."""

    FOUND = "a process uses the device without an admitted start"
    SEEN = "the owner runs"
    CROWDED = "another pod's container uses the device as well"
    CONFIRMED = "a start of the unannounced pod is admitted, or the checkpoint names it or the pod of another holder"
    ADMITTED = "a container of the owner may start"
    NAMED = "the container runtime creates a container of the owner"
    CALLED = "the kubelet has a log directory for the pod of the owner"


TABLE: dict[OwnerFact, dict[Standing, frozenset[Standing]]] = {
    OwnerFact.FOUND: {
        Standing.NONE: frozenset({Standing.WITHOUT_CONTAINER, Standing.UNANNOUNCED}),
        Standing.WITHOUT_CONTAINER: frozenset({Standing.UNANNOUNCED}),
    },
    OwnerFact.SEEN: {
        Standing.AWAITED: frozenset({Standing.PRESENT}),
    },
    OwnerFact.CROWDED: {
        Standing.UNANNOUNCED: frozenset({Standing.UNANNOUNCED}),
        Standing.AWAITED: frozenset({Standing.AWAITED}),
        Standing.PRESENT: frozenset({Standing.PRESENT}),
    },
    OwnerFact.CONFIRMED: {
        Standing.UNANNOUNCED: frozenset({Standing.PRESENT}),
    },
    OwnerFact.ADMITTED: {
        # From another named owner under policy ``observe`` only. A grant until the release admits every start.
        before: frozenset({Standing.AWAITED, Standing.PRESENT})
        for before in Standing
    },
    OwnerFact.NAMED: {
        Standing.AWAITED: frozenset({Standing.AWAITED}),
        Standing.PRESENT: frozenset({Standing.PRESENT}),
    },
    OwnerFact.CALLED: {
        Standing.UNANNOUNCED: frozenset({Standing.UNANNOUNCED}),
        Standing.AWAITED: frozenset({Standing.AWAITED}),
        Standing.PRESENT: frozenset({Standing.PRESENT}),
    },
}


def standing(owner: Owner | None) -> Standing:
    """What is known about this owner."""
    if owner is None:
        return Standing.NONE
    if owner.container is None:
        return Standing.WITHOUT_CONTAINER
    if owner.unannounced:
        return Standing.UNANNOUNCED
    return Standing.PRESENT if owner.seen else Standing.AWAITED


def legal(before: Owner | None, after: Owner) -> bool:
    """Whether one of the facts leads from the one owner to the other."""
    return any(
        standing(after) in row.get(standing(before), ()) and _fits(fact, before, after) for fact, row in TABLE.items()
    )


def late(owner: Owner | None, sighting: Owner) -> Owner | None:
    """How a sighting is recorded that was decided before this owner was known; None if it says nothing new.

    Another pod's container than the owner's was on the device: the device is crowded.
    """
    if legal(owner, sighting):
        return sighting
    if owner is None or (owner.container is None and sighting.container is not None):
        return replace(sighting, crowded=False, name="", pod="")
    if sighting.container in (None, owner.container):
        return None
    return replace(owner, crowded=True)


def _fits(fact: OwnerFact, before: Owner | None, after: Owner) -> bool:
    """Whether the owner is otherwise the same, or a new one about whom no more is known."""
    if before is None or before.container != after.container or fact is OwnerFact.FOUND:
        # The checkpoint names another holder: the device was crowded before its owner was known.
        confirmed = fact is OwnerFact.CONFIRMED
        known = fact in (OwnerFact.FOUND, OwnerFact.ADMITTED, OwnerFact.CONFIRMED) and after.crowded is confirmed
        return known and not after.pod and (fact is OwnerFact.ADMITTED or not after.name)
    match fact:
        case OwnerFact.SEEN:
            return after == replace(before, seen=True)
        case OwnerFact.CROWDED:
            return after == replace(before, crowded=True)
        case OwnerFact.CONFIRMED:
            return after == replace(before, unannounced=False)
        case OwnerFact.ADMITTED:
            again = replace(before, since=after.since, seen=False, unannounced=False)
            return after == again and after.since.uptime >= before.since.uptime
        case OwnerFact.NAMED:
            return after.name != "" and after == replace(before, name=after.name)
        case OwnerFact.CALLED:
            return after.pod != "" and not before.called and after == replace(before, pod=after.pod)


def guard(tenancy: Tenancy, event: ev.Event) -> None:
    """Reject an event that does not fit who has the device."""
    match event:
        case ev.PutInUse(owner):
            leads = legal(tenancy.owner, owner)
            ev.demand(leads, "nothing that can be found out leads from its owner to this one")
        case ev.Released():
            taken = tenancy.grant is not None or tenancy.owner is not None or tenancy.kept_for != ""
            ev.demand(taken, "nobody has the device")
        case _:
            pass


def ends(tenancy: Tenancy, event: ev.Event) -> bool:
    """Whether this event ends a tenancy, so that the next one is another hand-over."""
    match event:
        case ev.Granted(grant) | ev.GrantedUnproven(grant):
            replaced = tenancy.owner is not None and tenancy.start_admitted
            return _follows(tenancy, grant) or replaced or tenancy.kept_for not in ("", grant.owner)
        case ev.PutInUse(owner):
            return _replaced(tenancy, owner)
        case ev.Released():
            return tenancy.kept_for != "" or (not event.restart and tenancy.start_admitted)
        case ev.Distrusted():
            return tenancy.start_admitted or tenancy.awaits != "" or tenancy.kept_for != ""
        case _:
            return False


def _follows(tenancy: Tenancy, grant: Grant) -> bool:
    """Whether another pod gets the device that waits for a restart. Of a grant at a start, only the start tells."""
    return tenancy.awaits != "" and not grant.at_start


def _replaced(tenancy: Tenancy, owner: Owner) -> bool:
    """Whether the tenancy of an admitted pod ends with this owner: another pod starts.

    Policy ``observe`` allows it. So do the others if the pod was deleted while its device was scrubbed for its restart.
    """
    if tenancy.awaits:
        return not owner.unannounced and owner.container != tenancy.awaits
    before = tenancy.owner
    if before is None or before.container is None or before.unannounced or tenancy.until_release:
        return False
    return owner.container != before.container


def first(at: Moment) -> Tenancy:
    """The tenancy of a device that was just discovered. Its number is above each one in a ledger that was lost."""
    return Tenancy(int(at.wall * 1000))


def fold(tenancy: Tenancy, event: ev.Event, at: Moment) -> Tenancy:
    """What an event changes in who has the device."""
    match event:
        case ev.Granted() | ev.GrantedUnproven():
            return _granted(tenancy, event, at)
        case ev.PutInUse(owner):
            left = ends(tenancy, event)
            return replace(
                tenancy, number=tenancy.number + left, owner=owner,
                began=owner.since.uptime if tenancy.began is None else tenancy.began,
                awaits=tenancy.awaits if owner.unannounced else "",
                last_owner=(left and tenancy.awaits) or tenancy.last_owner,
            )  # fmt: skip
        case ev.Released() if tenancy.kept_for:
            return replace(tenancy, number=tenancy.number + 1, kept_for="", held_from=None)
        case ev.Released():
            return _released(tenancy, event, at)
        case ev.Distrusted():
            return _distrusted(tenancy, event, at)
        case ev.Soiled():
            return replace(tenancy, began=None, ended=None)
        case ev.ScrubStarted() | ev.ProbationStarted():
            return replace(tenancy, grant=None, owner=None)
        case ev.ScrubPassed():
            return replace(tenancy, began=None, ended=None)
        case _:
            return tenancy


def _granted(tenancy: Tenancy, event: ev.Granted | ev.GrantedUnproven, at: Moment) -> Tenancy:
    grant = event.grant
    return replace(
        tenancy,
        number=tenancy.number + ends(tenancy, event),
        grant=grant,
        owner=None,
        # If no start was admitted so far, the tenancy begins anew: processes from before this grant are foreign.
        began=tenancy.began if tenancy.span is not None else at.uptime,
        ended=_ended(tenancy, at) if tenancy.owner is not None else tenancy.ended,
        allocations=tenancy.allocations + (grant.announced and not grant.at_start),
        last_owner=tenancy.awaits if _follows(tenancy, grant) else tenancy.last_owner,
        kept_for="",
        awaits=tenancy.awaits if grant.at_start else "",
        held_from=tenancy.held_from if grant.at_start else None,
    )


def _released(tenancy: Tenancy, event: ev.Released, at: Moment) -> Tenancy:
    owner, left = tenancy.owner, ends(tenancy, event)
    awaits = "" if tenancy.until_release else tenancy.container or ""
    return replace(
        tenancy,
        number=tenancy.number + left,
        grant=None,
        owner=None,
        ended=_ended(tenancy, at),
        allocations=tenancy.allocations if event.restart else _unused_allocations(tenancy),
        last_owner=owner.container if left and owner is not None else tenancy.last_owner,
        left_by=_left_by(tenancy),
        kept_for=tenancy.acquired_by if event.restart and tenancy.until_release else "",
        awaits=awaits if event.restart else tenancy.awaits,
        held_from=None if left else tenancy.held_from,
    )


def _distrusted(tenancy: Tenancy, event: ev.Distrusted, at: Moment) -> Tenancy:
    # The containers of the tenancy that ends may start again, with the mount that the runtime knows.
    may_return = tenancy.start_admitted or tenancy.awaits != ""
    held_from = tenancy.number if may_return and tenancy.held_from is None else tenancy.held_from
    return replace(
        tenancy,
        number=first(at).number if event.older_ledger else tenancy.number + ends(tenancy, event),
        grant=None,
        owner=None,
        began=None,
        ended=None,
        allocations=_unused_allocations(tenancy) + (MANY_ALLOCATIONS if event.older_ledger else 0),
        left_by=_left_by(tenancy),
        kept_for="",
        awaits="",
        held_from=None if event.older_ledger else held_from,
    )


def _ended(tenancy: Tenancy, at: Moment) -> float | None:
    """When the last admitted tenant ended. A process that starts later is not its leftover."""
    return at.uptime if tenancy.start_admitted else tenancy.ended


def _unused_allocations(tenancy: Tenancy) -> int:
    """What still counts after a release: nothing if a tenant with an admitted start has ended."""
    return 0 if tenancy.start_admitted else tenancy.allocations


def _left_by(tenancy: Tenancy) -> str:
    """Who the device was acquired for, at the end of the tenancy. Without a grant, no tenancy ends."""
    return tenancy.grant.owner if tenancy.grant is not None else tenancy.left_by
