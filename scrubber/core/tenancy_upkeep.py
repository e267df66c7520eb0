"""What a device that is granted or in use needs while nobody asks for it.

An event tells who has the device, or that the tenancy is over (``Released``). Then the device is DIRTY, and the same
call of ``Upkeep.reconcile`` goes on in ``next_action`` with its scrub.
"""

from __future__ import annotations

from scrubber.core import answers, ownership, pauses, stuck
from scrubber.core import events as ev
from scrubber.core.model import Ailment, AilmentKind, Facts, Moment, Owner
from scrubber.core.record import Record

OWNER_GONE = "its owner is gone"


def tend(record: Record, facts: Facts, now: Moment) -> answers.TendAnswer:
    """What the monitor should do about this device: first name its user, then end a tenancy that is over."""
    if facts.holders is None:
        return _tend_unseen(record, facts)
    user = ownership.unannounced_use(record, facts, now)
    if user is None and _hangs_after_its_end(record, facts):
        return _tend_hung(record, facts, now)
    event = (
        user
        or ownership.confirmed_by_assignment(record, facts, now)
        or ownership.shared_use(record, facts)
        or ownership.first_seen(record, facts)
        or _end(record, facts, now)
    )
    return answers.Proceed() if event is None else answers.RecordFirst(event)


def _tend_unseen(record: Record, facts: Facts) -> answers.TendAnswer:
    """Nobody can say who uses the device. Of a device that is lost or hangs, the driver may never say it again."""
    if not _owner_is_gone(record, facts):
        return answers.Proceed()
    if record.health.ailment is None:
        return answers.Blocked(answers.why_unknown_for_operators(facts))
    return answers.Proceed() if record.tenancy.until_release else answers.RecordFirst(ev.Released(OWNER_GONE))


def _end(record: Record, facts: Facts, now: Moment) -> ev.Released | None:
    """The end of the tenancy, if it is over. A device that was acquired until its release waits for the release."""
    if record.tenancy.until_release:
        return None
    owner = record.tenancy.owner
    why = _why_abandoned(record, facts, now) if owner is None else _why_over(record, owner, facts, now)
    return ev.Released(why) if why else None


def _why_abandoned(record: Record, facts: Facts, now: Moment) -> str:
    """Why a grant ends on which no container has started; empty while one may start.

    While the device is not offered, no request for it would ever show that the grant was abandoned.
    """
    grant = record.tenancy.grant
    # Before a container of an announced grant uses the device, ``start`` decides about the device again.
    if grant is None or not (grant.announced or now.uptime - grant.at.uptime > pauses.START_WITHIN):
        return ""
    if record.health.ailment is not None:
        return "it became sick before a container started on it"
    return "a request for it was refused before a container started on it" if facts.withheld else ""


def _why_over(record: Record, owner: Owner, facts: Facts, now: Moment) -> str:
    """Why the tenancy of this owner is over; empty while it is not, and while a container uses the device.

    If the owner is gone, containers keep the tenancy only if the kubelet's checkpoint names one of their pods, or if it
    cannot be read. All others have opened the device without a grant.
    """
    if ownership.live_container(facts.holders or ()) is not None:
        return OWNER_GONE if _only_others_are_left(record, owner, facts) else ""
    if _is_bystander_now(record, owner, facts):
        return "it was not granted, and its owner is a bystander by the policy in force"
    # If the checkpoint names another pod, keep the grant: that pod may still start, unannounced after a kubelet
    # restart.
    if ownership.unannounced_pod_has_left(record, facts) and not facts.assigned_pods:
        return "an unannounced pod has left it before its first start"
    # An owner that was never seen may still start, unless its control group was there and is gone. A new request is
    # better evidence that the owner ended.
    if _owner_is_gone(record, facts):
        return OWNER_GONE
    if not _deserted(owner, facts, now):
        return ""
    if owner.container is not None and _is_taken(owner, facts) and not _held_for_another(record, facts):
        return "it was not used, and the kubelet has taken it from its owner"
    # While the device is not offered, no request for it would ever show that its owner is gone.
    if record.health.ailment is not None:
        return "it is sick and no process uses it"
    return "it was asked for and no process uses it" if facts.withheld else ""


def _only_others_are_left(record: Record, owner: Owner, facts: Facts) -> bool:
    assigned = facts.assigned_pods
    if owner.unannounced or assigned is None or not _owner_is_gone(record, facts):
        return False
    return all(holder.container not in assigned for holder in facts.holders or ())


def _is_bystander_now(record: Record, owner: Owner, facts: Facts) -> bool:
    """Whether a device that nobody was granted is open to bystanders alone, those of its unannounced owner among them.

    The owner was recorded under another policy. A search must have found it: an unannounced pod that is idle keeps the
    device. So does a pod that the kubelet's checkpoint names.
    """
    met = record.tenancy.grant is None and owner.unannounced and owner.container in facts.bystander_pods
    return met and facts.holders == () and facts.assigned_pods == frozenset()


def _owner_is_gone(record: Record, facts: Facts) -> bool:
    owner = record.tenancy.owner
    was_there = owner is not None and (owner.seen or facts.owner_left)
    return was_there and facts.owner_alive is False and not _held_for_another(record, facts)


def _held_for_another(record: Record, facts: Facts) -> bool:
    """Whether the recorded owner is an unannounced pod, while the device may belong to another pod, which is idle.

    This is possible if the kubelet's checkpoint names a pod. If the checkpoint cannot be read, it is possible only
    after an announced grant: after any other grant, the unannounced pod counts as the tenant of the grant.
    """
    grant, owner = record.tenancy.grant, record.tenancy.owner
    if owner is None or not owner.unannounced:
        return False
    if grant is None or not grant.announced:
        return bool(facts.assigned_pods)
    return facts.assigned_pods != frozenset()


def _is_taken(owner: Owner, facts: Facts) -> bool:
    """Whether the kubelet's checkpoint does not name the owner any more."""
    return facts.assigned_pods is not None and owner.container not in facts.assigned_pods


def _deserted(owner: Owner, facts: Facts, now: Moment) -> bool:
    """Whether no process uses the device, its owner is gone, and no container is about to start."""
    gone = owner.container is None or facts.owner_alive is False
    return facts.holders == () and gone and not ownership.about_to_start(owner, now)


def _hangs_after_its_end(record: Record, facts: Facts) -> bool:
    """Whether all holders hang, after the kubelet took the device from its owner or a request for it was refused."""
    owner = record.tenancy.owner
    if owner is None or not ownership.all_holders_hang(facts):
        return False
    return facts.withheld or _is_taken(owner, facts)


def _tend_hung(record: Record, facts: Facts, now: Moment) -> answers.TendAnswer:
    """Say which processes hang. No signal can end them. After a while they count as an ailment."""
    why = f"its processes hang in the kernel (state D): {facts.who}"
    if stuck.held_for(facts.hung, now) >= stuck.GIVEN_UP_AFTER and record.health.ailment is None:
        return answers.RecordFirst(ev.AilmentFound(Ailment(AilmentKind.STUCK_PROCESS, why)))
    return answers.Proceed() if record.health.ailment is not None else answers.Blocked(why)
