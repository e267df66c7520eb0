"""PreStartContainer: may a container start on this device? A restart of the node may have skipped Allocate.

A record, fresh facts, the policy, the starting pod and the time go in; one answer comes out. The rules of ``acquire``
also apply here, with one more:

Rule 4: the record shows whether a start is that of a new tenant; nothing is guessed. A start on a grant without an
owner is the first one. A start of the recorded owner is a start of the same pod. A start of any other pod is that of a
new tenant whose grant was not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ground.errors import Reason
from policies.policy_model import Mode, Policy, Starts
from scrubber.core import acquire, ailments, answers, next_scrub, ownership, proof
from scrubber.core import events as ev
from scrubber.core.acquire import ForPod
from scrubber.core.answers import Action
from scrubber.core.model import Facts, KubeletAssignment, Moment, Owner, State, Trigger
from scrubber.core.record import Record

LEFT_BEHIND = "a container of the pod died and left processes behind"
CROWDED = "another pod's container was on it"
CONTESTED = "it was handed out for a container that the kubelet's checkpoint does not name, and that may have used it"
OUTDATED = "the kubelet's checkpoint is older than its last Allocate, so its owner is not known"
ENDED = "the kubelet's checkpoint names a pod for it that has ended"
TRIES_AGAIN = "the kubelet tries again"
EACH_CONTAINER = "another container of the pod is about to start, and policy wants each on a clean device"


def starting_pod(owners: Mapping[str, frozenset[str]]) -> str | answers.Refuse:
    """The one pod that the kubelet's checkpoint names for all of these devices.

    If it names no pod, or several, this is a refusal.
    """
    for device, pods in owners.items():
        if not pods:
            why = f"cannot start on {device}: the kubelet's checkpoint names no pod for it"
            return answers.Refuse(Reason.OWNER_UNKNOWN, why, (TRIES_AGAIN,))
        if len(pods) > 1:
            why = f"cannot start on {device}: the kubelet's checkpoint names more than one pod for it"
            return answers.Refuse(Reason.OWNER_AMBIGUOUS, why, ("on its node, `autoclave doctor` names these pods",))
    all_pods = frozenset().union(*owners.values())
    if len(all_pods) == 1:
        return next(iter(all_pods))
    why = "cannot start: the devices asked for belong to different pods"
    return answers.Refuse(Reason.OWNER_AMBIGUOUS, why, ("ask for the devices of one pod",))


def decide(
    record: Record,
    facts: Facts,
    policy: Policy,
    pod: str,
    now: Moment,
    named: KubeletAssignment | None = None,
    reserved: Moment | None = None,
) -> answers.StartAnswer:
    """May a container of this pod start on the device?

    ``named``: what the kubelet's checkpoint says about the device; None if the caller, not the checkpoint, names the
    pod. ``reserved``: when Allocate gave the device to a pod without a grant, if it did.
    """
    unproven = None if named is None else _cannot_be_owner(record, facts, pod, named, reserved, now)
    if unproven is not None:
        why = answers.sentence(Action.START_ON, record, unproven)
        return answers.Refuse(Reason.OWNER_UNKNOWN, why, (TRIES_AGAIN,))
    why_clean = EACH_CONTAINER if policy.model is Starts.PER_CONTAINER else None
    why_clean = CONTESTED if named is not None and ownership.contested(record, named) else why_clean
    answer = _enforced(record, facts, policy, pod, now, why_clean)
    in_tenancy = record.state in (State.GRANTED, State.IN_USE)
    if policy.mode is Mode.OBSERVE and in_tenancy and not facts.domain_resetting and _keeps_out(answer, facts):
        return _same_owner(record, facts, now) if _owned_by(record, pod) else _admit(facts, pod, now)
    return answer


def _cannot_be_owner(
    record: Record, facts: Facts, pod: str, named: KubeletAssignment, reserved: Moment | None, now: Moment
) -> str | None:  # fmt: skip
    """Why it is not proven that the checkpoint names the pod of the grant, or None."""
    if record.incarnation != facts.incarnation:
        return None
    if ownership.outdated(record.tenancy, named, reserved, now):
        return OUTDATED
    if record.tenancy.grant is not None and record.tenancy.grant.at_start:
        return None
    ended = pod == record.tenancy.last_owner and not _owned_by(record, pod) and facts.starting_pod_alive is not True
    return ENDED if ended else None


def _keeps_out(answer: answers.StartAnswer, facts: Facts) -> bool:
    """Whether the answer keeps the pod out under policy ``observe``.

    A release also keeps the pod out if the device has holders: under policy ``observe`` no scrub ends them, so the
    next decision would release the device again.
    """
    released = isinstance(answer, answers.RecordFirst) and isinstance(answer.event, ev.Released)
    return isinstance(answer, (answers.Wait, answers.Refuse)) or (released and bool(facts.holders))


def _enforced(
    record: Record, facts: Facts, policy: Policy, pod: str, now: Moment, why_clean: str | None
) -> answers.StartAnswer:
    """The answer of a policy that enforces.

    ``why_clean``: why each container of the pod needs a clean device, or None.
    """
    ended = proof.ended(record, facts)
    if ended is not None:
        return answers.RecordFirst(ended)
    match record.state:
        case State.QUARANTINED:
            return answers.quarantined(Action.START_ON, record)
        case State.SCRUBBING:
            return acquire.under_way(record, policy)
        case State.CLEAN | State.DIRTY | State.UNKNOWN:
            # The grant was not seen: after a reboot, while the service was not running, or because the start waits for
            # the proof.
            answer = acquire.decide(record, facts, policy, now, ForPod(), action=Action.START_ON)
            return _as_start(answer, facts, pod, now)
        case State.GRANTED:
            return _from_grant(record, facts, policy, pod, now, why_clean)
        case State.IN_USE if _owned_by(record, pod):
            return _again(record, facts, policy, pod, now, why_clean)
        case State.IN_USE:
            return _as_another(record, facts, pod, now)


def _from_grant(
    record: Record, facts: Facts, policy: Policy, pod: str, now: Moment, why_clean: str | None
) -> answers.StartAnswer:
    """The first start of a grant."""
    # A holder before the first start belongs to the starting pod, after a restart of the kubelet, or to another pod
    # without an admitted start. Record another pod at once: it may leave before the next observation.
    unannounced = ownership.unannounced_use(record, facts, now)
    if unannounced is not None and any(holder.container != pod for holder in facts.holders or ()):
        return answers.RecordFirst(unannounced)
    grant, receipt = record.tenancy.grant, record.scrubs.receipt
    if grant is not None and not grant.announced:
        return answers.busy(Action.START_ON, record)  # it was granted to a tenant that announces no start
    if facts.domain_resetting:
        return answers.in_reset(Action.START_ON, record)
    if record.health.ailment is not None:
        return answers.sick(Action.START_ON, record)
    if facts.holders is None:
        return answers.holders_unknown(Action.START_ON, record, facts)
    if policy.mode is Mode.ENFORCE and not facts.holders and not proof.is_valid(receipt, facts, policy, now):
        why = "its proof ended before a container started on it"
        return answers.RecordFirst(ev.Released(why))
    # Containers may start without this decision after a restart of the kubelet.
    may_have_run = bool(facts.holders) or grant is None or grant.epoch != facts.epoch
    if why_clean is not None and may_have_run:
        return answers.busy(Action.START_ON, record) if facts.holders else answers.RecordFirst(ev.Released(why_clean))
    return _admit(facts, pod, now)


def _again(
    record: Record, facts: Facts, policy: Policy, pod: str, now: Moment, why_clean: str | None
) -> answers.StartAnswer:
    """A restart, or another container of the pod: the policy's ``model`` says what happens."""
    if facts.holders is None:
        return answers.holders_unknown(Action.START_ON, record, facts)
    shared = ownership.shared_use(record, facts)
    if shared is not None:
        return answers.RecordFirst(shared)
    if any(holder.container not in (pod, None) for holder in facts.holders):
        return answers.busy(Action.START_ON, record)
    ailment, owner = record.health.ailment, record.tenancy.owner
    if ailment is not None and ailments.remedy(ailment).doubtful:
        return answers.sick(Action.START_ON, record)
    siblings = any(holder.container == pod for holder in facts.holders)
    leftovers = any(holder.container is None for holder in facts.holders) and policy.model is not Starts.PER_POD
    why = CROWDED if record.tenancy.is_crowded else LEFT_BEHIND if leftovers else why_clean
    if why is None:
        return _same_owner(record, facts, now)
    # The other pod of a contested grant may have been admitted under the name of this pod, a moment ago.
    other_may_come = why_clean == CONTESTED and ownership.just_admitted(owner, now)
    if siblings or other_may_come or not next_scrub.all_terminable(record, facts, policy):
        return answers.busy(Action.START_ON, record)
    return answers.RecordFirst(ev.Released(why, restart=True))


def _same_owner(record: Record, facts: Facts, now: Moment) -> answers.Proceed | answers.Admit:
    """The container may start.

    The start of an unannounced pod is admitted now. A pod that is not known to be running now counts as not seen. The
    absence of a pod means its end only after the pod was seen.
    """
    owner = record.tenancy.owner
    if owner is None:
        return answers.Proceed()
    if facts.owner_alive is not True and facts.starting_pod_alive is not True:
        return answers.Admit(ev.PutInUse(replace(owner, since=now, seen=False, unannounced=False)))
    return answers.Admit(ev.PutInUse(replace(owner, unannounced=False))) if owner.unannounced else answers.Proceed()


def _as_another(record: Record, facts: Facts, pod: str, now: Moment) -> answers.StartAnswer:
    """The answer for a new tenant, because the owner is not this pod.

    Exception: the owner has no name and all holders belong to this pod.
    """
    if facts.holders is None:
        return answers.holders_unknown(Action.START_ON, record, facts)
    owner = record.tenancy.owner
    nameless = owner is not None and owner.container is None
    if nameless and facts.holders and all(holder.container == pod for holder in facts.holders):
        return _admit(facts, pod, now)
    used = acquire.still_in_use(Action.START_ON, record, facts, now)
    why = "another owner is about to start, and its last owner is gone"
    return used or answers.RecordFirst(ev.Released(why))


def _owned_by(record: Record, pod: str) -> bool:
    return record.tenancy.container == pod


def _admit(facts: Facts, pod: str, now: Moment) -> answers.Admit:
    """The container may start.

    A pod that is alive before its container starts counts as seen: if it is absent later, it has ended.
    """
    return answers.Admit(ev.PutInUse(Owner(pod, now, seen=facts.starting_pod_alive is True)))


def _as_start(answer: answers.AcquireAnswer, facts: Facts, pod: str, now: Moment) -> answers.StartAnswer:
    match answer:
        case answers.HandOut():
            return replace(_admit(facts, pod, now), handed_out=answer)
        case answers.Scrub(path, Trigger.ACQUIRE):
            return answers.Scrub(path, Trigger.START)
        case _:
            return answer
