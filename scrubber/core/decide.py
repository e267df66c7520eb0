"""The hooks' questions: may this device go out, may something start on it, is it free, may a job go on?

A record, fresh facts, the policy and the time in; one small answer out.

Rule 1: unknown is no. Facts that could not be gathered (``None``) never lead to a yes or to a deed.
Rule 2: a process of a live container is never touched; what may be ended is said by ``grounds.terminable``.
Rule 3: an answer ``Note`` means: this has happened, record it, look again, ask again.
"""

from __future__ import annotations

from policies.model import Mode, Policy
from scrubber.core import answers, grounds
from scrubber.core import events as ev
from scrubber.core.model import Blame, Facts, Moment, Owner, Record, State, Step, Trigger
from scrubber.core.verdict import diagnose
from scrubber.errors import Reason


def acquire(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.AcquireAnswer:
    """May this device go to a new tenant?"""
    answer = _acquire(record, facts, policy, now)
    if policy.mode is not Mode.OBSERVE or record.state is State.QUARANTINED:
        return answer
    match answer:
        case answers.Wait(_, message) | answers.Refuse(_, message):
            return answers.HandOut(unproven=message)
        case answers.Scrub(path, trigger):
            return answers.HandOut(unproven=f"not scrubbed: would have taken the {path.value} path ({trigger.value})")
        case answers.HandOut() | answers.Join() | answers.Note():
            return answer


def _acquire(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.AcquireAnswer:
    stale = grounds.distrust(record, facts)
    if stale is not None:
        return answers.Note(stale)
    if record.sickness is not None or (facts.vitals and diagnose(facts.vitals, record.baseline, policy)):
        return answers.Refuse(Reason.SICK, f"cannot hand out {record.device.uuid}: it is unhealthy")
    match record.state:
        case State.QUARANTINED:
            return answers.Refuse(Reason.QUARANTINED, f"cannot hand out {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return answers.Join()
        case _ if facts.domain_resetting:
            return answers.Wait(Reason.NOT_READY, f"cannot hand out {record.device.uuid}: it is being reset")
        case State.CLEAN:
            return _from_clean(record, facts, policy, now)
        case State.GRANTED if reusable(record, facts, policy, now):
            return answers.HandOut()
        case State.GRANTED | State.EXPOSED:
            return _from_tenancy(record, facts, now)
        case State.DIRTY | State.UNKNOWN:
            return from_dirty(record, facts, policy, Trigger.ACQUIRE)


def start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    """May a container of this owner start on it? The second gate: the first may have been skipped by a restart."""
    answer = _start(record, facts, policy, owner, now)
    in_tenancy = record.state in (State.GRANTED, State.EXPOSED)
    if policy.mode is Mode.OBSERVE and in_tenancy and isinstance(answer, answers.Refuse):
        known_owner = record.owner is not None and record.owner.container == owner
        return answers.Proceed() if known_owner else answers.Note(ev.Exposed(Owner(owner, now)))
    return answer


def _start(record: Record, facts: Facts, policy: Policy, owner: str, now: Moment) -> answers.StartAnswer:
    stale = grounds.distrust(record, facts)
    if stale is not None:
        return answers.Note(stale)
    match record.state:
        case State.QUARANTINED:
            return answers.Refuse(Reason.QUARANTINED, f"cannot start on {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return answers.Join()
        case State.CLEAN | State.DIRTY | State.UNKNOWN:
            # No grant was seen: a reboot, or the service was away. It must pass the first gate now.
            return _as_start(acquire(record, facts, policy, now))
        case State.GRANTED if facts.domain_resetting:
            return answers.Refuse(Reason.NOT_READY, f"cannot start on {record.device.uuid}: it is being reset")
        case State.GRANTED if record.sickness is not None:
            return answers.Refuse(Reason.SICK, f"cannot start on {record.device.uuid}: it is unhealthy")
        case State.GRANTED if (
            policy.mode is Mode.ENFORCE
            and facts.holders == ()
            and not grounds.proof_stands(record.receipt, facts, policy, now)
        ):
            return answers.Note(ev.Released("its proof ended before it was started on"))
        case State.GRANTED:
            return _start_granted(record, facts, owner, now)
        case State.EXPOSED:
            return _start_exposed(record, facts, owner, now)


def release(record: Record, facts: Facts) -> answers.ReleaseAnswer:
    """Has the last user really gone? The caller's word is not enough."""
    if record.state not in (State.GRANTED, State.EXPOSED):
        return answers.Proceed()
    busy = _in_use(record, facts)
    if busy is not None:
        return answers.Refuse(busy.reason, busy.message.replace("hand out", "take back"))
    return answers.Note(ev.Released("it was given back"))


def fence(record: Record, job: str, step: Step, facts: Facts) -> answers.Fenced | None:
    """Whether a job may go on with a step; asked again just before each one.

    The job may have outlived its caller, and the device may have found a new user meanwhile.
    """
    if record.state is not State.SCRUBBING or record.job is None or record.job.id != job:
        return answers.Fenced(Blame.SERVICE, "the device does not belong to this job any more")
    if facts.incarnation != record.incarnation:
        return answers.Fenced(Blame.SERVICE, "the node or the driver was restarted under the job")
    if facts.holders is None:
        return answers.Fenced(Blame.TENANT, "it cannot be proven that nobody uses the device")
    if grounds.user_of(facts.holders) is not None:
        return answers.Fenced(Blame.TENANT, f"a live container uses the device ({grounds.names(facts.holders)})")
    if step is not Step.EVICT and facts.holders:
        return answers.Fenced(Blame.TENANT, f"the device is used by {grounds.names(facts.holders)}")
    if step is Step.RESET and facts.siblings_busy is not False:
        return answers.Fenced(Blame.TENANT, "a device of the same reset domain is in use")
    return None


def reusable(record: Record, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a grant can be given again without a scrub: announced, never started on, in the same kubelet life."""
    grant = record.grant
    if grant is None or record.owner is not None or not grounds.proof_stands(record.receipt, facts, policy, now):
        return False
    return grant.announced and grant.epoch == facts.epoch and facts.holders == ()


def _from_clean(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.AcquireAnswer:
    if facts.holders is None:
        return _unproven(record)
    if facts.holders:
        return answers.Note(ev.Soiled("it was used without a grant", facts.holders))
    if not grounds.proof_stands(record.receipt, facts, policy, now):
        return answers.Scrub(grounds.path_for(record, policy), Trigger.PROOF_EXPIRED)
    return answers.HandOut()


def _from_tenancy(record: Record, facts: Facts, now: Moment) -> answers.Wait | answers.Note:
    seen = grounds.sighting(record, facts)
    if seen is not None:
        return answers.Note(seen)
    gone = answers.Note(ev.Released("it was asked for again and its last user is gone"))
    return _in_use(record, facts, now) or gone


def from_dirty(record: Record, facts: Facts, policy: Policy, trigger: Trigger) -> answers.Scrub | answers.Wait:
    """A device that needs a scrub: start one, unless somebody is on it who must not be disturbed."""
    if facts.holders is None:
        return _unproven(record)
    if not grounds.clearable(record, facts, policy):
        return _busy(record)
    return answers.Scrub(grounds.path_for(record, policy), trigger)


def _in_use(record: Record, facts: Facts, now: Moment | None = None) -> answers.Wait | None:
    """Somebody who must not be disturbed is on it or, as of ``now``, about to come; or nobody can say."""
    named = record.owner is not None and record.owner.container is not None
    if facts.holders is None or (named and facts.owner_alive is None):
        return _unproven(record)
    if facts.owner_alive is True or grounds.user_of(facts.holders) is not None:
        return _busy(record)
    if named and now is not None and grounds.about_to_start(record.owner, now):
        return _busy(record)
    return None


def _unproven(record: Record) -> answers.Wait:
    return answers.Wait(
        Reason.NOT_PROVEN_FREE, f"cannot hand out {record.device.uuid}: it cannot be proven that nobody uses it"
    )


def _busy(record: Record) -> answers.Wait:
    return answers.Wait(Reason.IN_USE, f"cannot hand out {record.device.uuid}: it is still in use")


def _as_start(answer: answers.AcquireAnswer) -> answers.StartAnswer:
    """At a start there is no time to wait: the kubelet asks again by itself."""
    match answer:
        case answers.Wait(reason, message) | answers.Refuse(reason, message):
            return answers.Refuse(reason, message.replace("hand out", "start on"))
        case answers.Scrub(path, Trigger.ACQUIRE):
            return answers.Scrub(path, Trigger.START)
        case _:
            return answer


def _start_granted(record: Record, facts: Facts, owner: str, now: Moment) -> answers.StartAnswer:
    if facts.holders is None:
        return _as_start(_unproven(record))
    # Processes on it before its first start: the first gate's kubelet was restarted and this is that very tenant, or
    # somebody else took it. Only the owner's own container may be there.
    if any(holder.container != owner for holder in facts.holders):
        return _as_start(_busy(record))
    return answers.Note(ev.Exposed(Owner(owner, now)))


def _start_exposed(record: Record, facts: Facts, owner: str, now: Moment) -> answers.StartAnswer:
    if facts.holders is None:
        return _as_start(_unproven(record))
    others = any(holder.container != owner for holder in facts.holders)
    if record.owner is not None and record.owner.container == owner:
        return _as_start(_busy(record)) if others else answers.Proceed()
    if record.owner is not None and record.owner.container is None and facts.holders and not others:
        return answers.Note(ev.Exposed(Owner(owner, now)))
    busy = _in_use(record, facts, now)
    if busy is not None:
        return _as_start(busy)
    return answers.Note(ev.Released("another owner is about to start and its last user is gone"))
