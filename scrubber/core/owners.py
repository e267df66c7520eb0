"""Which owner of a device may follow which: the table of owners.

Rule 1: ``PutInUse`` is the only event that sets an owner. It carries one ``OwnerFact``; ``TABLE`` says from which
standing to which other standing each fact leads, and ``_fits`` says what the fact leaves unchanged. Everything else is
rejected.
Rule 2: an owner with a known container is never replaced by one without a known container.
Rule 3: an owner that was given the device, or that the checkpoint confirmed, never becomes unannounced again.
Rule 4: an owner that was seen counts as not seen only after another admitted start, because only the absence of an
        owner that was seen means its end.
Rule 5: a crowded device stays crowded as long as its owner has it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from scrubber.core.model import Owner


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
    NAMED = "in a row of an older version: the container runtime creates a container of the owner"
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
    """How to record a sighting that was decided before this owner was known; None if it says nothing new.

    If a container of another pod was on the device, the device is crowded.
    """
    if legal(owner, sighting):
        return sighting
    if owner is None or (owner.container is None and sighting.container is not None):
        return replace(sighting, crowded=False, name="", pod="")
    if sighting.container in (None, owner.container):
        return None
    return replace(owner, crowded=True)


def _fits(fact: OwnerFact, before: Owner | None, after: Owner) -> bool:
    """Whether the owner is otherwise unchanged, or is a new owner about whom nothing else is known."""
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
