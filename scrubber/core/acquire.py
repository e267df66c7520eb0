"""Allocate: may this device go to a recipient? And the way back: may it be taken from its last one?

A record, fresh facts, the policy and the time go in; one answer comes out. ``start`` is the second hook, and the same
rules hold there.

A pod has no name here: the kubelet asks, and its request implies that the last owner has left. A claim and a job have a
name. They keep the device until a release, so the service refuses them a device that has an owner.

Rule 1: unknown is no. A fact that could not be gathered (``None``) never leads to a yes or to a change.
Rule 2: a process of a live container is never touched. ``next_scrub.terminable`` says which processes may be ended.
Rule 3: the answer ``RecordFirst`` means: record this event, observe again, try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ground.errors import Reason
from policies.policy_model import Mode, Policy
from scrubber.core import answers, next_scrub, ownership, proof
from scrubber.core import events as ev
from scrubber.core.ailments import diagnose
from scrubber.core.answers import Action
from scrubber.core.fencing import Pods
from scrubber.core.model import Facts, Grant, Moment, ScrubPath, State, Trigger
from scrubber.core.record import Record, Tenancy


@dataclass(frozen=True, slots=True)
class ForPod:
    """The kubelet asks for a pod."""

    announced: bool = False  # the caller will ask ``start`` before a container uses the device
    until_release: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ForClaim:
    """The DRA driver asks for a claim. Until the release, only the claim's pods may open the device."""

    owner: str  # the UID of the claim
    pods: Pods
    group: ClassVar[int] = 0
    until_release: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ForJob:
    """A person or Slurm asks."""

    owner: str = ""  # as the caller writes it
    group: int = 0  # the only control group that may open the device meanwhile; 0: all may
    until_release: ClassVar[bool] = True


Recipient: TypeAlias = ForPod | ForClaim | ForJob


def has(recipient: Recipient, tenancy: Tenancy) -> bool:
    """Whether the device was granted to this recipient until its release: then this is a repeated request."""
    if isinstance(recipient, ForPod) or not tenancy.until_release:
        return False
    return tenancy.acquired_for(recipient.owner) and tenancy.group == recipient.group


def grant_for(recipient: Recipient, name: str, at: Moment, epoch: str, receipt: str | None) -> Grant:
    """The grant for this recipient, with its name, time, run of the kubelet, and the receipt that it relies on."""
    if isinstance(recipient, ForPod):
        return Grant(name, at, epoch, recipient.announced, receipt)
    owner, group = recipient.owner, recipient.group
    return Grant(name, at, epoch, announced=False, receipt=receipt, until_release=True, owner=owner, group=group)


def decide(
    record: Record,
    facts: Facts,
    policy: Policy,
    now: Moment,
    recipient: Recipient,
    *,
    action: Action = Action.HAND_OUT,
) -> answers.AcquireAnswer:
    """May this device go to this recipient?"""
    ended = proof.ended(record, facts)
    if ended is not None:
        return answers.RecordFirst(ended)
    taken = record.state in (State.GRANTED, State.IN_USE)
    if taken and has(recipient, record.tenancy):
        return answers.Proceed()
    if taken and recipient.until_release:
        remedy = f"run `autoclave release {record.device.name}` once its owner has ended"
        return answers.Refuse(Reason.IN_USE, answers.sentence(action, record, f"it is {record.state.words}"), (remedy,))
    answer = _enforced(record, facts, policy, now, action)
    if policy.mode is Mode.OBSERVE and record.state is State.SCRUBBING and not isinstance(answer, answers.RecordFirst):
        return under_way(record, policy)  # also when it is sick: no device goes out before its job ends
    if policy.mode is Mode.OBSERVE and facts.domain_resetting and isinstance(answer, (answers.Wait, answers.Refuse)):
        return answer  # policy observe lets no container start during a reset either
    if policy.mode is Mode.OBSERVE and record.state is not State.QUARANTINED:
        return _observed(answer)
    return answer


def reserve(record: Record) -> answers.Refuse | None:
    """Why a pod must not get this device, by its record; None if the start of its container may decide."""
    if record.health.ailment is not None:
        return answers.sick(Action.HAND_OUT, record)
    return answers.quarantined(Action.HAND_OUT, record) if record.state is State.QUARANTINED else None


def partly_held(replies: Mapping[str, answers.AcquireAnswer]) -> answers.Refuse | None:
    """Refuse a request for several devices if the owner already has some of them, but not all.

    It repeats no earlier request. As a new request it would share a device between two jobs of the same name.
    """
    held = [device for device, answer in replies.items() if isinstance(answer, answers.Proceed)]
    if not held or len(held) == len(replies):
        return None
    other = next(device for device in replies if device not in held)
    why = f"cannot {Action.HAND_OUT.value} {other}: this owner already has {held[0]}"
    remedy = f"run `autoclave release {held[0]}` first, or acquire the others alone"
    return answers.Refuse(Reason.IN_USE, why, (remedy,))


def _observed(answer: answers.AcquireAnswer) -> answers.AcquireAnswer:
    """The answer under policy ``observe``: yes, with the reason why it would be no otherwise."""
    match answer:
        case answers.Wait(message=message) | answers.Refuse(message=message):
            return answers.HandOut(unproven=message)
        case answers.Scrub(path, trigger):
            return answers.HandOut(unproven=f"not scrubbed: mode enforce needs the {path.value} path ({trigger.value})")
        case answers.HandOut() | answers.Join() | answers.CancelJob() | answers.RecordFirst():
            return answer
        case answers.Proceed():
            return answer


def _enforced(record: Record, facts: Facts, policy: Policy, now: Moment, action: Action) -> answers.AcquireAnswer:
    if record.health.ailment is not None or diagnose(facts.vitals, record.health.baseline, policy):
        return answers.sick(action, record)
    if record.state is State.QUARANTINED:
        return answers.quarantined(action, record)
    if record.state is State.SCRUBBING:
        return under_way(record, policy)
    if facts.domain_resetting:
        return answers.in_reset(action, record)
    match record.state:
        case State.CLEAN:
            if facts.holders is None:
                return answers.holders_unknown(action, record, facts)
            if not proof.is_valid(record.scrubs.receipt, facts, policy, now):
                return answers.Scrub(next_scrub.next_path(record, policy), Trigger.PROOF_EXPIRED)
            return answers.HandOut()
        case State.GRANTED if _reusable(record, facts, policy, now):
            return answers.HandOut()
        case State.GRANTED | State.IN_USE:
            sighting = ownership.unannounced_use(record, facts, now) or ownership.first_seen(record, facts)
            if sighting is not None:
                return answers.RecordFirst(sighting)
            gone = answers.RecordFirst(ev.Released("it was asked for again, and its last owner is gone"))
            return still_in_use(action, record, facts, now) or gone
        case State.DIRTY | State.UNKNOWN:
            return _from_dirty(record, facts, policy, action)


def _reusable(record: Record, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a granted device can be granted again without a scrub.

    Its grant must be announced and of this run of the kubelet, and no container may have started on the device.
    """
    grant, owner = record.tenancy.grant, record.tenancy.owner
    if grant is None or owner is not None or not proof.is_valid(record.scrubs.receipt, facts, policy, now):
        return False
    return grant.announced and grant.epoch == facts.epoch and facts.holders == () and not proof.leaked_bytes(facts)


def _from_dirty(
    record: Record, facts: Facts, policy: Policy, action: Action
) -> answers.Scrub | answers.Wait | answers.Refuse:
    """Start a scrub, unless a holder must not be disturbed."""
    if facts.holders is None:
        return answers.holders_unknown(action, record, facts)
    if not next_scrub.all_terminable(record, facts, policy):
        return answers.busy(action, record)
    if next_scrub.reset_forbidden(record, policy):
        why = answers.sentence(action, record, next_scrub.RESET_FORBIDDEN)
        return answers.Refuse(Reason.SICK, why, answers.explain(record, answers.BRINGS_BACK))
    return answers.Scrub(next_scrub.next_path(record, policy, awaited=True), Trigger.ACQUIRE)


def under_way(record: Record, policy: Policy) -> answers.Join | answers.CancelJob:
    """The device has a job: wait for it. A test that nobody needs now is cancelled instead."""
    job = record.scrubs.job
    # A self-test takes longer than a request can wait. The request does not need one, unless the path with the test is
    # due, as on probation.
    tested = job is not None and job.path is not ScrubPath.FAST
    return answers.CancelJob() if tested and next_scrub.next_path(record, policy) is ScrubPath.FAST else answers.Join()


def take_back(record: Record, facts: Facts, now: Moment, owner: str = "") -> answers.ReleaseAnswer:
    """May this device be taken back? The caller's word that the last tenant has ended is not enough.

    The answer is to record the release, to refuse it, or to proceed if the device is not granted. ``owner``: refuse a
    device that was granted to another owner. A device that was found in use, as after the loss of the ledger, has no
    grant. No other owner is known then, so only the observation decides.
    """
    tenancy = record.tenancy
    if record.state not in (State.GRANTED, State.IN_USE):
        return answers.Proceed()
    if owner and tenancy.grant is not None and not tenancy.acquired_for(owner):
        why = answers.sentence(Action.TAKE_BACK, record, "it was not acquired for this owner")
        return answers.Refuse(Reason.OTHER_OWNER, why, ("`autoclave status` names its owner",))
    free = ownership.between_jobs(record, facts)
    used = None if free else still_in_use(Action.TAKE_BACK, record, facts, now)
    by = f" by {owner}" if owner else ""
    return answers.final(used) if used is not None else answers.RecordFirst(ev.Released(f"it was given back{by}"))


def distrust(record: Record, why: str) -> answers.Wait | answers.RecordFirst | answers.Proceed:
    """How the proof of a device ends because another program calls it unhealthy.

    This needs no observation. A clean device is distrusted. A device is also distrusted if it was granted to a pod
    whose announced start is not admitted yet: that grant could go out again without a scrub, and the start of the pod
    then waits for a scrub. A running job could prove the device by what it saw before the doubt, so the job must end
    first. Nothing is recorded for other devices: they have no proof, or their proof ends with their present use.
    """
    grant = record.tenancy.grant
    awaited = grant is not None and grant.announced and not grant.until_release
    if record.state is State.SCRUBBING:
        why_not = answers.sentence(Action.DISTRUST, record, "it is being scrubbed")
        return answers.Wait(Reason.SCRUBBING, why_not, ("try again after the scrub",))
    if record.state is State.CLEAN or (record.state is State.GRANTED and awaited):
        return answers.RecordFirst(ev.Distrusted(why, record.incarnation))
    return answers.Proceed()


def still_in_use(action: Action, record: Record, facts: Facts, now: Moment) -> answers.Wait | None:
    """Why a granted device is not free: it is in use or about to be used, or its use is not known. None: it is free."""
    if ownership.unannounced_pod_has_left(record, facts):
        return None
    named = record.tenancy.container is not None
    if facts.holders is None or (named and facts.owner_alive is None):
        return answers.holders_unknown(action, record, facts)
    if facts.owner_alive is True or ownership.live_container(facts.holders) is not None:
        return answers.busy(action, record)
    if named and ownership.about_to_start(record.tenancy.owner, now):
        return answers.busy(action, record)
    return None
