"""Who has a device, by the facts of one moment: named, unannounced, assigned, contested or gone.

``owners`` has the table of owners, which says which fact leads from one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scrubber.core import events as ev
from scrubber.core.model import Facts, Holder, KubeletAssignment, Moment, Owner, is_pod
from scrubber.core.owners import Standing, standing
from scrubber.core.record import Record, Tenancy

CLOCK_TICK = 2.0  # seconds by which the time of a file may lag behind the clock: some file systems store even seconds
STARTS_WITHIN = 10.0  # seconds from an admitted start until its container can be seen; creating one takes a few


def called(record: Record, names: Mapping[str, str]) -> ev.PutInUse | None:
    """The event that records the name of the owner's pod, which nobody can find out after the pod is deleted.

    None if the name is not new.

    ``names``: NAMESPACE/POD by UID.
    """
    if not is_nameless(record) or record.tenancy.owner is None:
        return None
    pod = names.get(record.tenancy.owner.container or "", "")
    return ev.PutInUse(replace(record.tenancy.owner, pod=pod)) if pod else None


def is_nameless(record: Record) -> bool:
    """Whether the device has a pod whose name is not known."""
    owner = record.tenancy.owner
    return owner is not None and owner.container is not None and is_pod(owner.container) and not owner.called


def live_container(holders: tuple[Holder, ...]) -> str | None:
    """``Holder.container`` of the first holder in a container; None if no holder is in one."""
    return next((holder.container for holder in holders if holder.container is not None), None)


def all_holders_hang(facts: Facts) -> bool:
    """Whether there are holders and all of them hang in the kernel (state D), where no signal reaches them."""
    return bool(facts.holders) and all(holder.state == "D" for holder in facts.holders or ())


def hanging(facts: Facts) -> tuple[Holder, ...] | None:
    """The holders if all of them hang in the kernel, nobody if one does not; None: the holders are not known."""
    if facts.holders is None:
        return None
    return facts.holders if all_holders_hang(facts) else ()


def about_to_start(owner: Owner | None, now: Moment) -> bool:
    """Whether the owner's container was admitted, was not seen yet, and may still appear."""
    return owner is not None and not owner.seen and just_admitted(owner, now)


def just_admitted(owner: Owner | None, now: Moment) -> bool:
    """Whether a container whose start was admitted may not be there yet."""
    return owner is not None and now.uptime - owner.since.uptime < STARTS_WITHIN


def first_seen(record: Record, facts: Facts) -> ev.PutInUse | None:
    """The owner runs for the first time. From now on its absence means that it has ended."""
    owner = record.tenancy.owner
    if owner is None or standing(owner) is not Standing.AWAITED or facts.owner_alive is not True:
        return None
    return ev.PutInUse(replace(owner, seen=True))


def unannounced_use(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """Record who uses a device that has no owner, or whose owner has no known container.

    Record it at once: an unannounced pod that has left before the next observation would be forgotten. A device that
    was granted until its release announces no starts, so its pods are expected.
    """
    owner, container = record.tenancy.owner, live_container(facts.holders or ())
    if not facts.holders or (owner is not None and (owner.container is not None or container is None)):
        return None
    return ev.PutInUse(Owner(container, now, seen=container is not None, unannounced=not record.tenancy.until_release))


def between_jobs(record: Record, facts: Facts) -> bool:
    """Whether no process has the device, and its owner is a pod whose jobs acquire it one after another.

    An example is the pod of slurmd. The kubelet's checkpoint names such a pod, but not the pod of a claim.
    """
    pod = record.tenancy.container
    return record.tenancy.until_release and facts.holders == () and pod in (facts.assigned_pods or ())


def unannounced_pod_has_left(record: Record, facts: Facts) -> bool:
    """Whether an unannounced pod, such as a monitoring agent, has left a device that was granted to another pod.

    The grant must be proven, announced and of this run of the kubelet. In that case the device had no holder when it
    was granted, and each container of the granted pod needs an admitted start. After any other grant the unannounced
    pod may be the owner, so it keeps the device while it lives. A container outside any pod also keeps it: no
    checkpoint names one.
    """
    grant, owner, assigned = record.tenancy.grant, record.tenancy.owner, facts.assigned_pods
    if grant is None or owner is None or owner.container is None or not owner.unannounced or facts.holders != ():
        return False
    proven = grant.announced and grant.receipt is not None and grant.epoch == facts.epoch
    return proven and is_pod(owner.container) and assigned is not None and owner.container not in assigned


def needs_assignment(owner: Owner | None, facts: Facts) -> bool:
    """Whether only the kubelet's checkpoint can show that the recorded owner no longer owns the device."""
    if owner is None or owner.container is None:
        return False
    others_stay = facts.owner_alive is False and live_container(facts.holders or ()) is not None
    return owner.unannounced or not owner.seen or all_holders_hang(facts) or others_stay


def confirmed_by_assignment(record: Record, facts: Facts, now: Moment) -> ev.PutInUse | None:
    """The kubelet's checkpoint names an unannounced pod: that pod is the owner, even while it does not use the device.

    If the checkpoint does not name the recorded pod but names the pod of another holder, that pod is the owner.
    Record it at once: the kubelet forgets a pod that was deleted by force and still runs.
    """
    owner, assigned = record.tenancy.owner, facts.assigned_pods or frozenset()
    if owner is None or not owner.unannounced or owner.container is None:
        return None
    if owner.container in assigned:
        return ev.PutInUse(replace(owner, unannounced=False))
    here = sorted(holder.container for holder in facts.holders or () if holder.container in assigned)
    return ev.PutInUse(Owner(here[0], now, seen=True, crowded=True)) if here else None


def shared_use(record: Record, facts: Facts) -> ev.PutInUse | None:
    """Another pod's container uses the owner's device: the owner's next start then needs a clean device."""
    owner = record.tenancy.owner
    if owner is None or owner.container is None or owner.crowded or record.tenancy.until_release:
        return None
    if all(holder.container in (owner.container, None) for holder in facts.holders or ()):
        return None
    return ev.PutInUse(replace(owner, crowded=True))


def contested(record: Record, named: KubeletAssignment) -> bool:
    """Whether a container may start under the name of another pod. ``named``: what the kubelet's checkpoint says.

    Each Allocate that succeeds adds one container to the checkpoint. If one is missing, the kubelet has dropped a pod.
    That pod's container may still start, and the service would mistake it for a container of the remaining pod.
    """
    return record.tenancy.allocations > named.containers


def outdated(tenancy: Tenancy, named: KubeletAssignment, reserved: Moment | None, now: Moment) -> bool:
    """Whether the kubelet's checkpoint is older than the last Allocate, which may have written no grant: ``reserved``.

    Then it cannot name the pod of that Allocate. The kubelet writes the checkpoint after Allocate and before the first
    start. The wall clock may have been set since Allocate, before or after that write. So the earlier of the two times
    counts: the time of Allocate by the old clock, or by the present clock.
    """
    grant, given = tenancy.grant, reserved or tenancy.deferred
    if given is None and grant is not None and not grant.at_start:
        given = grant.at
    if given is None:
        return False
    return named.written < min(given.wall, now.wall - (now.uptime - given.uptime)) - CLOCK_TICK
