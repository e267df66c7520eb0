"""Who uses a device, and to which pod it was given, as a table.

Rule 1: ``PutInUse`` is the only event that sets an owner. It carries one ``Fact``; ``TABLE`` says from which standing
        to which other each fact leads, and ``_fits`` what it leaves as it was. ``states.guard`` rejects anything else.
Rule 2: an owner with a known container is never replaced by one without a known container.
Rule 3: an owner that was given the device, or that the checkpoint confirmed, never becomes unannounced again.
Rule 4: an owner that was seen counts as not seen only after another admitted start, because only the absence of an
        owner that was seen means its end.
Rule 5: a crowded device stays crowded as long as its owner has it.

A grant, a release, a distrusted record and the start of a scrub end the ownership: see ``states.fold``.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from ground import process_names
from scrubber.core import events as ev
from scrubber.core.model import Facts, Grant, Holder, KubeletAssignment, Moment, Owner, Record, is_pod

CLOCK_TICK = 2.0  # seconds by which the time of a file may lag behind the clock: some file systems store even seconds
STARTS_WITHIN = 10.0  # seconds from an admitted start until its container can be seen; creating one takes a few


class Standing(Enum):
    """What is known about the owner of a device."""

    NONE = "no owner"
    WITHOUT_CONTAINER = "an owner without a known container"
    UNANNOUNCED = "an unannounced pod"
    AWAITED = "an owner that was not seen yet"
    PRESENT = "an owner that was seen"


class Fact(Enum):
    """What ``PutInUse`` says about the owner."""

    FOUND = "a process uses the device without an admitted start"
    SEEN = "the owner runs"
    CROWDED = "another pod's container uses the device as well"
    CONFIRMED = "a start of the unannounced pod is admitted, or the checkpoint names it or the pod of another holder"
    ADMITTED = "a container of the owner may start"
    NAMED = "the container runtime creates a container of the owner"


TABLE: dict[Fact, dict[Standing, frozenset[Standing]]] = {
    Fact.FOUND: {
        Standing.NONE: frozenset({Standing.WITHOUT_CONTAINER, Standing.UNANNOUNCED}),
        Standing.WITHOUT_CONTAINER: frozenset({Standing.UNANNOUNCED}),
    },
    Fact.SEEN: {
        Standing.AWAITED: frozenset({Standing.PRESENT}),
    },
    Fact.CROWDED: {
        Standing.UNANNOUNCED: frozenset({Standing.UNANNOUNCED}),
        Standing.AWAITED: frozenset({Standing.AWAITED}),
        Standing.PRESENT: frozenset({Standing.PRESENT}),
    },
    Fact.CONFIRMED: {
        Standing.UNANNOUNCED: frozenset({Standing.PRESENT}),
    },
    Fact.ADMITTED: {
        # From another named owner under policy ``observe`` only. A grant until the release admits every start.
        before: frozenset({Standing.AWAITED, Standing.PRESENT})
        for before in Standing
    },
    Fact.NAMED: {
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
        return replace(sighting, crowded=False, name="")
    if sighting.container in (None, owner.container):
        return None
    return replace(owner, crowded=True)


def _fits(fact: Fact, before: Owner | None, after: Owner) -> bool:
    """Whether the owner is otherwise the same, or a new one about whom no more is known."""
    if before is None or before.container != after.container or fact is Fact.FOUND:
        # The checkpoint names another holder: the device was crowded before its owner was known.
        known = fact in (Fact.FOUND, Fact.ADMITTED, Fact.CONFIRMED) and after.crowded is (fact is Fact.CONFIRMED)
        return known and (fact is Fact.ADMITTED or not after.name)
    match fact:
        case Fact.SEEN:
            return after == replace(before, seen=True)
        case Fact.CROWDED:
            return after == replace(before, crowded=True)
        case Fact.CONFIRMED:
            return after == replace(before, unannounced=False)
        case Fact.ADMITTED:
            again = replace(before, since=after.since, seen=False, unannounced=False)
            return after == again and after.since.uptime >= before.since.uptime
        case Fact.NAMED:
            return after.name != "" and after == replace(before, name=after.name)


def named(record: Record, pod: str, name: str) -> ev.PutInUse | None:
    """The container runtime creates a container of the owner with this name. None if that is nothing new."""
    owner = record.owner
    if owner is None or owner.container != pod or owner.name == name:
        return None
    return ev.PutInUse(replace(owner, name=name))


def live_container(holders: tuple[Holder, ...]) -> str | None:
    """``Holder.container`` of the first holder in a container; None if no holder is in one."""
    return next((holder.container for holder in holders if holder.container is not None), None)


def all_holders_hang(facts: Facts) -> bool:
    """Whether there are holders and all of them hang in the kernel (state D), where no signal reaches them."""
    return bool(facts.holders) and all(holder.state == "D" for holder in facts.holders or ())


def about_to_start(owner: Owner | None, now: Moment) -> bool:
    """Whether the owner's container was admitted and may still appear: it was not seen yet."""
    return owner is not None and not owner.seen and just_admitted(owner, now)


def just_admitted(owner: Owner | None, now: Moment) -> bool:
    """Whether a container whose start was admitted may not be there yet."""
    return owner is not None and now.uptime - owner.since.uptime < STARTS_WITHIN


def first_seen(record: Record, facts: Facts) -> ev.PutInUse | None:
    """The owner runs for the first time. From now on its absence means that it has ended."""
    owner = record.owner
    if owner is None or standing(owner) is not Standing.AWAITED or facts.owner_alive is not True:
        return None
    return ev.PutInUse(replace(owner, seen=True))


def unannounced_use(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """Record who uses a device that has no owner, or whose owner has no known container.

    Record it at once: an unannounced pod that has left before the next observation would be forgotten. A device that
    was granted until its release announces no starts, so its pods are expected.
    """
    owner, container = record.owner, live_container(facts.holders or ())
    if not facts.holders or (owner is not None and (owner.container is not None or container is None)):
        return None
    return ev.PutInUse(Owner(container, now, seen=container is not None, unannounced=not until_release(record)))


def replaced(record: Record, owner: Owner) -> bool:
    """Whether the tenancy of an admitted pod ends with this owner: another pod starts.

    Policy ``observe`` allows it. So do the others if the pod was deleted while its device was scrubbed for its restart.
    """
    if record.awaits:
        return not owner.unannounced and owner.container != record.awaits
    before = record.owner
    if before is None or before.container is None or before.unannounced or until_release(record):
        return False
    return owner.container != before.container


def until_release(record: Record) -> bool:
    """Whether the device was granted until its release, so that any container may use it meanwhile."""
    return record.grant is not None and record.grant.until_release


def between_jobs(record: Record, facts: Facts) -> bool:
    """Whether no process has the device, and its owner is a pod whose jobs acquire it one after another, as slurmd's.

    The kubelet's checkpoint names such a pod. It does not name the pod of a claim.
    """
    pod = record.owner.container if record.owner is not None else None
    return until_release(record) and facts.holders == () and pod in (facts.assigned_pods or ())


def acquired_for(record: Record, owner: str) -> bool:
    """Whether the device was granted to this owner, or is kept for it. An owner without a name has no device."""
    return owner != "" and acquired_by(record) == owner


def acquired_by(record: Record) -> str:
    """Who has acquired the device; empty if nobody has, or somebody without a name."""
    return record.grant.owner if record.grant is not None else record.kept_for


def unannounced_pod_has_left(record: Record, facts: Facts) -> bool:
    """Whether an unannounced pod, such as a monitoring agent, has left a device that was granted to another pod.

    The grant must be proven, announced and of this run of the kubelet. Then the device had no holder when it was
    granted, and each container of the granted pod needs an admitted start. After any other grant the unannounced pod
    may be the owner, so it keeps the device while it lives. A container outside any pod also keeps it: no checkpoint
    names one.
    """
    grant, owner, assigned = record.grant, record.owner, facts.assigned_pods
    if grant is None or owner is None or owner.container is None or not owner.unannounced or facts.holders != ():
        return False
    proven = grant.announced and grant.receipt is not None and grant.epoch == facts.epoch
    return proven and is_pod(owner.container) and assigned is not None and owner.container not in assigned


def needs_checkpoint(owner: Owner | None, facts: Facts) -> bool:
    """Whether only the kubelet's checkpoint can show that the recorded owner no longer owns the device."""
    if owner is None or owner.container is None:
        return False
    return owner.unannounced or not owner.seen or all_holders_hang(facts)


def confirmed_by_checkpoint(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """The kubelet's checkpoint names an unannounced pod: that pod is the owner, also while it does not use the device.

    If the checkpoint does not name the recorded pod but names the pod of another holder, that pod is the owner.
    Record it at once: the kubelet forgets a pod that was deleted by force and still runs.
    """
    owner, assigned = record.owner, facts.assigned_pods or frozenset()
    if owner is None or not owner.unannounced or owner.container is None:
        return None
    if owner.container in assigned:
        return ev.PutInUse(replace(owner, unannounced=False))
    here = sorted(holder.container for holder in facts.holders or () if holder.container in assigned)
    return ev.PutInUse(Owner(here[0], now, seen=True, crowded=True)) if here else None


def shared_use(record: Record, facts: Facts) -> ev.PutInUse | None:
    """Another pod's container uses the owner's device: the owner's next start then needs a clean device."""
    owner = record.owner
    if owner is None or owner.container is None or owner.crowded or until_release(record):
        return None
    if all(holder.container in (owner.container, None) for holder in facts.holders or ()):
        return None
    return ev.PutInUse(replace(owner, crowded=True))


def contested(record: Record, named: KubeletAssignment) -> bool:
    """Whether a container may start under the name of another pod. ``named``: what the kubelet's checkpoint says.

    Each Allocate that succeeds adds one container to the checkpoint. If one is missing, the kubelet has dropped a pod.
    That pod's container may still start, and the service would take it for a container of the pod that is left.
    """
    return record.handouts > named.containers


def outdated(grant: Grant, named: KubeletAssignment, now: Moment) -> bool:
    """Whether the kubelet's checkpoint is older than the grant, so that it cannot name the pod of the grant.

    The kubelet writes the checkpoint after Allocate and before the first start. The wall clock may have been set since
    the grant, before or after that write. So of the grant's times by the old and the present clock the earlier counts.
    """
    granted = min(grant.at.wall, now.wall - (now.uptime - grant.at.uptime))
    return named.written < granted - CLOCK_TICK


def holder_names(holders: tuple[Holder, ...]) -> str:
    """The holders as operators read them."""
    return ", ".join(process_names.describe(it.command, it.pid, it.container or "no container") for it in holders)
